"""Timers of the current key."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from statelog.state.kinds import StateKind
from statelog.state.kinds.timer import holds_time
from statelog.state.objects.bound_state import BoundState


class Timers(BoundState):
    """
    The timers of each key: a set of times in milliseconds.

    The overlay holds a key's times as an ascending list, made once per key and micro-batch and
    changed in place, so that a key with thousands of timers is not copied at every call.
    """

    kind = StateKind.TIMER

    def _held(self) -> Sequence[int]:
        times: Sequence[int] | None = self._overlay.get(self._cursor.key)
        return self._base.get(self._cursor.key, ()) if times is None else times

    def _own(self) -> list[int]:
        key = self._cursor.key
        times: list[int] | None = self._overlay.get(key)
        if times is None:
            times = self._overlay[key] = list(self._base.get(key, ()))
        return times

    def register(self, time_ms: int) -> None:
        """Add a timer, unless the key has one for the same time."""
        if not self.contains(time_ms):
            bisect.insort(self._own(), time_ms)

    def delete(self, time_ms: int) -> None:
        """Remove a timer, if there is one."""
        if self.contains(time_ms):
            times = self._own()
            del times[bisect.bisect_left(times, time_ms)]

    def contains(self, time_ms: int) -> bool:
        """Return whether the current key has a timer at *time_ms*."""
        return holds_time(self._held(), time_ms)

    def times(self) -> tuple[int, ...]:
        """Return the timers of the current key, ascending."""
        return tuple(self._held())
