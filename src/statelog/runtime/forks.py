"""
Forks: an object with locks and threads belongs to the process that created it.

A child process inherits locks that threads of its parent hold, but not these threads, so a wait in
the child would never end.  Every such object records its process and refuses any other.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final, Protocol

from statelog.errors import StoreError

_PRUNE_AT: Final = 64


class Inheritable(Protocol):
    """An object that is notified in a forked child."""

    def after_fork(self) -> None:
        """Handle the fork, in the child, before other code runs there."""
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
                self._inheritable = [each for each in self._inheritable if each() is not None]
                self._prune_at = max(_PRUNE_AT, 2 * len(self._inheritable))

    def in_child(self) -> None:
        self.generation += 1
        self.pids.append(os.getpid())
        self._lock = threading.Lock()  # a thread of the parent may hold the old one
        for each in list(self._inheritable):
            if (inheritable := each()) is not None:
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
        """
        Refuse a child of the owning process.

        Raises:
            StoreError: This process inherited the object over a fork.
        """
        if self._generation != LINEAGE.generation:
            raise inherited_error(self._what, self._generation)


def inherited_error(what: str, generation: int) -> StoreError:
    """Return the error that refuses *what*, inherited over a fork."""
    return StoreError(
        f"{what} belongs to process {LINEAGE.pids[generation]} and cannot be used in process "
        f"{os.getpid()}, which inherited it over a fork without its threads; open a new storage "
        "there, in a process started by spawn or forked before the first use of a store",
        operation="fork",
    )


def notify_after_fork(inheritable: Inheritable) -> None:
    """Call `after_fork` of *inheritable* in every forked child."""
    LINEAGE.add(inheritable)
