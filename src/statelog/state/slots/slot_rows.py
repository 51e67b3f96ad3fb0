"""The rows of slots in the columns of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from statelog.model import KeyGroupRange
from statelog.state.columnar.sorted_run import group_order
from statelog.state.columnar.whole_table import without_expired
from statelog.state.encoding.snapshot_file import parquet_of
from statelog.state.heap.expiry import CLOCK_STEP_MS
from statelog.state.heap.memory import blocks
from statelog.state.kinds.kind import RowNumbers

if TYPE_CHECKING:
    from statelog.state.slots.slot_table import SlotTable


def snapshot_of(table: SlotTable, key_group_range: KeyGroupRange, now_ms: int) -> bytes:
    """Return the state with what is pending as Parquet, in the layout of `write_snapshot`."""
    key_groups = table.index.all_key_groups
    order = group_order(key_groups)
    grouped = key_groups[order]

    def tables() -> Iterator[pa.Table]:
        for part in blocks(key_group_range):
            start, stop = np.searchsorted(grouped, [part.start, part.end + 1]).tolist()
            yield whole_rows(table, order[start:stop], part, now_ms)

    return parquet_of(tables())


def whole_rows(table: SlotTable, slots: RowNumbers, part: KeyGroupRange, now_ms: int) -> pa.Table:
    """Return the rows of some key groups: those of slots, ascending, and the cold ones."""
    hot = slot_rows(table, slots, now_ms)
    cold = [without_expired(table.layout, one, now_ms) for one in table.cold.table(part)]
    if not any(one.num_rows for one in cold):
        return hot
    rows = pa.concat_tables([hot, *cold]).combine_chunks()
    return rows.take(pa.array(group_order(rows.column(0).to_numpy())))


def slot_rows(table: SlotTable, slots: RowNumbers, now_ms: int) -> pa.Table:
    """Return the cells of slots in the columns of a snapshot, without what expired long ago."""
    until_ms = now_ms - CLOCK_STEP_MS
    found = {
        state_id: column.live(slots, until_ms) if now_ms >= 0 else column.positions(slots)
        for state_id, column in table.columns.items()
    }
    some = np.zeros(len(slots), np.bool_)
    for positions in found.values():
        some |= positions >= 0
    slots = slots[some]
    arrays = [pa.array(table.index.key_groups(slots), pa.int32()), *table.index.keys(slots)]
    for state_id, positions in found.items():
        column, kept = table.columns[state_id], positions[some]
        columns = column.heap.take(kept)
        if column.is_timers:
            arrays.append(columns[0])
            continue
        fields = column.state.entry_fields()
        missing = pa.array(kept < 0)
        arrays.append(pa.StructArray.from_arrays(columns, fields=fields, mask=missing))
    schema = table.layout.table_schema
    cast = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
    return pa.Table.from_arrays(cast, schema=schema)
