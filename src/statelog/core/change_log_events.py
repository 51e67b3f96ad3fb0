"""
The events and actions of `core/change_log.py`.

An event is what happened, an action is what the shell does next.
"""

from __future__ import annotations

from dataclasses import dataclass

from statelog.model import ChangeBatch, StateChangeSet, UploadResult

# --- events: what happened ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangesCut:
    """The appended changes become the next set; *size_bytes* is the sum of their values."""

    batches: tuple[ChangeBatch, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PersistRequested:
    """A checkpoint wants everything at or after *from_sqn* to be durable."""

    persist_id: int
    from_sqn: int


@dataclass(frozen=True, slots=True)
class FlushRequested:
    """The threshold is reached: upload the changes ahead of a checkpoint."""


@dataclass(frozen=True, slots=True)
class UploadSucceeded:
    """These sets are durable."""

    results: tuple[UploadResult, ...]


@dataclass(frozen=True, slots=True)
class UploadFailed:
    """The upload of these sets has failed for good."""

    sqns: tuple[int, ...]
    error: BaseException


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A completed checkpoint holds the sets of [from_sqn, to_sqn)."""

    from_sqn: int
    to_sqn: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """No checkpoint and no restore needs the sets below *to_sqn*."""

    to_sqn: int


@dataclass(frozen=True, slots=True)
class Closed:
    """
    The writer is closed.

    Args:
        unwanted_from_sqn: Sets at or above it are in no checkpoint, so their files can be deleted.
            None to keep all files that a handle names.
    """

    unwanted_from_sqn: int | None = None


# --- actions: what the shell does -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartUpload:
    """Hand these sets to the scheduler, as one task."""

    change_sets: tuple[StateChangeSet, ...]


@dataclass(frozen=True, slots=True)
class CompletePersist:
    """Every set of the persist is durable."""

    persist_id: int
    results: tuple[UploadResult, ...]
    incremental_size_bytes: int


@dataclass(frozen=True, slots=True)
class FailPersist:
    """A set of the persist cannot become durable now."""

    persist_id: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class OfferFiles:
    """A handle is about to name the files of these results."""

    results: tuple[UploadResult, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """A checkpoint now owns the files of these results."""

    results: tuple[UploadResult, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSets:
    """The writer no longer needs these sets; a file without needed sets may be deleted."""

    results: tuple[UploadResult, ...]


Event = (
    ChangesCut
    | PersistRequested
    | FlushRequested
    | UploadSucceeded
    | UploadFailed
    | Confirmed
    | Truncated
    | Closed
)
Action = StartUpload | CompletePersist | FailPersist | OfferFiles | HandOver | ReleaseSets
