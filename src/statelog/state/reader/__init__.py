"""
State as of a checkpoint, for everything outside the job that wrote it.

    state_reader   a location and a checkpoint in, Arrow tables out, a few key groups at a time
    rows           the columns of a snapshot as rows: one for each value, element, entry or timer
"""

from statelog.state.reader.state_reader import StateReader

__all__ = ["StateReader"]
