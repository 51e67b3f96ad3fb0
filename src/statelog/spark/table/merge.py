"""The rows of all tasks of a micro-batch as changes, one for each key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

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
_NAMED_GROUPS: Final = 5
"""Keys that an error names."""


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


__all__ = ["GROUP_COLUMN", "changes_of"]
