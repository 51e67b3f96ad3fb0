"""The rows of all tasks of a micro-batch as changes, one for each key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import UsageError
from statelog.model import ChangeBatch
from statelog.spark.rows.key_order import KeyOrder, key_order
from statelog.spark.table.options import ROW, TableColumns
from statelog.spark.table.parts import GROUP_COLUMN
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.values import KeyCodec
from statelog.state.kinds.kind import OP_CLEAR, OP_SET

RowNumbers = npt.NDArray[np.int64]


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
    wanted = columns.schema.key_schema
    keys = [rows.column(name).cast(wanted.field(name).type) for name in key_names]
    order = key_order(groups, keys, KeyCodec(wanted))
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
    if columns.sequence is None:
        _check_equal(rows, order, columns, np.flatnonzero(counts > 1))
        return order.firsts
    by_sequence = _in_sequence(parents, rows.column(columns.sequence))
    ends = np.cumsum(counts)
    winners: RowNumbers = by_sequence[ends - 1].astype(np.int64)
    sequence = rows.column(columns.sequence)
    several = np.flatnonzero(counts > 1)
    for key in several.tolist():
        last, before = int(by_sequence[ends[key] - 1]), int(by_sequence[ends[key] - 2])
        if sequence[last] == sequence[before] and _row(rows, last) != _row(rows, before):
            raise _ambiguous(rows, last, columns)
    return winners


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
    rows: pa.RecordBatch, order: KeyOrder, columns: TableColumns, keys: RowNumbers
) -> None:
    for key in keys.tolist():
        mine = order.rows[order.bounds[key] : order.bounds[key + 1]].tolist()
        if any(_row(rows, one) != _row(rows, mine[0]) for one in mine[1:]):
            raise _ambiguous(rows, mine[0], columns)


def _row(rows: pa.RecordBatch, number: int) -> str:
    # As text, in which NaN equals itself.
    return repr(rows.slice(number, 1).to_pylist())


def _ambiguous(rows: pa.RecordBatch, number: int, columns: TableColumns) -> UsageError:
    names = columns.schema.key_schema.names
    key = tuple(rows.column(name)[number].as_py() for name in names)
    how = (
        "set the option sequenceBy to a column that orders them"
        if columns.sequence is None
        else f"they have the same {columns.sequence}, so order them by another column"
    )
    return UsageError(
        f"the micro-batch has several different rows with the key {key!r:.100}; {how}, or reduce the "
        "frame to one row for each key"
    )


__all__ = ["GROUP_COLUMN", "changes_of"]
