"""
State in columns: each key has a slot, each variable a column of cells.

    keys           the distinct keys of some rows, and the types in which a processor gets columns
    slot_index     keys -> slots, and the keys in columns
    entry_heap     entries in columns, found by position; cell_column: the position of each slot's cell
    cold_runs      keys beyond the memory budget
    slot_table     cells of all variables, and their rows in a snapshot; slot_state: the cache of a worker
    column_state   what a columnar processor holds
"""

from statelog.state.slots.column_state import ColumnState, ColumnTimers, columns_of, table_of
from statelog.state.slots.keys import Keys, known_zone, zoned_table
from statelog.state.slots.slot_index import SlotIndex
from statelog.state.slots.slot_state import SlotState
from statelog.state.slots.slot_table import SlotTable, snapshot_of

__all__ = [
    "ColumnState",
    "ColumnTimers",
    "Keys",
    "SlotIndex",
    "SlotState",
    "SlotTable",
    "columns_of",
    "known_zone",
    "snapshot_of",
    "table_of",
    "zoned_table",
]
