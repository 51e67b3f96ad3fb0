"""Follow a location: the newest checkpoint after one that is known, and where a replica is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statelog.checkpoint.history import Entries, present_ids
from statelog.errors import CheckpointError, ObjectNotFoundError, StatelogError
from statelog.model import CompletedCheckpoint
from statelog.store import ObjectStore

ATTEMPTS: Final = 5
"""How often a checkpoint is looked for again that was deleted while it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """
    Where a replica is.

    Args:
        checkpoint_id: The checkpoint whose state it holds.
        batch_id: Number of the micro-batch that made it.
        as_of_ms: The processing time of that micro-batch, in milliseconds since 1970.
        checked_s: Seconds since this checkpoint was last known to be the newest one; what the
            query committed since is not in the replica.
        error: Why the last look for a newer checkpoint failed; None if it did not.
        checkpoints: How many checkpoints it came to, the first one included.
        replayed: Change sets read from the log, all in all.
        snapshots: Snapshots read.
        reloads: How often key groups were restored again, because the log did not lead on from
            what was held.
    """

    checkpoint_id: int
    batch_id: int
    as_of_ms: int
    checked_s: float
    error: StatelogError | None
    checkpoints: int
    replayed: int
    snapshots: int
    reloads: int


def newest_after(store: ObjectStore, held_id: int | None) -> CompletedCheckpoint | None:
    """
    Return the newest checkpoint, or None if it is the one held.

    Without a newer one, that costs one request.

    Args:
        store: Where the location is.
        held_id: The checkpoint held; None for none.

    Raises:
        CheckpointError: There is no checkpoint (`reason` "not_found"), or the newest is damaged.
        IncompatibleFormatError: A newer statelog wrote the newest one.
        StoreError: The store failed.

    Blocks: On the store.
    """
    for _ in range(ATTEMPTS):
        ids = _present(store)
        if ids and ids[-1] == held_id:
            return None
        newest = Entries(store, ids).newest() if ids else None
        if newest is not None:
            return None if newest.checkpoint_id == held_id else newest
        if not ids:
            break
        # The query may have deleted every checkpoint of the listing before one could be read.
    text = "has no checkpoint"
    if held_id is not None:
        text = f"no longer has a checkpoint; {held_id} was the last one read"
    raise CheckpointError(f"{store.url} {text}", reason="not_found")


def _present(store: ObjectStore) -> list[int]:
    try:
        return present_ids(store)
    except ObjectNotFoundError:  # the directory was deleted
        return []
