"""The state of some key groups as one table in the layout of a snapshot, from runs and dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from statelog.model import KeyGroupRange
from statelog.state.columnar.sorted_run import RowLayout, SortedRun, group_order, one_batch
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN, snapshot_table
from statelog.state.heap.expiry import CLOCK_STEP_MS
from statelog.state.heap.tables import KeyGroupState, Overlay


def whole_table(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    runs: Iterable[tuple[SortedRun, KeyGroupRange]],
    overlays: Mapping[int, Overlay],
    key_group_range: KeyGroupRange,
    *,
    now_ms: int,
) -> pa.Table:
    """
    Return all state of these key groups, sorted by key group.

    The columns are those of a snapshot.

    Args:
        layout: The columns.
        groups: The dict tables.
        runs: The runs, and which of their key groups to take.
        overlays: Deltas on top; their keys have been moved out of the runs.
        key_group_range: Which key groups.
        now_ms: What expired long before is left out; -1 keeps everything.
    """
    parts = [without_expired(layout, run.live_table(part), now_ms) for run, part in runs]
    parts.append(snapshot_table(layout.codec, groups, overlays, key_group_range, now_ms=now_ms))
    filled = [part for part in parts if part.num_rows]
    table = pa.concat_tables(filled or parts[-1:])
    if len(filled) > 1:
        order = group_order(table.column(KEY_GROUP_COLUMN).to_numpy())
        table = table.combine_chunks().take(pa.array(order))
    return table


def without_expired(layout: RowLayout, table: pa.Table, now_ms: int) -> pa.Table:
    """Return rows without what expired long before *now_ms*; -1 keeps everything."""
    states = [(at, layout.codec.states[state_id]) for state_id, at in layout.columns.items()]
    if now_ms < 0 or not any(state.expires for _, state in states):
        return table
    batch = one_batch(table)
    columns = list(batch.columns)
    some = np.zeros(batch.num_rows, np.bool_)
    for at, state in states:
        if state.expires:
            columns[at] = state.kind.live_column(columns[at], now_ms - CLOCK_STEP_MS)
        some |= columns[at].is_valid().to_numpy(zero_copy_only=False)
    live = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    return pa.Table.from_batches([live if some.all() else live.filter(pa.array(some))])
