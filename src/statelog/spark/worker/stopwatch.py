"""Measure the phases of a micro-batch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


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

    def move(self, phase: str, to: str, milliseconds: float) -> None:
        """Count a part of one phase in another."""
        self.milliseconds[phase] -= milliseconds
        self.milliseconds[to] = self.milliseconds.get(to, 0.0) + milliseconds

    def with_total(self) -> dict[str, float]:
        """Return the phases, and `total` from the start to the last lap."""
        return {**self.milliseconds, "total": (self._last - self._start) * 1e3}


class TimedInput(Generic[_Item]):
    """
    An input that measures how long its reader waits for it.

    Args:
        items: What is read; once.

    Attributes: `waited_ms`: the time spent so far.
    """

    def __init__(self, items: Iterable[_Item]) -> None:
        self._items = iter(items)
        self.waited_ms = 0.0

    def __iter__(self) -> Iterator[_Item]:
        return self

    def __next__(self) -> _Item:
        start = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.waited_ms += (time.perf_counter() - start) * 1e3
