"""Measure the phases of a micro-batch."""

from __future__ import annotations

import time


class Stopwatch:
    """Splits elapsed time into named phases, in milliseconds."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self._last = self._start = time.perf_counter()

    def lap(self, phase: str) -> None:
        """
        End a phase, and begin the next.

        A name that is repeated adds up.
        """
        now = time.perf_counter()
        self.milliseconds[phase] = self.milliseconds.get(phase, 0.0) + (now - self._last) * 1e3
        self._last = now

    def with_total(self) -> dict[str, float]:
        """Return the phases, and `total` from the start to the last lap."""
        return {**self.milliseconds, "total": (self._last - self._start) * 1e3}
