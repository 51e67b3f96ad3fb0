"""
A list that is always right.

It is told every append, cut and truncation, and says what a handle over a range must hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from statelog.model import StateChange


def canonical(changes: Iterable[StateChange]) -> dict[int, list[bytes]]:
    """Return the values of each key group in order: all that a set promises to keep."""
    groups: dict[int, list[bytes]] = {}
    for change in changes:
        groups.setdefault(change.key_group, []).append(change.value)
    return groups


class ReferenceLog:
    """What one writer has been given, by set."""

    def __init__(self) -> None:
        self._sets: list[list[StateChange]] = []
        self._active: list[StateChange] = []
        self.truncated_to = 0

    @property
    def active_sqn(self) -> int:
        """Number of the next set."""
        return len(self._sets)

    def append(self, change: StateChange) -> None:
        """Add a change to the set that is being gathered."""
        self._active.append(change)

    def cut(self) -> None:
        """End the set that is being gathered, if there is anything in it."""
        if self._active:
            self._sets.append(self._active)
            self._active = []

    def truncate(self, to_sqn: int) -> None:
        """Note that everything below *to_sqn* is given up."""
        self.truncated_to = max(self.truncated_to, to_sqn)

    def sets(self, from_sqn: int, to_sqn: int) -> Sequence[dict[int, list[bytes]]]:
        """Return what the sets of [from_sqn, to_sqn) hold, each in canonical form."""
        return [canonical(each) for each in self._sets[from_sqn:to_sqn]]

    def size_bytes(self, from_sqn: int, to_sqn: int) -> int:
        """Return the summed value bytes of [from_sqn, to_sqn)."""
        return sum(len(change.value) for each in self._sets[from_sqn:to_sqn] for change in each)
