"""
What the checkpoint ledger is told, and what it asks for.

Events say what happened, actions what shall be done.  The ledger itself is in
`core.checkpoint_ledger`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
)

# --------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class RetainedCheckpoint:
    """
    A checkpoint and the objects it alone or with others keeps alive.

    Args:
        checkpoint_id: Its number.
        objects: All objects it needs, its own metadata last; None if it cannot be read, and then
            nothing can be called garbage while it is retained.
    """

    checkpoint_id: int
    objects: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Restored:
    """
    The past is known.

    Args:
        latest: The checkpoint to continue from; None at the very beginning.
        retained: Checkpoints that count, ascending, *latest* last.
        leftovers: Checkpoints no longer retained whose clean-up may not have been finished.
    """

    latest: CompletedCheckpoint | None
    retained: tuple[RetainedCheckpoint, ...] = ()
    leftovers: tuple[RetainedCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Triggered:
    """Tasks that own *ranges* were asked for checkpoint *checkpoint_id*."""

    checkpoint_id: int
    ranges: tuple[KeyGroupRange, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One task has made its part durable."""

    checkpoint_id: int
    snapshot: TaskStateSnapshot


@dataclass(frozen=True, slots=True)
class Declined:
    """Somebody cannot or will not go on with the checkpoint."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """The engine wants the checkpoint committed; from here on its parts are fixed."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The metadata object is there, and it is ours."""

    checkpoint: CompletedCheckpoint
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another owner has taken the location over."""

    reason: str


@dataclass(frozen=True, slots=True)
class CleanUpRequested:
    """The engine has time for clean-up."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """These objects are gone."""

    paths: tuple[str, ...]


Event: TypeAlias = (
    Restored
    | Triggered
    | Acknowledged
    | Declined
    | CommitRequested
    | Committed
    | Fenced
    | CleanUpRequested
    | Deleted
)

# -------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """
    Build the checkpoint from these parts and put it; then report `Committed` or `Fenced`.

    Args:
        checkpoint_id: Its number.
        parent_id: The checkpoint it continues.
        materialized: Its snapshots.
        log: Its log handles; those of this checkpoint may be inline.
        retained: Checkpoints that count from then on, itself included.
    """

    checkpoint_id: int
    parent_id: int | None
    materialized: tuple[MaterializedHandle, ...]
    log: tuple[ChangelogStateHandle, ...]
    retained: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteObjects:
    """Delete these objects in this order, then report those that are gone with `Deleted`."""

    paths: tuple[str, ...]


Action: TypeAlias = WriteMetadata | DeleteObjects
