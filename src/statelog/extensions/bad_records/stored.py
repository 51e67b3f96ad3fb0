"""
Read the dead letters that a checkpoint references, with rows in the input's columns.

A dead letter is the recording of one call that failed.  It was committed with the micro-batch that
left the call out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from statelog.checkpoint.attachments import (
    Attachment,
    UnreadableAttachment,
    of_kinds,
    read_attachment,
)
from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import CorruptionError, IncompatibleFormatError, UsageError
from statelog.extensions.recordings.format import DEAD_LETTERS, TaskRecording, decode_file
from statelog.extensions.recordings.step import RecordedStep, steps_of
from statelog.format.arrow_data import python_rows
from statelog.format.sealed_file import damaged_file, part_of
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.runtime.clock import utc_time
from statelog.store import ObjectStore

_Letter = TypeVar("_Letter")

SCHEMA: Final = pa.schema(
    [
        ("checkpoint_id", pa.int64()),
        ("batch_id", pa.int64()),
        ("failed_at", pa.timestamp("ms", "UTC")),
        ("operator", pa.string()),
        ("key", pa.string()),
        ("method", pa.string()),
        ("timers", pa.list_(pa.int64())),
        ("error", pa.string()),
        ("message", pa.string()),
        ("traceback", pa.string()),
        ("row_count", pa.int64()),
        ("rows", pa.string()),
        ("initial_rows", pa.string()),
    ]
)
"""
The columns of `letters_table`.

Keys and rows are JSON.  `failed_at` is null for a time beyond the year 9999.
"""


@dataclass(frozen=True, slots=True)
class ChosenLetters:
    """
    The dead letters in a checkpoint that a caller has selected.

    Args:
        store: Where the location is.
        checkpoint: The checkpoint.
        operator: Name of the operator; None for all.
        since: Only of later checkpoints than this.
        unreadable: Receives the objects that are damaged; the others are read.  Without it damage
            is raised.
    """

    store: ObjectStore
    checkpoint: CompletedCheckpoint
    operator: str | None
    since: int
    unreadable: list[UnreadableAttachment] | None = None

    def read(self, convert: Callable[[RecordedStep], _Letter]) -> list[_Letter]:
        """Return the dead letters, oldest first, skipping damaged ones."""
        letters: list[_Letter] = []
        for entry in of_kinds(BatchRecord.of(self.checkpoint).attachments, DEAD_LETTERS):
            if entry.newest <= self.since:
                continue
            for task in self._tasks_in(entry):
                with self._may_be_damaged(entry):
                    letters += list(map(convert, steps_of(task)))
        return letters

    def _tasks_in(self, entry: Attachment) -> list[TaskRecording]:
        tasks: list[TaskRecording] = []
        with self._may_be_damaged(entry):
            tasks = read_attachment(
                self.store, entry, partial(decode_file, where=entry.path), "dead letters"
            )
        return [
            task
            for task in tasks
            if self.operator in (None, task.operator_id) and task.checkpoint_id > self.since
        ]

    @contextmanager
    def _may_be_damaged(self, entry: Attachment) -> Iterator[None]:
        if self.unreadable is None:
            with part_of(entry.path):
                yield
            return
        try:
            yield
        except (CorruptionError, IncompatibleFormatError) as error:
            self.unreadable.append(UnreadableAttachment(entry.path, str(error)))


def letters_table(chosen: ChosenLetters) -> pa.Table:
    """Return dead letters, oldest first, with the columns of `SCHEMA`."""
    return pa.Table.from_pylist(chosen.read(_row), schema=SCHEMA)


def letters_rows(chosen: ChosenLetters) -> pa.Table:
    """Return the input rows of dead letters, in the order of the letters."""
    letters = chosen.read(
        lambda step: (step.task.operator_id, _columns(step.input, step.task.first_input))
    )
    operators = sorted({operator for operator, _ in letters})
    if len(operators) > 1:
        raise UsageError(
            f"the dead letters belong to the operators {', '.join(operators)}, whose inputs differ: select "
            "one (operator=, on the command line --operator)"
        )
    tables = [pa.table({}), *(table for _, table in letters)]
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise UsageError(
            f"the rows of the dead letters cannot be combined into one table: {error}. Read "
            "only the dead letters added after the columns changed (since=, on the command line --since)"
        ) from error


def _columns(table: pa.Table, first: int) -> pa.Table:
    """Drop the columns that statelog added from recorded rows."""
    if not 0 <= first <= table.num_columns and table.num_rows:
        raise damaged_file("", f"its rows begin at column {first} of {table.num_columns}")
    return table.select(range(first, table.num_columns)) if table.num_rows else pa.table({})


def _json_rows(table: pa.Table) -> str:
    try:
        return _json(python_rows(table))
    except pa.ArrowException as error:
        raise damaged_file("", str(error)) from error


def _row(step: RecordedStep) -> dict[str, object]:
    task = step.task
    failure = step.failure
    return {
        "checkpoint_id": task.checkpoint_id,
        "batch_id": task.batch_id,
        "failed_at": utc_time(task.recorded_at_ms),
        "operator": task.operator_id,
        "key": _json(step.key),
        "method": "" if failure is None else failure.method,
        "timers": [call.timer_ms for call in step.calls if call.timer_ms >= 0],
        "error": "" if failure is None else failure.error,
        "message": "" if failure is None else failure.message,
        "traceback": "" if failure is None else failure.lines,
        "row_count": step.input.num_rows,
        "rows": _json_rows(_columns(step.input, task.first_input)),
        "initial_rows": _json_rows(_columns(step.initial, task.first_initial)),
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
