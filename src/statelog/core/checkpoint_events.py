"""
The events and actions of the checkpoint ledger (`core/checkpoint_ledger.py`).

An event is what happened, an action is what the shell does next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from statelog.core.pins import Pin
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
    A retained checkpoint and the objects it needs.

    Args:
        checkpoint_id: Its number.
        objects: All objects it needs, its own metadata last.  None if it cannot be read; then no
            object counts as garbage while it is retained.
    """

    checkpoint_id: int
    objects: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Restored:
    """
    The history of the location was read.

    Args:
        latest: The checkpoint to continue from; None for an empty location.
        retained: Retained checkpoints, ascending, *latest* last.
        pins: The pins of the location.
        given_up: Newer checkpoints that the first commit subsumes, ascending.
    """

    latest: CompletedCheckpoint | None
    retained: tuple[RetainedCheckpoint, ...] = ()
    pins: tuple[Pin, ...] = ()
    given_up: tuple[RetainedCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Triggered:
    """Checkpoint *checkpoint_id* was requested from the tasks that own *ranges*."""

    checkpoint_id: int
    ranges: tuple[KeyGroupRange, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One task has made its part durable."""

    checkpoint_id: int
    snapshot: TaskStateSnapshot


@dataclass(frozen=True, slots=True)
class Declined:
    """A task or the driver gave up the checkpoint."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """The engine commits the checkpoint; its parts are fixed from here on."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The metadata object exists, and this owner wrote it."""

    checkpoint: CompletedCheckpoint
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another owner has taken over the location."""

    reason: str


@dataclass(frozen=True, slots=True)
class CleanUpRequested:
    """
    The engine runs the clean-up.

    Args:
        pins: The pins of the location, read after the commits that subsumed *subsumed*; None if they
            were not read, which is allowed while no checkpoint was subsumed since.
        leftovers: Checkpoints of earlier owners that are no longer retained.
        subsumed: The checkpoints that are settled by these pins; None for all.
    """

    pins: tuple[Pin, ...] | None = None
    leftovers: tuple[RetainedCheckpoint, ...] = ()
    subsumed: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Deleted:
    """These objects were deleted."""

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
        retained: Checkpoints retained after the commit, itself included.
    """

    checkpoint_id: int
    parent_id: int | None
    materialized: tuple[MaterializedHandle, ...]
    log: tuple[ChangelogStateHandle, ...]
    retained: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteObjects:
    """Delete these objects in this order, then report the deleted ones with `Deleted`."""

    paths: tuple[str, ...]


Action: TypeAlias = WriteMetadata | DeleteObjects
