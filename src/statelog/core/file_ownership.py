"""
Who owns an uploaded file, and when it may be deleted.

::

    task ──> offered ──> checkpoint          a checkpoint owns it: only the checkpoint side deletes
      │         │
      └────┬────┘   last set released
           ▼
        garbage                              delete it

A file contains sets of several writers.  They are counted; each set is released exactly once, by
its writer.  One confirmed set protects the whole file from then on, because the checkpoint's handle
names the file, not the set.  A file may have a host-local copy.  The copy is deleted with the file,
and released when the file is handed over.
Source: Flink, TaskChangelogRegistry.  Deviations: a file confirmed and then released is no longer
tracked; nor is a discarded file, whose copy is deleted (in Flink both remain, H6).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, assert_never

from statelog.core.transitions import Transitions
from statelog.errors import UsageError, check


class FileOwner(enum.Enum):
    """Who may delete a file."""

    TASK = "owned by the task"
    OFFERED = "offered to the checkpoint coordinator"
    CHECKPOINT = "owned by a checkpoint"


@dataclass(frozen=True, slots=True)
class FileTracked:
    """A file with *num_sets* (> 0) change sets was uploaded; *copy* is its local copy."""

    path: str
    num_sets: int
    copy: str | None = None


@dataclass(frozen=True, slots=True)
class FileOffered:
    """A handle that names the file was returned by the writer."""

    path: str


@dataclass(frozen=True, slots=True)
class FileConfirmed:
    """A completed checkpoint names the file."""

    path: str


@dataclass(frozen=True, slots=True)
class SetReleased:
    """One set of the file is no longer needed by its writer."""

    path: str


@dataclass(frozen=True, slots=True)
class FileDiscarded:
    """The file is in no result, because another attempt won; delete it whatever its count."""

    path: str


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Delete a file that is no longer needed."""

    path: str


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Delete the local copy of a deleted file."""

    copy: str


@dataclass(frozen=True, slots=True)
class ReleaseCopy:
    """The task no longer needs the local copy; checkpoints may."""

    copy: str


Event = FileTracked | FileOffered | FileConfirmed | SetReleased | FileDiscarded
Action = DeleteFile | DropCopy | ReleaseCopy


OWNERS: Final = Transitions(
    {
        FileOwner.TASK: {FileOffered: FileOwner.OFFERED, FileConfirmed: FileOwner.CHECKPOINT},
        FileOwner.OFFERED: {FileConfirmed: FileOwner.CHECKPOINT},
        FileOwner.CHECKPOINT: {},
    }
)


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
      2. a file leaves as a `DeleteFile`, once, unless a checkpoint owns it;
      3. a file of a checkpoint never becomes garbage;
      4. a local copy is dropped or released once: when its file is no longer tracked.
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
                    raise UsageError(f"file {path} has {num_sets} change sets; it must have some")
                if path in self._files:
                    raise UsageError(f"file {path} is already tracked; give each file a new name")
                self._files[path] = _File(FileOwner.TASK, num_sets, copy)
                return []
            case FileOffered(path) | FileConfirmed(path):
                file = self._files.get(path)
                if file is not None:
                    file.owner = OWNERS.after(file.owner, event)
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


def _leave(path: str, file: _File) -> list[Action]:
    """Return the actions for a file, and its copy, that is no longer tracked."""
    if file.owner is FileOwner.CHECKPOINT:
        return [] if file.copy is None else [ReleaseCopy(file.copy)]
    return [DeleteFile(path)] if file.copy is None else [DeleteFile(path), DropCopy(file.copy)]
