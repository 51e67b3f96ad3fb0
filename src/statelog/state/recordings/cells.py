"""
The state of some keys as Arrow columns, in the layout of a snapshot.

One row per key: `key_group`, `key.<name>`, then one column for each state variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from statelog.format.arrow_limits import one_array
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.heap.tables import KeyGroupState, Overlay
from statelog.state.kinds import Key

Cells: TypeAlias = dict[int, Any]
"""State id -> cell of one key; a variable without state is left out."""


def cells_of(group: KeyGroupState, key: Key) -> Cells:
    """Return the cells of *key* in the tables of its key group."""
    return {state_id: table[key] for state_id, table in enumerate(group.tables) if key in table}


def cells_after(cells: Cells, overlay: Overlay, key: Key, group: KeyGroupState) -> Cells:
    """Return the cells of a key with its deltas folded in; *cells* and *overlay* stay as they are."""
    after = dict(cells)
    for state_id, deltas in enumerate(overlay):
        if key not in deltas:
            continue
        rules = group.kinds[state_id].rules
        table = rules.new_table()
        if state_id in cells:
            rules.insert_cells({0: table}, [(0, key, cells[state_id])])
        merged = rules.merge(table, {key: deltas[key]})
        after.pop(state_id, None)
        if key in merged:
            after[state_id] = merged[key]
    return after


def entry_count(cells: Cells) -> int:
    """Return the number of entries in cells: list elements, map entries, timers, values."""
    return sum(len(cell) for cell in cells.values())


def cells_table(
    codec: OperatorCodec, key_groups: Sequence[int], keys: Sequence[Key], cells: Sequence[Cells]
) -> pa.Table:
    """Return the cells of some keys as a table."""
    arrays = [pa.array(key_groups, pa.int32()), *codec.key.encode(keys)]
    names = [KEY_GROUP_COLUMN, *(f"key.{name}" for name in codec.schema.key_schema.names)]
    for state_id in codec.live:
        state = codec.states[state_id]
        arrays.append(state.encode_cells([cell.get(state_id) for cell in cells]))
        names.append(state.descriptor.name)
    return pa.Table.from_arrays(arrays, names=names)


def cells_in(codec: OperatorCodec, schema: bytes, table: pa.Table) -> list[Cells]:
    """Return the cells of each row of a table of `cells_table`."""
    written = codec.written_by(schema)
    by_row: list[Cells] = [{} for _ in range(table.num_rows)]
    for state, state_id in zip(written.codecs, written.present_ids, strict=True):
        if state is None or state.descriptor.name not in table.column_names:
            continue
        column = one_array(table.column(state.descriptor.name))
        for cells, cell in zip(by_row, state.decode_cells(column), strict=True):
            if cell:
                cells[state_id] = cell
    return by_row
