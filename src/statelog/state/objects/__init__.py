"""State objects of a processor: value, list, map, reducing and aggregating state, timers."""

from statelog.state.objects.bound_state import BoundState, Cursor
from statelog.state.objects.list import ExpiringListState, ListState
from statelog.state.objects.map import ExpiringMapState, MapState
from statelog.state.objects.timers import Timers
from statelog.state.objects.value import ExpiringValueState, ValueState

__all__ = [
    "BoundState",
    "Cursor",
    "ExpiringListState",
    "ExpiringMapState",
    "ExpiringValueState",
    "ListState",
    "MapState",
    "Timers",
    "ValueState",
]
