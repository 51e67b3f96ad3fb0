"""
State in columns: each key has a slot, and each variable has a column of cells.

    keys           the distinct keys of some rows, and the types in which a processor gets columns
    cell_column    the position of each slot's cell in a heap of entries
    cold_runs      keys beyond the memory budget
    slot_table     cells of all variables, and their rows in a snapshot; slot_state: the cache of a worker
    column_state   what a columnar processor holds
"""

from statelog.extensions.columns.slots.column_state import ColumnState, ColumnTimers, columns_of
from statelog.extensions.columns.slots.keys import Keys, zoned_table
from statelog.extensions.columns.slots.slot_state import SlotState
from statelog.extensions.columns.slots.slot_table import SlotTable, snapshot_of

__all__ = [
    "ColumnState",
    "ColumnTimers",
    "Keys",
    "SlotState",
    "SlotTable",
    "columns_of",
    "snapshot_of",
    "zoned_table",
]
