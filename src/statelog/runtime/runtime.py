"""
Bundle the clock, ids, lock, timers and thread pools of one storage.

A simulation passes a virtual clock, seeded ids and pools without threads; the packages above do not
change.  Real timers are a heap of deadlines and one thread, which starts at the first timer.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from statelog.errors import UnavailableError
from statelog.runtime.clock import Clock, IdSource, RandomIds, SystemClock
from statelog.runtime.closing import close_all
from statelog.runtime.lock import Lock, ThreadLock
from statelog.runtime.pool import Pool, ThreadPool

_log = logging.getLogger("statelog")


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Prevent the callback from starting; it may already be running."""
        ...


class Timers(Protocol):
    """Runs callbacks at given times."""

    def schedule(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """
        Call *callback* once, on the timers' thread, at *at_ns* on the clock or soon after.

        Its exceptions are logged; it must not block, and must not call code of users.
        """
        ...

    def close(self) -> None:
        """Drop all timers. Timers added later are accepted but never fire. May be called twice."""
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
        """Prevent the callback from starting."""
        self.callback = None


class ThreadTimers:
    """`Timers` on one daemon thread, which starts with the first timer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = ThreadLock()
        self._heap: list[_Entry] = []
        self._order = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def schedule(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call *callback* once, on the timers' thread, at *at_ns* on the clock or soon after."""
        with self._changed:
            entry = _Entry(at_ns, self._order, callback)
            self._order += 1
            if self._closed:
                return entry
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                self._start_thread()
            elif self._heap[0] is entry:
                self._changed.notify()
        return entry

    def close(self) -> None:
        """Drop all timers."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()

    def _start_thread(self) -> None:
        """Start the thread.  Called under the lock."""
        thread = threading.Thread(target=self._run, name="statelog-timers", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            raise UnavailableError(
                f"the timer thread cannot be started ({error}); check this process's limits on threads "
                "and memory"
            ) from error
        self._thread = thread

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            callback = entry.callback
            if callback is not None:
                try:
                    callback()
                except BaseException:  # without this thread there are no more time-outs
                    _log.exception("a timer's callback failed; the other timers continue")

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


CALLBACK_THREADS: Final = 4
"""Threads of a storage for callbacks of users; each starts when there is a callback for it."""


def _callback_pool() -> Pool:
    return ThreadPool(CALLBACK_THREADS, "statelog-callback")


@dataclass(frozen=True, slots=True)
class Runtime:
    """
    The clock, ids, lock, timers and pools of one storage.

    Args:
        clock: The clock.
        ids: Makes file names and jitter.
        lock: The storage's one lock.
        timers: Run callbacks at given times.
        upload_pool: Runs uploads.
        discard_pool: Runs deletions.
        callback_pool: Runs callbacks of users, which may block; nothing else.
    """

    clock: Clock
    ids: IdSource
    lock: Lock
    timers: Timers
    upload_pool: Pool
    discard_pool: Pool
    callback_pool: Pool = field(default_factory=_callback_pool)

    def close(self, timeout_s: float) -> None:
        """Stop the timers and pools; running work has *timeout_s* to finish."""
        close_all(
            self.timers.close,
            lambda: self.upload_pool.close(timeout_s),
            lambda: self.discard_pool.close(timeout_s),
            lambda: self.callback_pool.close(timeout_s),
        )


def system_runtime(*, upload_threads: int = 5, discard_threads: int = 1) -> Runtime:
    """Return a runtime with real clocks, and with threads that start on demand."""
    clock = SystemClock()
    return Runtime(
        clock=clock,
        ids=RandomIds(),
        lock=ThreadLock(),
        timers=ThreadTimers(clock),
        upload_pool=ThreadPool(upload_threads, "statelog-upload"),
        discard_pool=ThreadPool(discard_threads, "statelog-discard"),
    )
