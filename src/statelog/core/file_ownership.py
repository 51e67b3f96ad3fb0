"""
Who owns an uploaded file, and when it may be deleted.

::

    task ──> offered ──> checkpoint          a checkpoint owns it: only the checkpoint room deletes
      │         │
      └────┬────┘   last set released
           ▼
        garbage                              delete it

A file holds sets of several writers.  It counts them; each set is released exactly once, by its
writer.  One confirmed set protects the whole file for ever, because the checkpoint's handle names
the file, not the set.  A file may have a host-local copy: it goes with a file that is deleted, and
is let go with one that is handed over.
Source: Flink, TaskChangelogRegistry.  Deviations: a file confirmed and then released is forgotten
silently; a discarded file is forgotten too, and takes its copy with it (there, both stay, H6).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import assert_never

from statelog.errors import UsageError, check


class FileOwner(enum.Enum):
    """Who may delete a file."""

    TASK = "task"
    OFFERED = "offered"
    CHECKPOINT = "checkpoint"
    GARBAGE = "garbage"


@dataclass(frozen=True, slots=True)
class FileTracked:
    """A file was uploaded that holds *num_sets* (> 0) change sets; *copy* is its local copy."""

    path: str
    num_sets: int
    copy: str | None = None


@dataclass(frozen=True, slots=True)
class FileOffered:
    """A handle that names the file has left the writer."""

    path: str


@dataclass(frozen=True, slots=True)
class FileConfirmed:
    """A completed checkpoint names the file."""

    path: str


@dataclass(frozen=True, slots=True)
class SetReleased:
    """One set of the file is not needed by its writer any more."""

    path: str


@dataclass(frozen=True, slots=True)
class FileDiscarded:
    """The file lost its race and is in no result; it goes whatever its count says."""

    path: str


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Nobody needs the file."""

    path: str


@dataclass(frozen=True, slots=True)
class DropCopy:
    """The file goes, and its local copy with it."""

    copy: str


@dataclass(frozen=True, slots=True)
class ReleaseCopy:
    """The task needs the local copy no longer; checkpoints may."""

    copy: str


Event = FileTracked | FileOffered | FileConfirmed | SetReleased | FileDiscarded
Action = DeleteFile | DropCopy | ReleaseCopy


@dataclass(slots=True)
class _File:
    owner: FileOwner
    num_sets: int
    copy: str | None = None


class FileOwnership:
    """
    The files of one storage.

    Invariants:
      1. a tracked file has at least one set that is not released;
      2. no tracked file is garbage: garbage leaves as a `DeleteFile`, once;
      3. a file of a checkpoint never becomes garbage;
      4. a local copy is dropped or released once: when its file leaves.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}

    def owner(self, path: str) -> FileOwner | None:
        """Return who owns the file, or None for a file that is not tracked."""
        file = self._files.get(path)
        return None if file is None else file.owner

    def num_sets(self, path: str) -> int:
        """Return how many sets of the file are still needed; 0 for an unknown file."""
        file = self._files.get(path)
        return 0 if file is None else file.num_sets

    def __len__(self) -> int:
        return len(self._files)

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """
        Note what happened and return what to delete.  Unknown paths are ignored.

        Raises:
            UsageError: A file is tracked with no set, or twice.
        """
        del now_ns
        match event:
            case FileTracked(path, num_sets, copy):
                if num_sets <= 0:
                    raise UsageError(f"file {path} must be tracked with at least one set")
                if path in self._files:
                    raise UsageError(f"file {path} is tracked already; names are never reused")
                self._files[path] = _File(FileOwner.TASK, num_sets, copy)
                return []
            case FileOffered(path):
                file = self._files.get(path)
                if file is not None and file.owner is FileOwner.TASK:
                    file.owner = FileOwner.OFFERED
                return []
            case FileConfirmed(path):
                file = self._files.get(path)
                if file is not None:
                    file.owner = FileOwner.CHECKPOINT
                return []
            case SetReleased(path):
                return self._release(path)
            case FileDiscarded(path):
                file = self._files.pop(path, None)
                return [DeleteFile(path)] if file is None else _leave(path, file)
            case _:
                assert_never(event)

    def _release(self, path: str) -> list[Action]:
        file = self._files.get(path)
        if file is None:
            return []
        file.num_sets -= 1
        if file.num_sets:
            return []
        del self._files[path]
        return _leave(path, file)

    def check_invariants(self) -> None:
        """
        Look at every file; for tests.

        Raises:
            InvariantError: One of the class's invariants is broken.
        """
        for path, file in self._files.items():
            check(file.num_sets > 0, f"{path} has {file.num_sets} sets")
            check(file.owner is not FileOwner.GARBAGE, f"{path} is garbage but tracked")


def _leave(path: str, file: _File) -> list[Action]:
    """Say what becomes of a file, and of its copy, that is tracked no longer."""
    if file.owner is FileOwner.CHECKPOINT:
        return [] if file.copy is None else [ReleaseCopy(file.copy)]
    return [DeleteFile(path)] if file.copy is None else [DeleteFile(path), DropCopy(file.copy)]
