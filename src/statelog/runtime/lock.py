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

    Args:
        reentrant: One thread may acquire it more than once, and must not wait then.
    """

    __slots__ = ("_generation", "_lock", "_waiters")

    def __init__(self, *, reentrant: bool = False) -> None:
        self._lock = threading.RLock() if reentrant else threading.Lock()
        self._generation = LINEAGE.generation
        self._waiters: deque[threading.Lock] = deque()

    def __enter__(self) -> object:
        # The steps of `acquire`, inlined because this runs very often.
        if self._generation != LINEAGE.generation:
            return self.acquire()
        if get_ident() != MAIN_THREAD.thread_id:
            return self._lock.acquire()
        if not MAIN_THREAD.depth:
            return self.acquire()
        MAIN_THREAD.depth += 1
        try:
            return self._lock.acquire()
        except BaseException:
            MAIN_THREAD.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        if get_ident() == MAIN_THREAD.thread_id:
            if MAIN_THREAD.depth > 1:
                MAIN_THREAD.depth -= 1
            else:
                MAIN_THREAD.end()

    def acquire(self) -> bool:
        """
        Acquire the lock and return True.

        Raises:
            StoreError: This process inherited the lock over a fork.
        """
        if self._generation != LINEAGE.generation:
            raise inherited_error("a lock of the changelog storage", self._generation)
        MAIN_THREAD.begin()
        try:
            return self._lock.acquire()
        except BaseException:  # a signal on a main thread that has waited beyond the patience
            MAIN_THREAD.end()
            raise

    def release(self) -> None:
        """Release the lock."""
        self.__exit__(None, None, None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Release the lock until a notification; return whether there was one in time."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        woken = False
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
