"""
Locations of statelog 0.2, which numbers claims and checkpoints separately.

Claims are `owner/<epoch>` there.  An owner that is fenced may commit late; its checkpoint, a *zombie*,
is not part of the history.  What this edition has to know of that is here: which checkpoint is the
newest, and how drivers of 0.2 are fenced.  Everything else treats both alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from statelog.model import CompletedCheckpoint
from statelog.store import PATHS, ObjectStore
from statelog.store.conditional_put import put_or_find
from statelog.store.paths import parse_owner


def newest_epoch(store: ObjectStore) -> int:
    """Return the newest epoch that drivers of statelog 0.2 have claimed, 0 if there is none."""
    epochs = (parse_owner(info.path) for info in store.list(PATHS.owners))
    return max((epoch for epoch in epochs if epoch is not None), default=0)


def is_zombie(checkpoint: CompletedCheckpoint, others: Iterable[CompletedCheckpoint]) -> bool:
    """Return whether a checkpoint of statelog 0.2 is not part of the history."""
    parent = -1 if checkpoint.parent_id is None else checkpoint.parent_id
    return any(
        parent < other.checkpoint_id < checkpoint.checkpoint_id and other.epoch > checkpoint.epoch
        for other in others
    )


def fence_drivers(
    store: ObjectStore,
    owner_id: str,
    clock_ms: Callable[[], int],
    pause: Callable[[float], None],
) -> int:
    """
    Put the claim that a running driver of statelog 0.2 looks for; return its epoch.

    From then on no such driver reports a commit.

    Args:
        store: The store of the location.
        owner_id: Name of the owner, for information.
        clock_ms: Milliseconds since 1970, for information.
        pause: Waits the given number of seconds if the store answers "exists" and returns no claim.

    Returns:
        The epoch; 0 if no driver of 0.2 has ever claimed the location, so that there is none to fence.

    Raises:
        StoreError: The store failed.

    Blocks: On the store.
    """
    epoch = newest_epoch(store)
    if not epoch:
        return 0
    body = msgspec.json.encode(
        {
            "version": 1,
            "owner_id": owner_id,
            "attempt": os.urandom(16).hex(),
            "created_at_ms": clock_ms(),
        }
    )
    while True:
        epoch += 1
        path = PATHS.owner(epoch)
        existing = put_or_find(store, path, body, partial(store.get, path), pause)
        if existing is None or existing == body:
            return epoch
