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
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from statelog.errors import InvariantError
from statelog.runtime.forks import LINEAGE, inherited_error

if TYPE_CHECKING:

    class _RLock:
        def __enter__(self) -> bool: ...
        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...
        def _is_owned(self) -> bool: ...

else:
    from _thread import RLock as _RLock


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


class ThreadLock(_RLock):
    """
    A `Lock` between threads.

    One thread cannot acquire it twice: a callback under the lock fails at once.  No exception of a
    signal handler leaves it held: `__exit__` is a function in C, inside which no handler runs, and
    `__enter__` releases it where a handler raises.  A forked child is refused, because a thread that
    does not exist there may hold the lock.
    """

    __slots__ = ("_generation", "_waiters")

    def __init__(self) -> None:
        self._generation = LINEAGE.generation
        self._waiters: deque[threading.Lock] = deque()

    def __enter__(self) -> bool:
        if self._is_owned():
            raise InvariantError("a lock of the changelog storage is acquired by its holder")
        try:
            return self.acquire()
        except BaseException:
            if self._is_owned():
                self.release()
            raise

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """
        Acquire the lock; return whether it is held.

        Raises:
            StoreError: This process inherited the lock over a fork.
        """
        if self._generation != LINEAGE.generation:
            raise inherited_error("a lock of the changelog storage", self._generation)
        return super().acquire(blocking, timeout)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Release the lock until a notification; return whether there was one in time."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        limit_s = -1.0 if timeout_s is None else min(max(timeout_s, 0), threading.TIMEOUT_MAX)
        woken = False
        try:
            self.release()
            woken = waiter.acquire(timeout=limit_s)
        finally:
            if not self._is_owned():
                self.acquire()
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

    def __enter__(self) -> bool:
        return self.acquire() if self._is_owned() else super().__enter__()
