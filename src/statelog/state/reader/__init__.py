"""
Read state as of a checkpoint from outside the job that wrote it.

    location        the checkpoints of a location, and tables and single keys of each
    state_reader    a location and a checkpoint in, Arrow tables out, a few key groups at a time
    checkpoint_chain   the newest checkpoint, and what leads from one to another
    rows            the columns of a snapshot as rows: one for each value, element, entry or timer

The extension `read` has what a person reads besides: history, differences, a feed, a replica, SQL.
"""

from statelog.state.reader.location import LocationReader
from statelog.state.reader.state_reader import StateReader

__all__ = ["LocationReader", "StateReader"]
