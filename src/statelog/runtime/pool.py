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
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from statelog.errors import ClosedError
from statelog.runtime.interrupts import interruptible, uninterrupted
from statelog.runtime.lock import ThreadLock

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

    def help(self, until: Callable[[], bool]) -> None:
        """
        Run work that no thread has taken yet on the calling thread, until *until* holds.

        Returns as soon as no work waits.  What interrupts the caller (Ctrl-C) ends that work and
        is raised.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """Refuse new work, fail waiting work, and give running work *timeout_s* to end."""
        ...


class HelpedFuture(Future[T]):
    """
    A future whose waiter does the waiting work itself, if it is there before a pool thread.

    Waking a thread and being woken by it takes longer than a small upload to local disk.  Only
    `result` and `exception` without a time-out help: with one, they must not be held up by work.

    Args:
        pool: Whose work to do; None to wait as any future does.
    """

    def __init__(self, pool: Pool | None) -> None:
        super().__init__()
        # The standard library's own condition stays locked where a signal handler raises.
        self._condition: Any = ThreadLock(reentrant=True)
        self._pool = pool

    @uninterrupted
    def result(self, timeout: float | None = None) -> T:
        """Return the result, or raise the error; see the class for what a waiter does."""
        self._lend_a_hand(timeout)
        return super().result(timeout)

    @uninterrupted
    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, None for a success; see the class for what a waiter does."""
        self._lend_a_hand(timeout)
        return super().exception(timeout)

    def _lend_a_hand(self, timeout: float | None) -> None:
        if timeout is None and self._pool is not None and not self.done():
            self._pool.help(self.done)


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
        self._changed = ThreadLock()
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

    @uninterrupted
    def help(self, until: Callable[[], bool]) -> None:
        """Run work that no thread has taken yet on the calling thread, until *until* holds."""
        while not until():
            with self._changed:
                if not self._jobs:
                    return
                work, done = self._jobs.popleft()
            interrupt = _perform(partial(interruptible, work), done)
            if interrupt is not None:
                raise interrupt

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
            _perform(*job)
            del job  # an idle thread keeps nothing alive

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


def _perform(work: Callable[[], Any], done: Done) -> BaseException | None:
    """Run *work*, tell *done*, and return what interrupted it: Ctrl-C, not an error."""
    result: Any = None
    error: BaseException | None = None
    try:
        result = work()
    except BaseException as caught:  # MemoryError and the like must reach `done` too
        error = caught
    try:
        done(result, error)
        return None if isinstance(error, Exception) else error
    finally:
        del work, done, result, error  # the error's traceback holds this frame


def _tell_closed(done: Done, name: str) -> None:
    done(None, ClosedError(f"{name}: closed before this work began; open a new storage"))
