"""
The rows of all tasks of a micro-batch as changes, one for each key, in one checkpoint, exactly once.

The checkpoint records the last micro-batch of each writer.  A micro-batch that Spark repeats is one
whose number is recorded already, and changes nothing.  A process that Spark has replaced, or another
query that writes to the table, is fenced by the claim, and its commit is tried again on what the other
has committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.checkpoint.batch_record import WRITERS_PROPERTY, BatchRecord, OperatorRecord
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.history import Entries
from statelog.checkpoint.ownership import new_owner_id
from statelog.errors import FencedError, StoreError, UsageError
from statelog.model import (
    ChangeBatch,
    CompletedCheckpoint,
    JsonObject,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
)
from statelog.model.checkpoint import covered_checkpoints
from statelog.operations.change_writer import ChangeWriter, put_snapshot, snapshot_of
from statelog.runtime.clock import wall_clock_ms
from statelog.runtime.fail_points import fail_point
from statelog.spark.rows.key_order import KeyOrder, key_order
from statelog.spark.table.options import ROW, TableColumns, TableOptions
from statelog.spark.table.parts import TablePart
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.values import KeyCodec
from statelog.state.kinds.kind import OP_CLEAR, OP_SET
from statelog.state.reader import StateReader
from statelog.state.schema.descriptors import OperatorStateSchema
from statelog.state.schema.evolution import evolve
from statelog.store import LocationStore, open_location

RowNumbers = npt.NDArray[np.int64]
_NAMED_GROUPS: Final = 5
"""Keys that an error names."""

_ATTEMPTS: Final = 10
_PIECES: Final = 8
"""A snapshot is of one such part of the key groups, so that no single commit writes the whole table."""
_LOG_LENGTH: Final = 32
_LOG_BYTES: Final = 16 * 1024 * 1024


def changes_of(
    tables: Sequence[pa.Table], columns: TableColumns, codec: OperatorCodec
) -> tuple[ChangeBatch, int]:
    """
    Return the changes that rows make, and their number.

    Args:
        tables: The rows of each task, see `TablePart`.
        columns: The frame's columns.
        codec: The table's codec, whose row may have more columns than the frame.

    Raises:
        UsageError: A key has several rows, and nothing says which of them counts.
    """
    if not tables:
        return ChangeBatch(np.empty(0, np.int32), pa.array([], pa.binary())), 0
    rows = pa.concat_tables(tables).combine_chunks().to_batches()[0]
    groups = rows.column(0).to_numpy().astype(np.int32)
    key_names = columns.schema.key_schema.names
    key_schema = columns.schema.key_schema
    keys = KeyCodec(key_schema).uniform([rows.column(name) for name in key_names])
    order = key_order(groups, keys, KeyCodec(key_schema))
    winners = _winners(rows, order, columns)
    taken = rows.take(pa.array(winners))
    state_id = codec.schema.state_id(ROW)
    schema: pa.Schema = codec.states[state_id].schema
    gone = np.zeros(len(winners), np.bool_)
    if columns.delete is not None:
        gone = taken.column(columns.delete).fill_null(False).to_numpy(zero_copy_only=False)
    arrays: list[pa.Array] = []
    for field in schema:
        prefix, _, name = field.name.partition(".")
        if field.name == "op":
            arrays.append(pa.array(np.where(gone, OP_CLEAR, OP_SET).astype(np.int8)))
        elif prefix == "key":
            # The table's key may have other names than the frame's.
            at = codec.key.schema.get_field_index(name)
            arrays.append(keys[at].take(pa.array(winners)).cast(field.type))
        elif name in taken.schema.names:
            arrays.append(taken.column(name).cast(field.type))
        else:
            arrays.append(pa.nulls(len(winners), field.type))
    operations = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return codec.encode_operations(state_id, groups[winners], operations), len(winners)


def _winners(rows: pa.RecordBatch, order: KeyOrder, columns: TableColumns) -> RowNumbers:
    """Return for each key the number of the row that counts."""
    counts = np.diff(order.bounds)
    if (counts == 1).all():
        return order.rows
    parents = np.empty(rows.num_rows, np.int64)
    parents[order.rows] = np.repeat(np.arange(len(counts)), counts)
    several = np.flatnonzero(counts > 1).tolist()
    if columns.sequence is None:
        groups = [order.rows[order.bounds[key] : order.bounds[key + 1]] for key in several]
        _check_equal(rows, groups, columns)
        return order.firsts
    by_sequence = _in_sequence(parents, rows.column(columns.sequence))
    ends = np.cumsum(counts)
    winners: RowNumbers = by_sequence[ends - 1].astype(np.int64)
    sequence = rows.column(columns.sequence)
    tied = (
        _last_tied(by_sequence[ends[key] - counts[key] : ends[key]].tolist(), sequence)
        for key in several
    )
    _check_equal(rows, [group for group in tied if len(group) > 1], columns)
    return winners


def _last_tied(numbers: Sequence[int], sequence: pa.Array) -> Sequence[int]:
    """Return the rows, of some in order, that have the greatest value of the sequence."""
    greatest = repr(sequence[numbers[-1]].as_py())
    first = len(numbers) - 1
    while first and repr(sequence[numbers[first - 1]].as_py()) == greatest:
        first -= 1
    return numbers[first:]


def _in_sequence(parents: RowNumbers, sequence: pa.Array) -> RowNumbers:
    """Return the numbers of the rows by key and sequence, nulls and then NaNs first."""
    rank = pa.compute.if_else(sequence.is_valid(), pa.scalar(2, pa.int8()), pa.scalar(0, pa.int8()))
    if pa.types.is_floating(sequence.type):
        rank = pa.compute.subtract(rank, sequence.is_nan().fill_null(False).cast(pa.int8()))
    table = pa.table({"parent": parents, "rank": rank, "sequence": sequence})
    keys = [(name, "ascending") for name in table.column_names]
    ordered: RowNumbers = pa.compute.sort_indices(table, sort_keys=keys).to_numpy()
    return ordered


def _check_equal(
    rows: pa.RecordBatch, groups: Iterable[Sequence[int] | RowNumbers], columns: TableColumns
) -> None:
    """Raise `UsageError` for groups of rows of one key, of which any may count, that differ."""
    different = []
    for group in groups:
        numbers = [int(number) for number in group]
        texts = {_row(rows, number) for number in numbers}
        if len(texts) > 1:
            different.append(numbers)
    if different:
        raise _ambiguous(rows, different, columns)


def _row(rows: pa.RecordBatch, number: int) -> str:
    # As text, in which NaN equals itself.
    return repr(rows.slice(number, 1).to_pylist())


def _ambiguous(
    rows: pa.RecordBatch, groups: Sequence[Sequence[int]], columns: TableColumns
) -> UsageError:
    names, sequence = columns.schema.key_schema.names, columns.sequence
    texts = []
    for group in groups[:_NAMED_GROUPS]:
        key = tuple(rows.column(name)[group[0]].as_py() for name in names)
        at = "" if sequence is None else f" and {sequence} {rows.column(sequence)[group[0]]}"
        texts.append(f"{key!r:.100}{at}")
    which = f"the key {texts[0]}"
    if len(groups) > 1:
        rest = "" if len(groups) <= _NAMED_GROUPS else f"; and {len(groups) - _NAMED_GROUPS} more"
        which = f"each of {len(groups)} keys: {'; '.join(texts)}{rest}"
    how = (
        "set the option sequenceBy to a column that orders them"
        if sequence is None
        else f"{sequence} does not order them, so order them by another column"
    )
    return UsageError(
        f"the micro-batch has several different rows with {which}; {how}, or reduce the frame to one "
        "row for each key"
    )


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
            clock_ms=wall_clock_ms,
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
        return evolve(stored, schema, now_ms=wall_clock_ms())

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
            location="",
            timeline=0,
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
