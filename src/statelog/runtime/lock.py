"""
The one lock of a storage.

The lock law: under it run `core.handle` and the shell's own bookkeeping, nothing else.  Stores,
callbacks, futures, logs and metrics come after it.  The only wait is `wait_for`, which gives the
lock up while it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


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

    It cannot be taken twice by one thread, so that calling out under it shows at once.
    """

    __slots__ = ("_condition",)

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())

    def __enter__(self) -> object:
        return self._condition.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._condition.__exit__(kind, error, trace)

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None) -> bool:
        """Give the lock up until *predicate* holds, and return whether it does."""
        if timeout_s is not None:
            timeout_s = min(timeout_s, threading.TIMEOUT_MAX)
        return self._condition.wait_for(predicate, timeout_s)

    def notify_all(self) -> None:
        """Make every waiter look at its predicate again."""
        self._condition.notify_all()
