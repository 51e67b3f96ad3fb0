"""
The one lock of a storage.

The lock law: under it run `core.handle` and the shell's own bookkeeping, nothing else.  Stores,
callbacks, futures, logs and metrics come after it.  The only wait is `wait_for`, which gives the
lock up while it waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from statelog.runtime.forks import OwningProcess
from statelog.runtime.interrupts import MAIN_THREAD, interruptible


class Lock(Protocol):
    """A lock that can be waited at."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None) -> bool:
        """
        Give the lock up until *predicate* holds, and return whether it does.

        Must be called with the lock held; *predicate* runs with the lock held.
        """
        ...

    def notify_all(self) -> None:
        """Make every waiter look at its predicate again.  Must be called with the lock held."""
        ...


class ThreadLock:
    """
    A `Lock` between threads.

    It cannot be taken twice by one thread, so that calling out under it shows at once.  While the
    main thread holds it, exceptions of signal handlers wait; they come when it is given up, and
    out of a wait, which then holds the lock again.  A child of the process that made it is
    refused, as a thread that does not exist there may hold it.

    Args:
        reentrant: One thread may take it more than once, and must not wait then.
    """

    __slots__ = ("_lock", "_process", "_waiters")

    def __init__(self, *, reentrant: bool = False) -> None:
        self._lock = threading.RLock() if reentrant else threading.Lock()
        self._process = OwningProcess("a lock of the changelog storage")
        self._waiters: deque[threading.Lock] = deque()

    def __enter__(self) -> object:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def acquire(self) -> bool:
        """
        Take the lock, and return True.

        Raises:
            StoreError: This process inherited the lock over a fork.
        """
        self._process.check()
        MAIN_THREAD.begin()
        try:
            return self._lock.acquire()
        except BaseException:  # a signal to a main thread that has waited for too long
            MAIN_THREAD.end()
            raise

    def release(self) -> None:
        """Give the lock up."""
        try:
            self._lock.release()
        finally:
            MAIN_THREAD.end()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Give the lock up until a notification, and return whether there was one in time."""
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
        """Give the lock up until *predicate* holds, and return whether it does."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not predicate():
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify(self, n: int = 1) -> None:
        """Wake *n* of those who wait, if there are so many."""
        while n > 0 and self._waiters:
            self._waiters.popleft().release()
            n -= 1

    def notify_all(self) -> None:
        """Make every waiter look at its predicate again."""
        self.notify(len(self._waiters))
