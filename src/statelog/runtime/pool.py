"""
Pools: blocking work on a few threads, started when there is work.

A pool can be told that one of its threads hangs (`widen`); it then works on with another one, so
that a store that never answers cannot use all threads up.
Source: Flink's ChangelogBlockingExecutor.  Deviation: there, hung calls take their threads away
for good, and an attempt that never starts never times out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from statelog.errors import ClosedError

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]


class Pool(Protocol):
    """Runs blocking work beside the caller."""

    def submit(
        self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]
    ) -> None:
        """
        Run *work*, then *done* with its result or its error (whatever kind of error it is).

        *done* is called exactly once, on the same thread, unless *work* never returns.  On a
        closed pool it is called at once with `ClosedError`.
        """
        ...

    def widen(self) -> None:
        """Allow one thread more: one of them is presumed to hang."""
        ...

    def narrow(self) -> None:
        """Take one `widen` back: the thread has come back."""
        ...

    def close(self, timeout_s: float) -> None:
        """Refuse new work, fail waiting work, and give running work *timeout_s* to end."""
        ...


class ThreadPool:
    """
    A `Pool` of daemon threads.

    Args:
        num_threads: Threads at most, >= 1.
        name: What the threads are called.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._limit = num_threads
        self._name = name
        self._changed = threading.Condition(threading.Lock())
        self._jobs: deque[tuple[Callable[[], Any], Done]] = deque()
        self._threads = 0
        self._idle = 0
        self._started = 0
        self._closed = False

    def submit(
        self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]
    ) -> None:
        """Run *work*, then *done* with its result or its error."""
        with self._changed:
            closed = self._closed
            if not closed:
                self._jobs.append((work, done))
                self._staff()
        if closed:
            _tell_closed(done, self._name)

    def widen(self) -> None:
        """Allow one thread more: one of them is presumed to hang."""
        with self._changed:
            self._limit += 1
            self._staff()

    def narrow(self) -> None:
        """Take one `widen` back."""
        with self._changed:
            self._limit -= 1

    def close(self, timeout_s: float) -> None:
        """Refuse new work, fail waiting work, and give running work *timeout_s* to end."""
        with self._changed:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for _, done in waiting:
            _tell_closed(done, self._name)
        with self._changed:
            self._changed.wait_for(lambda: self._threads == 0, timeout_s)

    def _staff(self) -> None:
        """See to it that somebody takes the newest job.  Called under the lock."""
        if self._idle >= len(self._jobs):
            self._changed.notify()
        elif self._threads < self._limit and self._jobs:
            self._threads += 1
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (job := self._take()) is not None:
            work, done = job
            del job
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as caught:  # MemoryError and the like must reach `done` too
                error = caught
            done(result, error)
            del work, done, result, error  # an idle thread keeps nothing alive

    def _take(self) -> tuple[Callable[[], Any], Done] | None:
        with self._changed:
            self._idle += 1
            try:
                self._changed.wait_for(
                    lambda: bool(self._jobs) or self._closed or self._threads > self._limit
                )
                if self._jobs and self._threads <= self._limit:
                    return self._jobs.popleft()
            finally:
                self._idle -= 1
            self._threads -= 1
            self._changed.notify_all()
            return None


def _tell_closed(done: Done, name: str) -> None:
    done(None, ClosedError(f"{name}: closed before this work began; open a new storage"))
