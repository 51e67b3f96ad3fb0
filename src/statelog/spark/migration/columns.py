"""
The columns of a frame of state: one row for each key, after the columns of the key.

`spark_state` and `to_spark` make such frames, and `with_initial_state` takes them.
"""

from __future__ import annotations

from typing import Final

STATE_COLUMN: Final = "statelog_state"
"""A struct with one field for each state variable."""

TIMERS_COLUMN: Final = "statelog_timers"
"""The timers of the key, in milliseconds."""

EXPIRY_COLUMN: Final = "statelog_expiry"
"""
When the values expire, in milliseconds: a struct with a field for each variable with a time to live.

Only in frames of statelog's state with such variables.  A number for a value, an array for the
elements of a list or the entries of a map, in their order.
"""

CHECKPOINT_COLUMN: Final = "statelog_checkpoint"
"""
The checkpoint that the row is from; only in frames of statelog's state.

The timestamps in their state are in UTC, without a zone: Spark hands a timestamp with a zone
to pandas as local time, in which an hour of each year is ambiguous.
"""
