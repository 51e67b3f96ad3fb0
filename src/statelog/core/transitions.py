"""
State machines as tables: for each state, which event leads to which state.

A module declares its table next to its events, and the page docs/internals/state-machines.md is made of the
tables.  An event that a table does not name for a state leaves the state as it is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=enum.Enum)


class Transitions(Generic[StateT]):
    """
    The states of a thing, and what leads from one to another.

    Args:
        table: For each state the state after an event, by the class of the event.
    """

    def __init__(self, table: Mapping[StateT, Mapping[type, StateT]]) -> None:
        self._table = table

    def after(self, state: StateT, event: object) -> StateT:
        """Return the state after an event."""
        return self._table[state].get(type(event), state)

    def rows(self) -> Iterator[tuple[StateT, str, StateT]]:
        """Yield each transition: the state, the name of the event, the state after it."""
        for state, events in self._table.items():
            for event, after in events.items():
                yield state, event.__name__, after
