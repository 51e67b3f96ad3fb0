"""
The one lock of a storage.

Under the lock run `core.handle` and the shell's own bookkeeping, nothing else.  Calls to stores,
callbacks, futures, logs and metrics follow after its release.  The only wait is `wait_for`, which
releases the lock while it waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Protocol

from statelog.runtime.forks import LINEAGE, inherited_error
from statelog.runtime.interrupts import MAIN_THREAD, interruptible


class Lock(Protocol):
    """A lock with a condition to wait for."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None) -> bool:
        """
        Release the lock until *predicate* holds; return whether it does.

        Must be called with the lock held; *predicate* runs with the lock held.
        """
        ...

    def notify_all(self) -> None:
        """Make every waiter check its predicate again.  Must be called with the lock held."""
        ...


class ThreadLock:
    """
    A `Lock` between threads.

    One thread cannot acquire it twice, so that a callback under the lock is found at once.  While
    the main thread holds it, exceptions of signal handlers are deferred.  They are raised when it
    is released, and out of a wait, which then holds the lock again.  A forked child is refused,
    because a thread that does not exist there may hold the lock.
    """

    __slots__ = ("_generation", "_is_step", "_lock", "_waiters")

    def __init__(self) -> None:
        self._lock = self._new_lock()
        self._generation = LINEAGE.generation
        self._waiters: deque[threading.Lock] = deque()
        self._is_step = False
        """Whether the holder is the main thread, and began a step with the lock."""

    def _new_lock(self) -> threading.Lock:
        return threading.Lock()

    def __enter__(self) -> object:
        # Entered very often.  Inside a step nothing is to be deferred: the step does it.
        if MAIN_THREAD.depth and self._generation == LINEAGE.generation:
            return self._lock.acquire()
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_step:
            self._is_step = False
            self._lock.release()
            MAIN_THREAD.end()
        else:
            self._lock.release()

    def acquire(self) -> bool:
        """
        Acquire the lock and return True.

        Raises:
            StoreError: This process inherited the lock over a fork.
        """
        if self._generation != LINEAGE.generation:
            raise inherited_error("a lock of the changelog storage", self._generation)
        if MAIN_THREAD.depth or get_ident() != MAIN_THREAD.thread_id:
            return self._lock.acquire()
        MAIN_THREAD.begin()
        try:
            self._lock.acquire()
        except BaseException:  # a signal on a main thread that has waited beyond the patience
            MAIN_THREAD.end()
            raise
        self._is_step = True
        return True

    def release(self) -> None:
        """Release the lock."""
        self.__exit__(None, None, None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Release the lock until a notification; return whether there was one in time."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        woken, is_step = False, self._is_step
        self._is_step = False  # the next holder may be another thread
        self._lock.release()
        try:
            if timeout_s is None:
                woken = interruptible(waiter.acquire)
            elif timeout_s > 0:
                woken = interruptible(waiter.acquire, True, min(timeout_s, threading.TIMEOUT_MAX))
            else:
                woken = waiter.acquire(False)
        finally:
            self._lock.acquire()
            self._is_step = is_step
            if not woken and waiter in self._waiters:
                self._waiters.remove(waiter)
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Release the lock until *predicate* holds; return whether it does."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not predicate():
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify(self, n: int = 1) -> None:
        """Wake up to *n* waiting threads."""
        while n > 0 and self._waiters:
            self._waiters.popleft().release()
            n -= 1

    def notify_all(self) -> None:
        """Make every waiter check its predicate again."""
        self.notify(len(self._waiters))


class ReentrantThreadLock(ThreadLock):
    """A `ThreadLock` that one thread may acquire more than once; it must not wait then."""

    __slots__ = ()

    def _new_lock(self) -> threading.Lock:
        return threading.RLock()  # type: ignore[return-value]  # it has the same methods

    def __enter__(self) -> object:
        return self.acquire()

    def acquire(self) -> bool:
        """Acquire the lock and return True; raises as `ThreadLock.acquire`."""
        if self._generation != LINEAGE.generation:
            raise inherited_error("a lock of the changelog storage", self._generation)
        MAIN_THREAD.begin()
        try:
            return self._lock.acquire()
        except BaseException:  # as in ThreadLock
            MAIN_THREAD.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        MAIN_THREAD.end()
