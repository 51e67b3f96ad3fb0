"""
The changes of a micro-batch as one checkpoint, exactly once.

The checkpoint records the last micro-batch of each writer.  A micro-batch that Spark repeats is one
whose number is recorded already, and changes nothing.  A process that Spark has replaced, or another
query that writes to the table, is fenced by the claim, and its commit is tried again on what the other
has committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from statelog.checkpoint.batch_record import WRITERS_PROPERTY, BatchRecord, OperatorRecord
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.history import Entries
from statelog.checkpoint.ownership import new_owner_id
from statelog.errors import FencedError, StoreError, UsageError
from statelog.model import (
    CompletedCheckpoint,
    JsonObject,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
)
from statelog.model.checkpoint import covered_checkpoints
from statelog.operations.change_writer import ChangeWriter, put_snapshot, snapshot_of
from statelog.runtime.clock import wall_clock_seconds
from statelog.runtime.fail_points import fail_point
from statelog.spark.table.merge import changes_of
from statelog.spark.table.options import ROW, TableColumns, TableOptions
from statelog.spark.table.parts import TablePart
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.reader import StateReader
from statelog.state.schema.descriptors import OperatorStateSchema
from statelog.state.schema.evolution import evolve
from statelog.store import LocationStore, open_location

_ATTEMPTS: Final = 10
_PIECES: Final = 8
"""A snapshot is of one such part of the key groups, so that no single commit writes the whole table."""
_LOG_LENGTH: Final = 32
_LOG_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TableBatch:
    """
    A micro-batch, or a batch.

    Args:
        writer: Name of the writer.
        batch_id: Its number; 0 for a batch.
        parts: What the tasks have written.
        is_stream: Whether the micro-batch may be repeated, so that its number is remembered.
    """

    writer: str
    batch_id: int
    parts: Sequence[TablePart]
    is_stream: bool = True


def commit_batch(options: TableOptions, columns: TableColumns, batch: TableBatch) -> int | None:
    """
    Commit a micro-batch, unless it is committed already.

    Returns:
        The checkpoint; None if the micro-batch was committed before.

    Raises:
        UsageError: The frame has another key than the table, or a key has several rows.
        CheckpointError: The location holds other state, or its schema cannot become the frame's.
        FencedError: Other writers commit too often; Spark repeats the micro-batch.
        StoreError: The store failed; Spark repeats the micro-batch.

    Blocks: On the store.
    """
    store = open_location(options.path, options=dict(options.store))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            done = _Commit(store, options, columns, batch).run()
            delete_parts(options, batch.parts)
            return done
        except FencedError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def delete_parts(options: TableOptions, parts: Sequence[TablePart]) -> None:
    """Delete what tasks have written; what remains is deleted by garbage collection."""
    paths = [part.handle.path for part in parts if part.handle is not None]
    if paths:
        with contextlib.suppress(StoreError):
            open_location(options.path, options=dict(options.store)).delete(paths)


def table_groups(options: TableOptions) -> int:
    """
    Return the number of key groups of a table; for a new one the options'.

    Blocks: On the store.
    """
    newest = Entries(open_location(options.path, options=dict(options.store))).newest()
    return options.maxParallelism if newest is None else newest.max_parallelism


class _Commit:
    """One attempt to commit."""

    def __init__(
        self,
        store: LocationStore,
        options: TableOptions,
        columns: TableColumns,
        batch: TableBatch,
    ) -> None:
        self._store, self._options = store, options
        self._columns, self._batch = columns, batch

    def run(self) -> int | None:
        """Claim the table, and commit the micro-batch."""
        batch = self._batch
        groups = table_groups(self._options)
        coordinator = CheckpointCoordinator(
            self._store,
            owner_id=new_owner_id("table"),
            max_parallelism=groups,
            options=self._options.checkpoints,
            clock_ms=lambda: int(wall_clock_seconds() * 1000),
        )
        coordinator.claim()
        base = coordinator.restore()
        writers = writers_of(base)
        if writers.get(batch.writer, -1) >= batch.batch_id:
            return None
        codec = OperatorCodec(self._schema(base))
        everything = KeyGroupRange(0, groups - 1)
        checkpoint_id = coordinator.next_checkpoint_id
        tables = [part.table(self._store) for part in batch.parts if part.rows]
        changes, keys = changes_of(tables, self._columns, codec)
        fail_point("table-before-log")
        with contextlib.closing(ChangeWriter(self._store, codec, everything)) as log:
            log.append_changes(changes)
            handle = log.persist(checkpoint_id)
            snapshot = None if base is None else self._snapshot(base)
            coordinator.trigger(checkpoint_id, [everything])
            coordinator.acknowledge(checkpoint_id, TaskStateSnapshot(everything, handle, snapshot))
            record = self._record(codec.schema, keys, log.delta_bytes)
            properties: JsonObject = {
                **record.to_properties(),
                WRITERS_PROPERTY: {
                    **writers,
                    **({batch.writer: batch.batch_id} if batch.is_stream else {}),
                },
            }
            fail_point("table-before-commit")
            coordinator.complete(checkpoint_id, properties=properties)
        fail_point("table-after-commit")
        with contextlib.suppress(StoreError):  # the next clean-up deletes the rest
            coordinator.clean_up()
        return checkpoint_id

    def _schema(self, base: CompletedCheckpoint | None) -> OperatorStateSchema:
        """Return the table's schema with the columns of the frame."""
        schema = self._columns.schema
        if base is None:
            return schema
        record = BatchRecord.of(base)
        stored = OperatorStateSchema.from_json(record.operators[0].schema)
        names = [state.name for state in stored.states if not state.dropped]
        if len(record.operators) != 1 or names != [ROW]:
            raise UsageError(
                f"{self._store.url} holds the state of {record.operators[0].operator_id}, which is no "
                "keyed table; give another location"
            )
        if stored.key_schema.names != schema.key_schema.names:
            raise UsageError(
                f"the table {self._store.url} has the key {', '.join(stored.key_schema.names)}, not "
                f"{', '.join(schema.key_schema.names)}"
            )
        # Columns that the frame lacks are kept, with nulls in the rows that it upserts.
        row = schema.states[0].value_schema
        before = stored.states[stored.state_id(ROW)].value_schema
        lacking = [field for field in before if field.name not in row.names]
        whole = replace(schema.states[0], value_schema=pa.schema([*row, *lacking]))
        schema = replace(schema, states=(whole,))
        return evolve(stored, schema, now_ms=int(wall_clock_seconds() * 1000))

    def _record(self, schema: OperatorStateSchema, keys: int, delta_bytes: int) -> BatchRecord:
        rows = sum(part.rows for part in self._batch.parts)
        operator = OperatorRecord(
            operator_id=schema.operator_id,
            schema=schema.to_json(),
            rows=rows,
            keys=keys,
            output_rows=0,
            state_entries=0,
        )
        return BatchRecord(
            operators=(operator,),
            query_id=self._batch.writer,
            batch_id=self._batch.batch_id,
            tasks=len(self._batch.parts),
            delivery="staged",
            time_mode="none",
            now_ms=-1,
            delta_bytes=delta_bytes,
            output_bytes=0,
            output_files=[],
        )

    def _snapshot(self, base: CompletedCheckpoint) -> MaterializedHandle | None:
        """Write a snapshot of a part of the base, if the log after the snapshots is long."""
        stored = sum(max(each.handle.size_bytes, 0) for each in base.materialized)
        size = sum(each.size_bytes for each in base.log)
        if len(base.log) < _LOG_LENGTH and size < max(_LOG_BYTES, stored):
            return None
        covered = covered_checkpoints(base.materialized, base.max_parallelism)
        pieces = KeyGroupRange(0, base.max_parallelism - 1).split(
            min(_PIECES, base.max_parallelism)
        )
        oldest = [int(np.min(covered[each.start : each.end + 1])) for each in pieces]
        piece = pieces[oldest.index(min(oldest))]
        with StateReader(self._store, base) as reader:
            data = snapshot_of(reader, piece)
        return put_snapshot(self._store, data, piece, base.checkpoint_id)


def writers_of(base: CompletedCheckpoint | None) -> Mapping[str, int]:
    """Return the last micro-batch of each writer of a table."""
    writers = None if base is None else base.properties.get(WRITERS_PROPERTY)
    if not isinstance(writers, Mapping):
        return {}
    return {str(name): int(number) for name, number in writers.items()}  # type: ignore[arg-type]
