"""
A reference model of a writer: lists of changes.

It records every append, cut and truncation, and returns the expected content of a range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from statelog.model import StateChange


def canonical(changes: Iterable[StateChange]) -> dict[int, list[bytes]]:
    """Return the values of each key group in order, which a set must keep."""
    groups: dict[int, list[bytes]] = {}
    for change in changes:
        groups.setdefault(change.key_group, []).append(change.value)
    return groups


class ReferenceLog:
    """The changes of one writer, by set."""

    def __init__(self) -> None:
        self._sets: list[list[StateChange]] = []
        self._active: list[StateChange] = []
        self.truncated_to = 0

    @property
    def active_sqn(self) -> int:
        return len(self._sets)

    def append(self, change: StateChange) -> None:
        self._active.append(change)

    def cut(self) -> None:
        if self._active:
            self._sets.append(self._active)
            self._active = []

    def truncate(self, to_sqn: int) -> None:
        self.truncated_to = max(self.truncated_to, to_sqn)

    def sets(self, from_sqn: int, to_sqn: int) -> Sequence[dict[int, list[bytes]]]:
        """Return the content of the sets [from_sqn, to_sqn), in canonical form."""
        return [canonical(change_set) for change_set in self._sets[from_sqn:to_sqn]]

    def size_bytes(self, from_sqn: int, to_sqn: int) -> int:
        return sum(
            len(change.value) for change_set in self._sets[from_sqn:to_sqn] for change in change_set
        )
