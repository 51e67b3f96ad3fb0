"""
Who may write: claims of a location, numbered by epoch.

A claim is the object `owner/<epoch>`, made by put-if-absent, so that one of several starters wins
each number; it is never deleted.  Whoever holds epoch e has lost its place as soon as
`owner/<e + 1>` exists: one question to the store, with no clock and no lease in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from statelog.errors import (
    CheckpointError,
    ObjectNotFoundError,
)
from statelog.runtime.clock import pause as pause_thread
from statelog.store import LocationPaths, ObjectStore
from statelog.store.conditional_put import put_or_find
from statelog.store.paths import parse_owner

_ATTEMPTS: Final = 1000


def newest_epoch(store: ObjectStore, paths: LocationPaths) -> int:
    """Return the newest claimed epoch, 0 if there is none."""
    epochs = (parse_owner(info.path) for info in store.list(paths.owners))
    return max((epoch for epoch in epochs if epoch is not None), default=0)


def claim_epoch(
    store: ObjectStore,
    paths: LocationPaths,
    owner_id: str,
    clock_ms: Callable[[], int],
    pause: Callable[[float], None] = pause_thread,
) -> int:
    """
    Take the location over and return the epoch of the claim.

    No epoch is skipped: an owner looks only at the epoch behind its own, so a number without a
    claim would leave the owner before it in place.

    Args:
        store: Where the location is.
        paths: The location in the store.
        owner_id: Who claims; for people.
        clock_ms: Milliseconds since 1970; for people.
        pause: Waits so many seconds where the store answers "exists" and shows no claim.

    Raises:
        StoreError: The store failed, or says that a claim exists and shows none.
        CheckpointError: Others claimed the location faster, a thousand times in a row.

    Blocks: On the store.
    """
    nonce = os.urandom(16).hex()
    body = msgspec.json.encode(
        {"version": 1, "owner_id": owner_id, "attempt": nonce, "created_at_ms": clock_ms()}
    )
    epoch = newest_epoch(store, paths)
    for _ in range(_ATTEMPTS):
        epoch += 1
        path = paths.owner(epoch)
        # A lost answer looks like a conflict or a fault; the claim itself knows whose it is.
        found = put_or_find(store, path, body, partial(store.get, path), pause)
        if found is None or found == body:
            return epoch
    raise CheckpointError(
        f"could not claim {store.url} in {_ATTEMPTS} attempts: other owners keep taking it over; "
        "is the job started more than once?",
        reason="contended",
    )


def is_taken_over(store: ObjectStore, paths: LocationPaths, epoch: int) -> bool:
    """
    Return whether a newer claim than *epoch* exists.

    Raises:
        StoreError: The store failed, so nothing is known.
    """
    try:
        store.head(paths.owner(epoch + 1))
    except ObjectNotFoundError:
        return False
    return True
