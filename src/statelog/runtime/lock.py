"""
The only lock of a storage, and the process that owns it.

Under the lock run `core.handle` and the shell's own bookkeeping, nothing else.  Calls to stores,
callbacks, futures, logs and metrics follow after its release.  The only wait is `wait_for`, which
releases the lock while it waits.

A child process inherits locks that threads of its parent hold, but not these threads, so a wait in
the child would never end.  Every object with locks and threads records its process and refuses any
other.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

from statelog.errors import InvariantError, StoreError

_PRUNE_AT: Final = 64


class Inheritable(Protocol):
    """An object that is notified in a forked child process."""

    def after_fork(self) -> None:
        """Handle a fork in the child, before any other code runs there."""
        ...


class _Lineage:
    """The number of forks since the first process, and the objects that a child inherits."""

    def __init__(self) -> None:
        self.generation = 0
        self.pids = [os.getpid()]
        self._lock = threading.Lock()
        # Not a `WeakSet`: its callbacks would swallow exceptions of signal handlers.
        self._inheritable: list[weakref.ref[Inheritable]] = []
        self._prune_at = _PRUNE_AT

    def add(self, inheritable: Inheritable) -> None:
        with self._lock:
            self._inheritable.append(weakref.ref(inheritable))
            if len(self._inheritable) >= self._prune_at:
                self._inheritable = [
                    reference for reference in self._inheritable if reference() is not None
                ]
                self._prune_at = max(_PRUNE_AT, 2 * len(self._inheritable))

    def in_child(self) -> None:
        self.generation += 1
        self.pids.append(os.getpid())
        self._lock = threading.Lock()  # a thread of the parent may hold the old one
        for reference in list(self._inheritable):
            if (inheritable := reference()) is not None:
                inheritable.after_fork()


LINEAGE: Final = _Lineage()
os.register_at_fork(after_in_child=LINEAGE.in_child)


class OwningProcess:
    """The process that created an object."""

    __slots__ = ("_generation", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._generation = LINEAGE.generation

    def check(self) -> None:
        """Raise an error in a child of the owning process."""
        if self._generation != LINEAGE.generation:
            raise inherited_error(self._what, self._generation)


def inherited_error(what: str, generation: int) -> StoreError:
    """Return the error for using *what* in a process that inherited it through a fork."""
    return StoreError(
        f"{what} belongs to process {LINEAGE.pids[generation]} and cannot be used in process "
        f"{os.getpid()}, which inherited it through a fork, without its threads; open a new "
        "storage in a process that was spawned, or forked before the first use of a store",
        operation="fork",
    )


def notify_after_fork(inheritable: Inheritable) -> None:
    """Call the `after_fork` method of *inheritable* in every forked child."""
    LINEAGE.add(inheritable)


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
    """A lock with a condition that threads can wait for."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None) -> bool:
        """
        Release the lock until *predicate* is true; return whether it is.

        Must be called with the lock held; *predicate* runs with the lock held.
        """
        ...

    def notify_all(self) -> None:
        """Make every waiter check its predicate again. The caller must hold the lock."""
        ...


class ThreadLock(_RLock):
    """
    A `Lock` for threads of one process.

    One thread cannot acquire it twice: a callback under the lock fails at once.  No exception of a
    signal handler leaves it held: `__exit__` is a function in C, inside which no handler runs, and
    `__enter__` releases it where a handler raises.  A forked child is refused, because a thread
    that does not exist there may hold the lock.
    """

    __slots__ = ("_generation", "_waiters")

    def __init__(self) -> None:
        self._generation = LINEAGE.generation
        self._waiters: deque[threading.Lock] = deque()

    def __enter__(self) -> bool:
        if self._is_owned():
            raise InvariantError("a thread acquired the same lock of a changelog storage twice")
        try:
            return self.acquire()
        except BaseException:
            if self._is_owned():
                self.release()
            raise

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; return whether it was acquired."""
        if self._generation != LINEAGE.generation:
            raise inherited_error("a lock of the changelog storage", self._generation)
        return super().acquire(blocking, timeout)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Release the lock until notified; return whether the notification came in time."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        limit_s = -1.0 if timeout_s is None else min(max(timeout_s, 0), threading.TIMEOUT_MAX)
        woken = False
        interrupt: BaseException | None = None
        try:
            self.release()
            woken = waiter.acquire(timeout=limit_s)
        finally:
            # The caller releases the lock, so it is acquired whatever a signal handler raises here.
            while True:
                try:
                    if not self._is_owned():
                        self.acquire()
                    break
                except BaseException as error:
                    interrupt = error
                    if self._generation != LINEAGE.generation:  # a forked child cannot acquire it
                        break
            if not woken and waiter in self._waiters:
                self._waiters.remove(waiter)
        if interrupt is not None:
            raise interrupt
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Release the lock until *predicate* is true; return whether it is."""
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
    """A `ThreadLock` that a thread can acquire repeatedly, but cannot wait on while nested."""

    __slots__ = ()

    def __enter__(self) -> bool:
        return self.acquire() if self._is_owned() else super().__enter__()
