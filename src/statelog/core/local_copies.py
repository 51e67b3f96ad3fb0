"""
Which host-local copies of changelog files are still needed, and when to delete one.

::

    written ──> held by the log ────────────┐
                     │  a checkpoint uses it │ not held, not used
                     ▼                       ▼
                used by checkpoints ────> deleted

A copy is kept as long as the log still has a set of its file, or a checkpoint uses it that is in
flight or the last confirmed one.  An aborted checkpoint ends its own use and no other.  When the
remote file is deleted, its copy is deleted too, because no restore can need it.
Source: Flink, LocalChangelogRegistryImpl.  Deviations: all uses are recorded, not only the last
one, so that the abort of checkpoint N keeps what N-1 needs (H9); a copy that the log still has is
not deleted, because the next checkpoint would name a file that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from statelog.errors import check


@dataclass(frozen=True, slots=True)
class CopyWritten:
    """The file at *path* is a complete copy, and the log has sets of it."""

    path: str


@dataclass(frozen=True, slots=True)
class CopyUsed:
    """A checkpoint names the copy, which is tracked from now on."""

    path: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CopyReleased:
    """The log has no more sets of the file; checkpoints may use it."""

    path: str


@dataclass(frozen=True, slots=True)
class CopyDropped:
    """The remote file was deleted, so no restore needs the copy."""

    path: str


@dataclass(frozen=True, slots=True)
class CheckpointConfirmed:
    """A checkpoint is complete: no restore begins at an older one (ids below it)."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """A checkpoint will never be complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CopiesClosed:
    """Stop tracking; the files are kept for a restore on this host."""


@dataclass(frozen=True, slots=True)
class DeleteCopy:
    """Delete a copy that is no longer needed."""

    path: str


Event = (
    CopyWritten
    | CopyUsed
    | CopyReleased
    | CopyDropped
    | CheckpointConfirmed
    | CheckpointAborted
    | CopiesClosed
)
Action = DeleteCopy


@dataclass(slots=True)
class _Copy:
    """Whether the log holds the copy, and which checkpoints use it."""

    held: bool
    uses: list[int] = field(default_factory=list)

    @property
    def needed(self) -> bool:
        return self.held or bool(self.uses)


class LocalCopies:
    """
    The local copies of one storage.

    Invariants:
      1. every known copy is held by the log or used by a checkpoint;
      2. a copy is deleted at most once, and is not tracked from then on;
      3. an abort deletes no copy that a confirmed checkpoint uses;
      4. the uses of a copy are distinct.
    """

    def __init__(self) -> None:
        self._copies: dict[str, _Copy] = {}
        self._confirmed: int | None = None

    def __contains__(self, path: str) -> bool:
        return path in self._copies

    def __len__(self) -> int:
        return len(self._copies)

    def last_use(self, path: str) -> int | None:
        """Return the highest checkpoint id that uses the copy, or None."""
        copy = self._copies.get(path)
        return max(copy.uses) if copy is not None and copy.uses else None

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Note what happened and return which copies to delete."""
        del now_ns  # nothing here depends on time; every core object has this signature
        match event:
            case CopyWritten(path):
                self._copies.setdefault(path, _Copy(held=True)).held = True
                return []
            case CopyUsed(path, checkpoint_id):
                copy = self._copies.setdefault(path, _Copy(held=False))
                if checkpoint_id not in copy.uses:
                    copy.uses.append(checkpoint_id)
                return []
            case CopyReleased(path):
                released = self._copies.get(path)
                if released is not None:
                    released.held = False
                return self._delete_unneeded([path])
            case CopyDropped(path):
                return [] if self._copies.pop(path, None) is None else [DeleteCopy(path)]
            case CheckpointConfirmed(checkpoint_id):
                return self._confirm(checkpoint_id)
            case CheckpointAborted(checkpoint_id):
                return self._abort(checkpoint_id)
            case CopiesClosed():
                self._copies.clear()
                return []
            case _:
                assert_never(event)

    def _confirm(self, checkpoint_id: int) -> list[Action]:
        self._confirmed = max(checkpoint_id, self._confirmed or checkpoint_id)
        return self._end_uses(lambda use: use < checkpoint_id)

    def _abort(self, checkpoint_id: int) -> list[Action]:
        if self._confirmed is not None and checkpoint_id <= self._confirmed:
            return []  # too late: a restore would use it, or a newer one
        return self._end_uses(lambda use: use == checkpoint_id)

    def _end_uses(self, over: Callable[[int], bool]) -> list[Action]:
        for copy in self._copies.values():
            copy.uses = [use for use in copy.uses if not over(use)]
        return self._delete_unneeded(list(self._copies))

    def _delete_unneeded(self, paths: list[str]) -> list[Action]:
        deleted: list[Action] = []
        for path in paths:
            copy = self._copies.get(path)
            if copy is not None and not copy.needed:
                del self._copies[path]
                deleted.append(DeleteCopy(path))
        return deleted

    def check_invariants(self) -> None:
        """
        Look at every copy; for tests.

        Raises:
            InvariantError: One of the class's invariants is broken.
        """
        for path, copy in self._copies.items():
            check(copy.needed, f"{path} is kept and not needed")
            check(len(set(copy.uses)) == len(copy.uses), f"{path} is used twice by a checkpoint")
