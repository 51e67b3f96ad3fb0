"""
Collect a task's output rows, in memory or outside it.

Staged rows that are too many for the task's answer are written to files of the state location, each
of a bounded size.  Rows of direct delivery are stored in the task's file on the local disk until
the task has answered, because it answers before it returns rows.  So rows can be dropped again
until then.

The driver's checkpoint owns what an answer names.  Everything else of a failed task is deleted
before the error is reported, because the worker process ends with it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.scheduler import InlineStateChangeUploadScheduler
from statelog.changelog.upload.task import KEPT_CHANGES
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.errors import UploadFailedError
from statelog.format.arrow_data import write_stream
from statelog.format.arrow_limits import one_batch
from statelog.format.buffers import Buffers, checksum
from statelog.model import ChangeBatch, ChangelogStateHandle, KeyGroupRange
from statelog.model.handles import FileStateHandle
from statelog.runtime.clock import IdSource
from statelog.runtime.closing import close_after
from statelog.spark.rows.interface import Output, RowLike, UnnamedColumns
from statelog.spark.rows.unfit_output import OutputCalls
from statelog.spark.worker.protocol import StagedOutput
from statelog.spark.worker.spill_file import Piece, SpillFile
from statelog.state.encoding.changes import OperatorCodec
from statelog.store import PATHS

_FIRST_ROWS = 131_072
_LEAST_ROWS = 1_024
_BATCH_BYTES = 8 * 1024 * 1024
_HELD_BYTES = 16 * 1024 * 1024
_AT_ONCE = 4_096
_JOINED: Final = 64
"""Batches of few rows are joined when they are this many."""


class Collector(Protocol):
    """Collects the results of processor calls, and can discard the most recent ones."""

    def mark(self) -> None:
        """Set a mark, which the next `keep` or `roll_back` removes; marks can be nested."""

    def keep(self) -> None:
        """Remove the last mark, and keep the results collected since it was set."""

    def roll_back(self) -> None:
        """Remove the last mark, and discard the results collected since it was set."""


class _Mark(NamedTuple):
    """The number of batches, and of rows in them, when the mark was set."""

    batches: int
    rows: int


class OutputParts:
    """
    Converts the results of a processor to record batches of limited size.

    Attributes: `rows`: where rows are collected; `calls`: which call yielded each of its items.
    """

    def __init__(self, output: Output, check: Callable[[pa.RecordBatch], None]) -> None:
        self.rows = output
        self._check = check
        self._limit = self._most = _FIRST_ROWS
        self._batches: list[pa.RecordBatch] = []
        self.held_bytes = 0
        self.row_count = 0
        self._batch_count = 0
        self._marks: list[_Mark] = []
        self.items = output.items
        self.calls = OutputCalls()
        # The method of the output itself: called for each key, so without a method in between.
        self.extend = output.extend

    @property
    def unnamed(self) -> UnnamedColumns | None:
        """The columns that no converted row has set; None also if no rows were converted."""
        return self.rows.unnamed if self.row_count else None

    def bound_each_call(self) -> None:
        """Limit how much memory the rows of one call use."""
        self.extend = self.extend_within
        self.bound_pending()

    def bound_pending(self) -> None:
        """Convert rows more often; the rows of a call stay in memory until the call ends."""
        self._limit = self._most = _AT_ONCE * 4

    @property
    def is_full(self) -> bool:
        """Whether `convert_if_many` would convert the rows now."""
        return self.rows.pending >= self._limit

    def extend_within(self, produced: Iterable[RowLike]) -> None:
        """Collect the results of one processor call in pieces."""
        # A generator of the processor may yield more rows than memory holds.
        iterator = iter(produced)
        before = -1
        while len(self.items) > before:
            before = len(self.items)
            # Not as a list: a frame is copied before the processor changes and yields it again.
            self.rows.extend(islice(iterator, _AT_ONCE))
            if len(self.items) > before and self.is_full:
                self.flush()
                before = -1

    def convert_if_many(self) -> None:
        """
        Convert the rows to a batch if there are many.

        Called between keys.
        """
        if self.rows.pending >= self._limit:
            self.flush()

    def flush(self) -> None:
        """
        Convert all rows to a batch.

        Raises `UnfitOutputError` if one does not fit.
        """
        batch = self.rows.batch()
        self.rows.clear()
        self.calls.clear()
        # Before it counts: a batch that does not fit is not part of the output.
        self._check(batch)
        self.row_count += batch.num_rows
        if batch.num_rows:
            size = batch.nbytes
            # The size of a row is known now: fewer rows of many bytes make a batch.
            least = max(_LEAST_ROWS, _BATCH_BYTES * batch.num_rows // max(size, 1))
            self._limit = min(self._most, least)
            self._batches.append(batch)
            self._batch_count += 1
            self.held_bytes += size
            if self.held_bytes >= _HELD_BYTES:
                self.spill()

    def take(self) -> list[pa.RecordBatch]:
        """Return the batches in memory, and release the memory."""
        batches = self._batches
        self._batches = []
        self.held_bytes = 0
        return batches

    def spill(self) -> None:
        """Move the batches out of memory."""

    def mark(self) -> None:
        """See `Collector.mark`; called only when no rows are pending."""
        self._marks.append(_Mark(self._batch_count, self.row_count))

    def keep(self) -> None:
        """See `Collector`."""
        self._marks.pop()
        # Small batches of many calls are joined, but none across an outer mark, which may roll
        # back.
        before = self._marks[-1].batches if self._marks else 0
        batches = self._batches
        start = first = len(batches)
        least = before - (self._batch_count - start)
        while first > max(least, 0) and batches[first - 1].num_rows < _LEAST_ROWS:
            first -= 1
        if start - first >= _JOINED:
            joined = one_batch(pa.Table.from_batches(batches[first:]), "the output,")
            self.held_bytes += joined.nbytes - sum(batch.nbytes for batch in batches[first:])
            batches[first:] = [joined]
            self._batch_count -= start - first - 1

    def roll_back(self) -> None:
        """See `Collector`."""
        mark = self._marks.pop()
        self.rows.clear()
        self.calls.forget()
        # The newest are in memory; what was spilled since the mark is dropped after them.
        dropped = self._batch_count - mark.batches
        in_memory = min(dropped, len(self._batches))
        for _ in range(in_memory):
            self.held_bytes -= self._batches.pop().nbytes
        self._drop_spilled(dropped - in_memory)
        self._batch_count, self.row_count = mark

    def _drop_spilled(self, count: int) -> None:
        """Discard the batches that `spill` moved most recently."""


class DirectOutput(OutputParts):
    """Output rows that the task returns as its result."""

    def __init__(
        self,
        output: Output,
        check: Callable[[pa.RecordBatch], None],
        schema: pa.Schema,
        file: SpillFile,
    ) -> None:
        super().__init__(output, check)
        self._schema = schema
        self._file = file
        self._pieces: list[Piece] = []

    def spill(self) -> None:
        """Write the batches to the task's local file."""
        self._pieces += [self._file.write_batch(batch, 0) for batch in self.take()]

    def _drop_spilled(self, count: int) -> None:
        self._pieces = self._pieces[: len(self._pieces) - count]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches converted so far, in order, and release them."""
        pieces = self._pieces
        self._pieces = []
        for piece in pieces:
            yield self._file.read_batch(piece, self._schema)
        yield from self.take()


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Writes staged rows to files in the state location."""

    put_object: Callable[[Callable[[], str], Buffers], str]
    ids: IdSource
    drop_object: Callable[[str], None] = lambda _path: None

    def put(self, data: bytes) -> FileStateHandle:
        """Write one file and return its handle."""
        return self.write(PATHS.output, data)

    def write(self, path_of: Callable[[str], str], data: bytes) -> FileStateHandle:
        """Write an object under a unique name, and return its handle."""
        path = self.put_object(lambda: path_of(self.ids.new_id()), data)
        return FileStateHandle(path, len(data), checksum([data]))


class StagedOutputParts(OutputParts):
    """Output rows that are committed together with the state."""

    def __init__(
        self,
        output: Output,
        check: Callable[[pa.RecordBatch], None],
        schema: pa.Schema,
        files: OutputFiles,
        inline_bytes: int,
    ) -> None:
        super().__init__(output, check)
        self._schema = schema
        self._files = files
        self._inline_bytes = inline_bytes
        self._handles: list[FileStateHandle] = []
        self._file_batches: list[int] = []
        self.file_rows: list[int] = []
        """The number of rows in each of the files."""

    def spill(self) -> None:
        """
        Write the batches to a file in the state location.

        None is of rows before and after a mark.
        """
        batches = self.take()
        # A file ends at each mark, so that a rollback deletes whole files.
        before = self._batch_count - len(batches)
        marks = {mark.batches - before for mark in self._marks if mark.batches > before}
        for start, end in pairwise(sorted({0, *marks, len(batches)})):
            self._put(write_stream(batches[start:end], self._schema), batches[start:end])

    def _drop_spilled(self, count: int) -> None:
        while count > 0:
            count -= self._file_batches.pop()
            self.file_rows.pop()
            self._files.drop_object(self._handles.pop().path)

    def _put(self, data: bytes, batches: Sequence[pa.RecordBatch]) -> None:
        self._handles.append(self._files.put(data))
        self._file_batches.append(len(batches))
        self.file_rows.append(sum(batch.num_rows for batch in batches))

    def staged(self) -> StagedOutput:
        """Return the rows as an Arrow IPC stream, or the files that contain them."""
        batches = self.take()
        if batches:
            data = write_stream(batches, self._schema)
            # Order matters: once a file was written, later rows are in files too.
            if len(data) <= self._inline_bytes and not self._handles:
                return data
            self._put(data, batches)
        return tuple(self._handles) if self._handles else None


# Append the changes of a task to the changelog.

_REPEATED: Final = (
    "Spark runs the task again, up to spark.task.maxFailures times; after that the query fails and "
    "continues after its last committed micro-batch when you start it again"
)


class TaskLog:
    """
    The changes of one task.

    Attributes: `delta_bytes`: summed size of the changes.
    """

    def __init__(
        self,
        storage: FsStateChangelogStorage,
        codec: OperatorCodec,
        key_group_range: KeyGroupRange,
        checkpoint_id: int,
    ) -> None:
        self._storage = storage
        self._codec = codec
        self._range = key_group_range
        self._checkpoint_id = checkpoint_id
        self._writer: FsStateChangelogWriter | None = None
        self.delta_bytes = 0

    def append(self, changes: ChangeBatch) -> ChangeBatch:
        """Append changes as a single change set, and return them."""
        if len(changes):
            if self._writer is None:
                self._writer = self._storage.create_writer(
                    self._codec.schema.operator_id, self._range
                )
            self._writer.append_meta(self._codec.metadata_change())
            self._writer.append_batch(changes.key_groups, changes.values)
            # A change set of its own, so that no set has two changes of a variable and key group.
            self._writer.next_sequence_number()
            self.delta_bytes += changes.size_bytes
        return changes

    def persist(self) -> ChangelogStateHandle | None:
        """Make all changes durable; return their handle, or None."""
        writer = self._writer
        if writer is None:
            return None
        start = writer.initial_sequence_number()
        try:
            result = writer.persist(start, checkpoint_id=self._checkpoint_id).result()
        except UploadFailedError as error:
            raise type(error)(
                f"{error.message.removesuffix(KEPT_CHANGES).removesuffix('; ')}; {_REPEATED}",
                **error.facts,
            ) from error
        return result.job_manager_owned

    def close(self) -> None:
        """Close the writer, but keep the files that the handle from `persist` references."""
        if self._writer is not None:
            self._writer.close()

    def give_up(self) -> None:
        """Close the writer and delete all its files, because no result will reference them."""
        if self._writer is not None:
            self._writer.truncate_and_close(self._writer.initial_sequence_number())


_GIVE_UP_S: Final = 5.0
"""Longest wait of a failed task for its uploads to end, and again for their deletion."""
_POLL_S: Final = 0.005


class TaskUploads:
    """The log and the other objects that one task uploads."""

    def __init__(self, storage: FsStateChangelogStorage) -> None:
        self._storage = storage
        self._logs: list[TaskLog] = []
        self._paths: list[str] = []

    def log(
        self,
        codec: OperatorCodec,
        key_group_range: KeyGroupRange,
        checkpoint_id: int,
        inline_bytes: int,
    ) -> TaskLog:
        """Return the task's log."""
        self._storage.inline_bytes = inline_bytes
        log = TaskLog(self._storage, codec, key_group_range, checkpoint_id)
        self._logs.append(log)
        return log

    def put(self, new_path: Callable[[], str], data: Buffers) -> str:
        """Put an object and return its name; see `ObjectUploads.put`."""
        path = self._storage.objects.put(new_path, data)
        self._paths.append(path)
        return path

    def drop(self, path: str) -> None:
        """Delete an object that `put` wrote."""
        self._paths.remove(path)
        self._storage.objects.give_up([path])

    def hand_over(self) -> None:
        """Leave all objects to the driver, which learns of them from the task's result."""
        for log in self._logs:
            log.close()
        self._storage.objects.hand_over(self._paths)

    def give_up(self) -> None:
        """Delete everything that the task uploaded."""
        for log in self._logs:
            log.give_up()
        self._storage.objects.give_up(self._paths)
        # An upload that still runs may end after the deletion, so wait for it a moment.
        scheduler = self._storage.scheduler
        if isinstance(scheduler, InlineStateChangeUploadScheduler):
            until_s = time.monotonic() + _GIVE_UP_S
            while scheduler.uploads_in_flight and time.monotonic() < until_s:
                time.sleep(_POLL_S)
        self._storage.registry.close(_GIVE_UP_S)


@contextlib.contextmanager
def task_uploads(storage: FsStateChangelogStorage) -> Iterator[TaskUploads]:
    """
    Yield the uploads of a task; if the block fails, delete what was uploaded.

    The block calls `hand_over` before the task answers; after that nothing is deleted.
    """
    uploads = TaskUploads(storage)
    try:
        yield uploads
    except BaseException as error:
        close_after(error, uploads.give_up)
        raise
