"""Runs a command in this process and kills it at any change that it makes to a store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from statelog.store.object_store import ObstoreStore

_Result = TypeVar("_Result")


class KilledError(BaseException):
    """The end of a killed command, which no handler of errors catches."""


class Killer:
    """
    Counts changes of stores, and lets none happen after a number of them.

    A change is one object put or deleted, or one file that a command links, replaces or removes
    itself.  After the kill each further change raises `KilledError` too, on all threads: clean-up code
    that a killed process would not run changes nothing.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.limit: int | None = None
        self._lock = threading.RLock()  # a change may be made of smaller ones

    def run(self, command: Callable[[], _Result], limit: int | None = None) -> _Result | None:
        """Run *command* and kill it before change *limit*, counted from 0; None if it was killed."""
        self.changes, self.limit = 0, limit
        try:
            return command()
        except KilledError:
            return None
        finally:
            self.limit = None

    def change(self, act: Callable[[], _Result]) -> _Result:
        """Do one change, or raise `KilledError`."""
        with self._lock:
            if self.limit is not None and self.changes >= self.limit:
                raise KilledError
            self.changes += 1
            return act()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Count the changes of all stores of this process; nothing is synced to the disk."""
        put, put_if_absent = ObstoreStore.put, ObstoreStore.put_if_absent
        delete = ObstoreStore.delete

        def delete_singly(store: ObstoreStore, paths: Iterable[str]) -> None:
            for path in paths:
                self.change(lambda path=path: delete(store, [path]))  # type: ignore[misc]

        patch.setattr(ObstoreStore, "put", lambda *given: self.change(lambda: put(*given)))
        patch.setattr(
            ObstoreStore, "put_if_absent", lambda *given: self.change(lambda: put_if_absent(*given))
        )
        patch.setattr(ObstoreStore, "delete", delete_singly)
        patch.setattr(os, "fsync", lambda descriptor: None)
        for name in ("link", "replace", "unlink"):
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: self.change(lambda: call(*given, **named))
