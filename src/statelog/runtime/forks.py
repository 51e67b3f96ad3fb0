"""
Forks: objects with locks and threads belong to the process that made them.

A child inherits locks that threads of its parent hold, and none of these threads: whatever waits
there waits for ever.  So every such object remembers its process and refuses any other.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final, Protocol

from statelog.errors import StoreError

_PRUNE_AT: Final = 64


class Inheritable(Protocol):
    """An object that must know when a child has inherited it."""

    def after_fork(self) -> None:
        """Take note, in the child, before anything else runs there."""
        ...


class _Lineage:
    """How many forks lie between the first process and this one, and what a child inherits."""

    def __init__(self) -> None:
        self.generation = 0
        self._lock = threading.Lock()
        # No `WeakSet`: its callbacks would swallow what a signal handler raises inside them.
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
        self._lock = threading.Lock()  # a thread that is not here may hold the old one
        for each in list(self._inheritable):
            if (inheritable := each()) is not None:
                inheritable.after_fork()


_LINEAGE: Final = _Lineage()
os.register_at_fork(after_in_child=_LINEAGE.in_child)


class OwningProcess:
    """
    The process that made an object.

    Args:
        what: The object's name in messages, such as "the changelog storage".
    """

    __slots__ = ("_generation", "_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._generation = _LINEAGE.generation

    def check(self) -> None:
        """
        Refuse a child of the owning process.

        Raises:
            StoreError: This process inherited the object over a fork.
        """
        if self._generation != _LINEAGE.generation:
            raise StoreError(
                f"{self._what} belongs to process {self._pid} and cannot be used in process "
                f"{os.getpid()}, which inherited it over a fork without its threads; open a new "
                "storage there, in a process started by spawn or forked before the first use of "
                "a store",
                operation="fork",
            )


def tell_after_fork(inheritable: Inheritable) -> None:
    """Call `after_fork` of *inheritable* in every child, as long as it is alive."""
    _LINEAGE.add(inheritable)
