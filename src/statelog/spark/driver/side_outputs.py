"""
The rows of side outputs: committed with their micro-batch, kept, and delivered after the commit.

Small rows of the tasks go through the driver into one object for each side output.  While that object is
small, the next micro-batch writes it again with its rows, and names it in the place of the one before.
So a side output with a few rows in each micro-batch costs one put, and has few objects.  Rows that are
too many for the answer of a task are in files that the task wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import (
    SIDE_BATCH,
    SIDE_CHECKPOINT,
    BatchRecord,
    SideOutputEntry,
)
from statelog.format.arrow_data import write_stream
from statelog.format.arrow_limits import batches_of
from statelog.model.handles import FileStateHandle
from statelog.runtime.fail_points import fail_point
from statelog.spark.driver.delivery.staged import frame_of_rows
from statelog.spark.query.delivery import Sink, of_side_output
from statelog.spark.query.query import Query
from statelog.spark.query.side_output import operator_of
from statelog.spark.rows.types import from_ipc
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import TaskAck
from statelog.spark.worker.side_output import SideRows, side_rows_of
from statelog.state.reader.side_outputs import read_side_rows
from statelog.store import open_location

_log = logging.getLogger("statelog.spark")
SIDE_FILES_MAX: Final = 1_000
"""Most objects with rows of side outputs that a checkpoint names."""
TAIL_BYTES: Final = 256 * 1024
"""An object up to this size is written again with the rows of the next micro-batch."""
_TAIL_MEMORY: Final = 4 << 20
"""The driver holds up to this many bytes of its rows."""

_Place = tuple[str, str]
"""Operator and side output."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """
    The newest object of a side output, while it is small.

    Args:
        path: Its name.
        rows: Its rows, oldest first.
        times: For each micro-batch in it the time of its commit in milliseconds, and its number of rows.
    """

    path: str
    rows: pa.Table
    times: tuple[tuple[int, int], ...]

    def younger(self, than_ms: int) -> _Tail:
        """Return it without the rows up to a time."""
        old = [rows for at_ms, rows in self.times if at_ms <= than_ms]
        return _Tail(self.path, self.rows.slice(sum(old)), self.times[len(old) :])


class SideOutputLog:
    """
    Writes the rows of side outputs for the checkpoints of one run.

    Args:
        files: Opens what writes files of the state location; see `recording_files`.
        age_ms: How long rows are kept, in milliseconds.

    Thread: Spark's thread of the query.
    """

    def __init__(
        self, files: Callable[[], AbstractContextManager[OutputFiles]], age_ms: float
    ) -> None:
        self._files = files
        self._age_ms = age_ms
        self._tails: dict[_Place, _Tail] = {}
        self._next: dict[_Place, _Tail] = {}

    def entries(
        self,
        before: Sequence[SideOutputEntry],
        answers: Mapping[str, Sequence[TaskAck]],
        checkpoint_id: int,
        now_ms: int,
    ) -> tuple[SideOutputEntry, ...]:
        """
        Write the rows of a micro-batch, and return what its checkpoint names.

        Args:
            before: The entries of the checkpoint before.
            answers: The answers of the tasks, by operator.
            checkpoint_id: The checkpoint being made.
            now_ms: The wall clock.

        Raises:
            StoreError, UnavailableError: They could not be written: the micro-batch must not be committed.

        Blocks: For the store, where there are rows.
        """
        oldest_ms = int(now_ms - self._age_ms)
        self._next = dict(self._tails)
        fresh: list[SideOutputEntry] = []
        replaced: set[str] = set()
        for place, parts in _by_place(answers).items():
            for part in parts:
                fresh += _of_files(place, part, checkpoint_id, now_ms)
            inline = [part.output for part in parts if isinstance(part.output, bytes)]
            if not inline:
                continue
            rows, tail = pa.concat_tables(map(from_ipc, inline)), self._tails.get(place)
            written, handle = self._put(tail, rows, now_ms, oldest_ms)
            if tail is not None and len(written.times) > 1:
                replaced.add(tail.path)
            self._next[place] = written
            if handle.size_bytes > TAIL_BYTES:
                del self._next[place]
            fresh.append(_entry(place, handle, len(written.rows), checkpoint_id, now_ms))
        kept = [
            msgspec.structs.replace(each, is_fresh=False)
            for each in before
            if each.at_ms > oldest_ms and each.path not in replaced
        ]
        return _newest([*kept, *fresh])

    def committed(self) -> None:
        """Note that the checkpoint of the last `entries` was committed."""
        self._tails = self._next

    def _put(
        self, tail: _Tail | None, rows: pa.Table, now_ms: int, oldest_ms: int
    ) -> tuple[_Tail, FileStateHandle]:
        """Write rows, after the rows of the tail where both are small together."""
        times = ((now_ms, len(rows)),)
        joined, data = _Tail("", rows, times), b""
        if tail is not None and tail.rows.schema == rows.schema:
            young = tail.younger(oldest_ms)
            both = pa.concat_tables([young.rows, rows])
            if both.nbytes <= _TAIL_MEMORY:
                both = both.combine_chunks()
                data = write_stream(both.to_batches(), both.schema)
            joined = _Tail("", both, (*young.times, *times))
            if not 0 < len(data) <= TAIL_BYTES:
                joined, data = _Tail("", rows, times), b""
        data = data or write_stream(batches_of(rows), rows.schema)
        with self._files() as files:
            handle = files.put(data)
        return replace(joined, path=handle.path), handle


def _by_place(answers: Mapping[str, Sequence[TaskAck]]) -> dict[_Place, list[SideRows]]:
    places: dict[_Place, list[SideRows]] = {}
    for operator_id, acks in answers.items():
        for ack in acks:
            for part in side_rows_of(ack):
                places.setdefault((operator_id, part.name), []).append(part)
    return places


def _of_files(
    place: _Place, part: SideRows, checkpoint_id: int, now_ms: int
) -> list[SideOutputEntry]:
    """Return the entries of the files of a task."""
    files = part.output if isinstance(part.output, tuple) else ()
    return [
        _entry(place, handle, rows, checkpoint_id, now_ms)
        for handle, rows in zip(files, part.file_rows, strict=True)
    ]


def _entry(
    place: _Place, handle: FileStateHandle, rows: int, checkpoint_id: int, now_ms: int
) -> SideOutputEntry:
    operator_id, name = place
    return SideOutputEntry(
        name=name,
        operator_id=operator_id,
        checkpoint=checkpoint_id,
        path=handle.path,
        size=handle.size_bytes,
        crc=handle.crc32c or 0,
        rows=rows,
        at_ms=now_ms,
        is_fresh=True,
    )


def _newest(entries: Sequence[SideOutputEntry]) -> tuple[SideOutputEntry, ...]:
    """Return the newest entries, at most `SIDE_FILES_MAX`, and all of this micro-batch."""
    dropped = [each for each in entries[:-SIDE_FILES_MAX] if not each.is_fresh]
    if dropped:
        _log.warning(
            "%d objects with rows of side outputs of checkpoint %d and before are dropped: a location has "
            "at most %d; a shorter sideOutputAge keeps less",
            len(dropped),
            dropped[-1].checkpoint,
            SIDE_FILES_MAX,
        )
    gone = {each.path for each in dropped}
    return tuple(each for each in entries if each.path not in gone)


class SideDelivery:
    """
    Calls the sinks of side outputs with the committed rows of a micro-batch.

    A sink is called only for micro-batches in which its side output has rows.

    Args:
        query: The query.
        sinks: By side output.

    Raises:
        UsageError: No operator of the query declares a side output.
    """

    def __init__(self, query: Query, sinks: Mapping[str, Sink]) -> None:
        self._query = query
        self._sinks = dict(sinks)
        schemas = [operator.side_outputs for operator in query.operators]
        self._operators = {name: operator_of(name, schemas) for name in sinks}

    def deliver(
        self, frame: DataFrame, batch_id: int, answers: Sequence[Sequence[TaskAck]]
    ) -> None:
        """Call the sinks with the rows of the tasks' answers, which are not read again."""
        for name, sink in self._sinks.items():
            acks = answers[self._operators[name]]
            outputs = [
                part.output for ack in acks for part in side_rows_of(ack) if part.name == name
            ]
            inline = [output for output in outputs if isinstance(output, bytes)]
            files = [each for output in outputs if isinstance(output, tuple) for each in output]
            if outputs:
                self._call(name, sink, frame, batch_id, inline, files)

    def deliver_again(self, frame: DataFrame, record: BatchRecord) -> None:
        """
        Call the sinks with the rows of a committed micro-batch.

        Raises:
            CorruptionError: An object is damaged.
            StoreError: It cannot be read.

        Blocks: On the store.
        """
        for name, sink in self._sinks.items():
            fresh = [each for each in record.side_outputs if each.name == name and each.is_fresh]
            small = [each for each in fresh if each.size <= TAIL_BYTES]
            large = [each.handle for each in fresh if each.size > TAIL_BYTES]
            if fresh:
                inline = [self._of_its_checkpoint(each) for each in small]
                self._call(name, sink, frame, record.batch_id, inline, large)

    def _of_its_checkpoint(self, entry: SideOutputEntry) -> bytes:
        """Return the rows of an object that its newest checkpoint added."""
        query = self._query
        store = open_location(query.location, options=dict(query.settings.storage_options))
        table = read_side_rows(store, entry)
        rows = table.filter(pc.equal(table.column(SIDE_CHECKPOINT), entry.checkpoint))
        return write_stream(rows.to_batches(), rows.schema)

    def _call(
        self,
        name: str,
        sink: Sink,
        frame: DataFrame,
        batch_id: int,
        inline: Sequence[bytes],
        files: Sequence[FileStateHandle],
    ) -> None:
        schema = self._query.operators[self._operators[name]].side_outputs[name]
        what = f"side output {name!r} of micro-batch {batch_id}"
        rows = frame_of_rows(
            frame.sparkSession,
            self._query,
            schema.stored_columns,
            schema.stored,
            inline,
            files,
            what=what,
        )
        with of_side_output(frame, name):
            sink(rows.drop(SIDE_CHECKPOINT, SIDE_BATCH), batch_id)
        fail_point("after-side-sink")
