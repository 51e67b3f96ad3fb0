"""The view "changes": reads the changes in checkpoints as a batch or a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from statelog.checkpoint.history import Entries
from statelog.checkpoint.listing import checkpoint_id_of
from statelog.checkpoint.restore import check_continues, find_checkpoint
from statelog.checkpoint.tags import ReaderPosition
from statelog.errors import CheckpointError, UsageError
from statelog.extensions.read.changes import feed_of
from statelog.extensions.spark_source.readers import Location, spark_batch
from statelog.model import CheckpointPosition, CompletedCheckpoint, KeyGroupRange
from statelog.runtime.clock import wall_clock_ms
from statelog.spark.rows.spark_versions import AvailableNow, limit_of, read_limit
from statelog.state.reader.checkpoint_chain import chain_before
from statelog.store import ObjectStore

_Offset = dict[str, int | str]
"""An offset of the stream: the number of a checkpoint, for people, and its position."""
_NUMBER: Final = "checkpoint"
_POSITION: Final = "position"
_STARTING: Final = ".start"
"""Suffix of the tag that pins the checkpoint from which a new reader starts."""
_BEFORE_ALL: Final[_Offset] = {_NUMBER: -1}
"""The offset before the whole state was read."""


def _offset_of(checkpoint: CompletedCheckpoint) -> _Offset:
    """Return the offset that ends after a checkpoint."""
    return {_NUMBER: checkpoint.checkpoint_id, _POSITION: checkpoint.position.to_text()}


def _position_in(offset: _Offset) -> CheckpointPosition:
    """Return the checkpoint after which an offset ends."""
    if _POSITION not in offset:
        raise UsageError(
            f"the stream's offset {offset} does not contain a position: a different version "
            "of statelog wrote it. Start again with a new checkpointLocation"
        )
    return CheckpointPosition.from_text(str(offset[_POSITION]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRead:
    """
    The parameters of a read of changes.

    Args:
        location: Where the state is.
        operator: Name of the operator.
        variable: The only variable; None for all.
        ranges: The key groups of each partition.
        columns: The columns of the feed.
    """

    location: Location
    operator: str
    variable: str | None
    ranges: Sequence[KeyGroupRange]
    columns: pa.Schema


class ChangesPart(InputPartition):
    """The changes to some key groups after one checkpoint, up to a later one."""

    def __init__(self, after: int | str | None, upto: int | str, key_groups: KeyGroupRange) -> None:
        super().__init__((after, upto, key_groups))


class ChangeRows(DataSourceReader):
    """Reads the changes between two checkpoints."""

    def __init__(self, read: ChangesRead, target: pa.Schema, after: int | None, upto: int) -> None:
        self._read = read
        self._target = target
        self._between = after, upto

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per range of key groups."""
        return [ChangesPart(*self._between, key_range) for key_range in self._read.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition."""
        return read_part(self._read, self._target, partition)


class ChangeStream(DataSourceStreamReader, AvailableNow):
    """
    Follows the changes of a location.

    An offset is the checkpoint up to which was read, with its position: a location that was made
    again, or restored from a backup, has other checkpoints of the same numbers.  Spark 4.0 and 4.1
    do not tell a source where the next micro-batch begins, so it is remembered here.
    """

    def __init__(
        self,
        read: ChangesRead,
        target: pa.Schema,
        *,
        start: int | None,
        limit: int | None,
        reader: tuple[str, int] | None,
    ) -> None:
        self._read = read
        self._target = target
        self._start = start
        self._limit = limit
        self._reader = reader
        self._begin: _Offset | None = None
        self._last: CompletedCheckpoint | None = None

    def initialOffset(self) -> _Offset:
        """Return the start of a new query, which is the reader's position if there is one."""
        position = self._position()
        newest = None if position is None else position.current()
        begin = newest if newest is not None else self._start
        if position is not None and begin is not None:
            position.move(begin)
        self._begin = _BEFORE_ALL
        if begin is not None:
            self._begin = _offset_of(find_checkpoint(self._store(), begin))
        return self._begin

    def getDefaultReadLimit(self) -> Any:
        """Return the limit that `maxCheckpointsPerTrigger` sets."""
        return read_limit(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the newest checkpoint as the end of the query."""
        self._last = find_checkpoint(self._store())

    def latestOffset(self, start: _Offset | None = None, limit: object = None) -> _Offset:
        """Return the last checkpoint that the next micro-batch reads."""
        begin = self._begin if start is None else start
        most = self._limit if limit is None else limit_of(limit)
        last = find_checkpoint(self._store()) if self._last is None else self._last
        end = _offset_of(last)
        if begin is not None and begin != _BEFORE_ALL:
            position = _position_in(begin)
            with self._behind(position.checkpoint_id):
                check_continues(self._store(), last, position)
            if position == last.position:
                return begin
            if most is not None:
                chain = self._chain(position, last.checkpoint_id)
                end = _offset_of(chain[min(most, len(chain)) - 1])
        elif (starting := self._position(_STARTING)) is not None:
            # Until the whole state was processed, nothing but this keeps it.
            starting.move(last.checkpoint_id)
        self._begin = end
        return end

    def reportLatestOffset(self) -> _Offset | None:
        """Return the newest checkpoint for the query's progress."""
        return _offset_of(find_checkpoint(self._store()))

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        """Return one partition per range of key groups."""
        self._begin = end
        if start == end:
            return []
        upto = _position_in(end)
        self._check_stored(upto)
        after: str | None = None
        if start != _BEFORE_ALL:
            position = _position_in(start)
            self._chain(
                position, upto.checkpoint_id
            )  # a clear error now, instead of one of each task
            after = position.to_text()
        last = upto.to_text()
        return [ChangesPart(after, last, key_range) for key_range in self._read.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition."""
        return read_part(self._read, self._target, partition)

    def commit(self, end: _Offset) -> None:
        """Advance the reader's position, because everything up to *end* was processed."""
        position = self._position()
        if position is not None and end != _BEFORE_ALL:
            upto = _position_in(end)
            self._check_stored(upto)
            with self._behind(upto.checkpoint_id):
                position.move(upto.checkpoint_id)
            if (starting := self._position(_STARTING)) is not None:
                starting.remove()

    def _chain(self, after: CheckpointPosition, upto: int) -> list[CompletedCheckpoint]:
        """Return the checkpoints after *after* up to *upto*."""
        store = self._store()
        with self._behind(after.checkpoint_id):
            # Its state is where the changes begin.
            check_continues(store, find_checkpoint(store, after.checkpoint_id), after)
            last = find_checkpoint(store, upto)
            return [*chain_before(store, last, after.checkpoint_id)[1:], last]

    def _check_stored(self, position: CheckpointPosition) -> None:
        """Check that a planned checkpoint belongs to the location's current history."""
        with self._behind(position.checkpoint_id):
            checkpoint_id_of(self._store(), position.to_text())

    @contextmanager
    def _behind(self, after: int) -> Iterator[None]:
        """Raise an error that explains how to proceed when the stream cannot continue."""
        try:
            yield
        except CheckpointError as error:
            if error.reason not in ("subsumed", "not_found", "not_newer"):
                raise
            location = self._store()
            newest = Entries(location).newest()
            newest_text = ""
            if newest is not None:
                newest_text = f"; the newest checkpoint is {newest.checkpoint_id}"
            name = "the stream"
            anew = "with a new checkpointLocation"
            keep = "name it with the option reader"
            if self._reader is not None:
                name = f"the reader {self._reader[0]!r}"
                anew = f"{anew} and a new name"
                keep = f"raise readerMaxCheckpoints, which is {self._reader[1]}"
            raise CheckpointError(
                f"{name} has read up to checkpoint {after} of {location.url} and cannot continue from "
                f"there{newest_text}. Start again {anew}; to keep checkpoints until they are read, "
                f"{keep}. ({error})",
                reason=error.reason,
                checkpoint_id=after,
            ) from error

    def _store(self) -> ObjectStore:
        # Opened for each call: Spark sends this object to tasks.
        return self._read.location.open().store

    def _position(self, suffix: str = "") -> ReaderPosition | None:
        if self._reader is None:
            return None
        name, newest = self._reader
        return ReaderPosition(
            store=self._store(),
            name=name + suffix,
            newest=newest,
            clock_ms=wall_clock_ms,
        )


def read_part(
    read: ChangesRead, target: pa.Schema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a partition."""
    after, upto, key_groups = partition.value
    with read.location.open(read.operator) as state:
        for batch in feed_of(state, after, upto, read.variable, key_groups):
            if batch.schema.names != read.columns.names or batch.schema.types != read.columns.types:
                number = upto
                if isinstance(upto, str):
                    number = CheckpointPosition.from_text(upto).checkpoint_id
                raise CheckpointError(
                    f"the state schema of operator {read.operator} changed with checkpoint {number} of "
                    f"{state.store.url} or earlier: restart the query to get the new columns",
                    reason="incompatible",
                    checkpoint_id=number,
                )
            yield spark_batch(batch, target)
