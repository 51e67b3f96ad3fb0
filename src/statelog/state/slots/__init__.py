"""
Keys to slots: the row of state columns that each key has.

A task that keeps state in columns asks a `SlotIndex` for the row number, the *slot*, of every key of
a micro-batch at once.  New keys get the next slots.  The index works on the 64-bit hash that each
row already has, and compares key columns where a hash alone does not decide.

    slot_index    the hash table from keys to slots
    key_columns   the keys themselves as Arrow columns, and which of them are equal
"""

from statelog.state.slots.slot_index import SlotIndex

__all__ = ["SlotIndex"]
