"""
Replay of many changes without a Python object for any of them.

For variables whose deltas replace the whole cell (see `Kind.replaces`), the state after a replay
is, for each key, the last delta.  With keys sorted by their hash that is one pass over columns:
millions of changes a second.  Deltas of other kinds are folded one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.format.arrow_limits import joined_arrays, one_batch
from statelog.model import KeyGroupRange
from statelog.state.columnar.sorted_run import (
    RowLayout,
    SortedRun,
    build_run,
    order_of,
    run_of,
)
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.kinds.kind import OP_CLEAR, RowNumbers

Changes = list[tuple[int, pa.RecordBatch]]
"""Changes of one variable in the order of the log: key group, operations."""

_NO_ROW: Final = -1


def can_replay_columns(codec: OperatorCodec) -> bool:
    """Return whether every change of the operator replaces what was there."""
    return all(codec.states[state_id].kind.replaces for state_id in codec.live)


def replay_columns(
    layout: RowLayout,
    key_group_range: KeyGroupRange,
    table: pa.Table,
    changes: Mapping[int, Changes],
) -> SortedRun | None:
    """
    Return the state of a few key groups after *changes*.

    Returns:
        The run; None if two keys have one hash, which only a fold can tell apart.
    """
    base = one_batch(table)
    parts = {
        state_id: _Part(layout, layout.codec.states[state_id], part)
        for state_id, part in sorted(changes.items())
        if part
    }
    if not parts:
        return build_run(layout, key_group_range, table)
    key_groups = np.concatenate(
        [base.column(0).to_numpy(), *(part.key_groups for part in parts.values())]
    )
    width = layout.first_state - 1
    keys = [
        joined_arrays([base.column(1 + at), *(part.keys[at] for part in parts.values())])
        for at in range(width)
    ]
    hashes = layout.hashes(keys)
    order = order_of(key_groups, hashes, stable=True)
    if order is None:
        order = np.arange(len(hashes))
    sorted_groups, sorted_hashes = key_groups[order], hashes[order]
    again = (sorted_groups[1:] == sorted_groups[:-1]) & (sorted_hashes[1:] == sorted_hashes[:-1])
    if not _same_keys(layout, keys, order, np.flatnonzero(again)):
        return None
    first = np.flatnonzero(np.concatenate(([True], ~again))) if len(order) else order
    key_of_row = np.empty(len(order), np.int64)  # which distinct key each unsorted row has
    key_of_row[order] = np.cumsum(np.concatenate(([True], ~again))) - 1 if len(order) else order

    base_row = np.full(len(first), _NO_ROW)
    base_row[key_of_row[: base.num_rows]] = np.arange(base.num_rows)
    columns, some = [], np.zeros(len(first), np.bool_)
    start = base.num_rows
    for state_id, position in layout.columns.items():
        column = base.column(position)
        source = base_row.copy()
        part = parts.get(state_id)
        if part is not None:
            # For an index given twice, numpy keeps the last value: the last change.
            at = key_of_row[start : start + part.length]
            source[at] = np.where(part.cleared, _NO_ROW, base.num_rows + np.arange(part.length))
            start += part.length
            column = joined_arrays([column, part.cells.cast(column.type)])
        columns.append(column.take(pa.array(source, mask=source == _NO_ROW)))
        some |= columns[-1].is_valid().to_numpy(zero_copy_only=False)
    chosen = pa.array(order[first])
    whole = [pa.array(sorted_groups[first], pa.int32()), *(key.take(chosen) for key in keys)]
    whole += columns
    new_hashes = sorted_hashes[first]
    if not some.all():
        keep = pa.array(some)
        whole, new_hashes = [column.filter(keep) for column in whole], new_hashes[some]
    return run_of(layout, key_group_range, whole, new_hashes)


class _Part:
    """The changes of one variable, as columns."""

    def __init__(self, layout: RowLayout, state: StateCodec, changes: Changes) -> None:
        batch = one_batch(pa.Table.from_batches([part for _, part in changes]))
        counts = [part.num_rows for _, part in changes]
        key_groups = np.array([key_group for key_group, _ in changes], np.int32)
        self.key_groups: npt.NDArray[np.int32] = np.repeat(key_groups, counts)
        self.length = batch.num_rows
        width = layout.first_state - 1
        self.keys = batch.columns[:width]
        self.cleared = batch.column(width).to_numpy() == OP_CLEAR
        self.cells = state.kind.operation_cells(batch.columns[width + 1 :], state.entry_fields())


def _same_keys(
    layout: RowLayout, keys: Sequence[pa.Array], order: RowNumbers, again: RowNumbers
) -> bool:
    """Return whether each row at *again* and its next row have one key."""
    if not len(again):
        return True
    before, after = pa.array(order[again]), pa.array(order[again + 1])
    left = [column.take(before) for column in keys]
    right = [column.take(after) for column in keys]
    if layout.codec.key.is_plain:
        return all(
            left_column.equals(other) for left_column, other in zip(left, right, strict=True)
        )
    # As tables see them: all NaNs are one key, and both zeros.
    return layout.codec.key.decode(left) == layout.codec.key.decode(right)
