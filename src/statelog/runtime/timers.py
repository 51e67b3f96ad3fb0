"""Timers: one thread and a heap of deadlines, started at the first timer."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from statelog.runtime.clock import Clock
from statelog.runtime.lock import ThreadLock

_log = logging.getLogger("statelog")


class Timer(Protocol):
    """A callback that waits for its moment."""

    def cancel(self) -> None:
        """Make sure that the callback is not started any more; it may be running already."""
        ...


class Timers(Protocol):
    """Calls back at given moments."""

    def schedule(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call *callback* once, on the timers' thread, at or soon after *at_ns* of the clock."""
        ...

    def close(self) -> None:
        """Forget all timers.  Later ones are accepted and never fire.  May be called twice."""
        ...


class _Entry:
    __slots__ = ("at_ns", "callback", "order")

    def __init__(self, at_ns: int, order: int, callback: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.order = order
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: _Entry) -> bool:
        return (self.at_ns, self.order) < (other.at_ns, other.order)

    def cancel(self) -> None:
        """Make sure that the callback is not started any more."""
        self.callback = None


class ThreadTimers:
    """
    `Timers` on one daemon thread, which starts with the first timer.

    Args:
        clock: Tells when a timer is due.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = ThreadLock()
        self._heap: list[_Entry] = []
        self._order = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def schedule(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call *callback* once, on the timers' thread, at or soon after *at_ns* of the clock."""
        with self._changed:
            entry = _Entry(at_ns, self._order, callback)
            self._order += 1
            if self._closed:
                return entry
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="statelog-timers", daemon=True
                )
                self._thread.start()
            elif self._heap[0] is entry:
                self._changed.notify()
        return entry

    def close(self) -> None:
        """Forget all timers."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            callback = entry.callback
            if callback is not None:
                try:
                    callback()
                except Exception:
                    _log.exception("a timer's callback failed; the other timers go on")

    def _next(self) -> _Entry | None:
        with self._changed:
            while not self._closed:
                while self._heap and self._heap[0].callback is None:
                    heapq.heappop(self._heap)
                if not self._heap:
                    self._changed.wait()
                    continue
                wait_ns = self._heap[0].at_ns - self._clock.now_ns()
                if wait_ns <= 0:
                    return heapq.heappop(self._heap)
                self._changed.wait(min(wait_ns / 1e9, threading.TIMEOUT_MAX))
        return None
