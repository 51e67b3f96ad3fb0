"""
The dead letters that a checkpoint names, as a table, and their rows in the columns of the input.

A dead letter is the recording of one call that failed.  It was committed with the micro-batch that left
the call out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from statelog.checkpoint.batch_record import BatchRecord, RecordingEntry
from statelog.errors import CheckpointError, ObjectNotFoundError
from statelog.format.arrow_data import python_rows
from statelog.format.recording_file import damaged_recording
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.state.recordings.format import decode_file
from statelog.state.recordings.step import RecordedStep, steps_of
from statelog.store import ObjectStore, read_verified

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
"""The columns of `letters_table`; keys and rows are JSON."""


def letters_table(
    store: ObjectStore, checkpoint: CompletedCheckpoint, operator: str | None, since: int
) -> pa.Table:
    """
    Return the dead letters that a checkpoint names, oldest first, in the columns of `SCHEMA`.

    Args:
        store: Where the location is.
        checkpoint: The checkpoint.
        operator: Name of the operator; None for all.
        since: Only of later checkpoints than this.

    Raises:
        CorruptionError: An object is damaged.
        CheckpointError: The query deleted the dead letters meanwhile (`reason` "subsumed").

    Blocks: On the store; reads every file with dead letters.
    """
    rows = [_row(step) for step in _steps(store, checkpoint, operator, since)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def letters_rows(
    store: ObjectStore, checkpoint: CompletedCheckpoint, operator: str | None, since: int
) -> pa.Table:
    """Return the input rows of dead letters, in their order; arguments and errors as `letters_table`."""
    steps = _steps(store, checkpoint, operator, since)
    tables = [_columns(step.input, step.task.first_input) for step in steps]
    return pa.concat_tables([pa.table({}), *tables], promote_options="default")


def _steps(
    store: ObjectStore, checkpoint: CompletedCheckpoint, operator: str | None, since: int
) -> Iterator[RecordedStep]:
    for entry in BatchRecord.of(checkpoint).recordings:
        if not entry.dead_letters or entry.checkpoint <= since:
            continue
        for step in _steps_in(store, entry):
            is_chosen = operator is None or step.task.operator_id == operator
            if is_chosen and step.task.checkpoint_id > since:
                yield step


def _steps_in(store: ObjectStore, entry: RecordingEntry) -> Iterator[RecordedStep]:
    path = entry.path
    try:
        tasks = read_verified(store, path, lambda data: decode_file(data, where=path))
    except ObjectNotFoundError as error:
        raise CheckpointError(
            f"the dead letters of checkpoint {entry.checkpoint} no longer exist in {store.url}: {path}. "
            "A query deletes them by their age: read a newer checkpoint",
            reason="subsumed",
        ) from error
    for task in tasks:
        yield from steps_of(task)


def _columns(table: pa.Table, first: int) -> pa.Table:
    """Return recorded rows without the columns that statelog added."""
    if not 0 <= first <= table.num_columns and table.num_rows:
        raise damaged_recording("", f"its rows begin at column {first} of {table.num_columns}")
    return table.select(range(first, table.num_columns)) if table.num_rows else pa.table({})


def _json_rows(table: pa.Table) -> str:
    try:
        return _json(python_rows(table))
    except pa.ArrowException as error:
        raise damaged_recording("", str(error)) from error


def _row(step: RecordedStep) -> dict[str, object]:
    task, failure = step.task, step.failure
    return {
        "checkpoint_id": task.checkpoint_id,
        "batch_id": task.batch_id,
        "failed_at": task.recorded_at_ms,
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
