"""
Carry state in and out of a location by frames.

    frames          the frames of state variables, checked, as one frame of rows
    state_rows      those rows as the columns of a snapshot
    snapshot_task   a task that writes them
    write_state     the first checkpoint of a new location
    edit_state      the next checkpoint of a location, with keys set and deleted: what differs from the state

docs/how-to/move-and-edit-state.md has complete examples.
"""

from statelog.spark.operations.edit_state import edit_state
from statelog.spark.operations.write_state import WrittenState, write_state

__all__ = ["WrittenState", "edit_state", "write_state"]
