"""
The kinds of state: value, list, map and timers, each in one module.

    kind       the interface of a kind; value, entry, cell and delta, which all kinds have
    value      and list, map, timer: all that is particular to one kind: how deltas clear and fold,
               operations in the log, cells in a snapshot, rows, expiry, earlier schemas
    columns    Arrow columns of cells

docs/contributing/extend.md lists what a new kind needs.
"""

from __future__ import annotations

import enum

from statelog.state.kinds.kind import (
    AnyKind,
    Deltas,
    Entry,
    EntryCodec,
    FromPython,
    Key,
    Kind,
    Migration,
    Operations,
    Table,
    Values,
)
from statelog.state.kinds.list import ListDelta, ListKind
from statelog.state.kinds.map import MapDelta, MapKind
from statelog.state.kinds.timer import TimerKind
from statelog.state.kinds.value import ValueKind

__all__ = [
    "AnyKind",
    "Deltas",
    "Entry",
    "EntryCodec",
    "FromPython",
    "Key",
    "Kind",
    "ListDelta",
    "MapDelta",
    "Migration",
    "Operations",
    "StateKind",
    "Table",
    "Values",
]


class StateKind(enum.Enum):
    """
    The kinds of state a variable can be.

    The value of a member is the kind's name in JSON; `rules` is the kind itself.
    """

    VALUE = ValueKind()
    LIST = ListKind()
    MAP = MapKind()
    TIMER = TimerKind()

    _value_: str
    rules: AnyKind

    def __new__(cls, rules: AnyKind) -> StateKind:
        """Create the member for a kind, which its name identifies."""
        member = object.__new__(cls)
        member._value_ = rules.name
        member.rules = rules
        return member
