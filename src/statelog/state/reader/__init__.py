"""
State as of a checkpoint, for everything outside the job that wrote it.

    location_state  `statelog.open`: tables, single keys, their history, what changed
    lookup          one key: its key group, its rows, its state as Python values
    differences     which keys differ between two checkpoints; by joining, in columns
    feed            what each checkpoint changed, from its log: chain, window
    broadcasts      the versions of broadcast tables that micro-batches saw
    side_outputs    the rows of side outputs that a checkpoint names
    replica         `follow`: a copy in memory that follows the query; held_state
    sql             SQL over the variables, through DuckDB
    state_reader    a location and a checkpoint in, Arrow tables out, a few key groups at a time
    rows            the columns of a snapshot as rows: one for each value, element, entry or timer
"""

from statelog.state.reader.broadcasts import BroadcastVersion
from statelog.state.reader.location_state import LocationState, open
from statelog.state.reader.lookup import KeyVersion
from statelog.state.reader.replica import Replica, ReplicaStatus
from statelog.state.reader.side_outputs import KeptSideOutput
from statelog.state.reader.state_reader import StateReader

__all__ = [
    "BroadcastVersion",
    "KeptSideOutput",
    "KeyVersion",
    "LocationState",
    "Replica",
    "ReplicaStatus",
    "StateReader",
    "open",
]
