"""
Release the parent of a fork: delete there the tag that keeps a checkpoint for the fork.

It is the only change outside of a location that a clean-up makes, so it says what it deletes where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statelog.checkpoint.audited import audited
from statelog.errors import CheckpointError
from statelog.store import LocationPaths, LocationStore

_PATHS: Final = LocationPaths()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRelease:
    """
    What ends the dependence of a fork on a parent.

    Args:
        fork_id: The id of the fork.
        parent: URL of the parent's location; "" if it was deleted.
        tags: The objects of the parent that keep a checkpoint for this fork, which are deleted there.
        problem: Why nothing can be deleted; "" if it can.
    """

    fork_id: str
    parent: str = ""
    tags: tuple[str, ...] = ()
    problem: str = ""


def release_parent(store: LocationStore, fork_id: str, *, dry_run: bool = False) -> ParentRelease:
    """
    Delete the tag by which a fork keeps a checkpoint of its parent, and the reference to the parent.

    An earlier call may have deleted either of them; a parent that was deleted is no error.  A tag that
    names another location is left, and so is one in a bucket or store that the caller has not named.

    Returns:
        What was deleted, or would be in a dry run; or why it was not.

    Raises:
        CheckpointError: The reference to the parent is damaged (`reason` "damaged").
        StoreError: A store failed.

    Blocks: On both stores.
    """
    try:
        released = store.released_parent(fork_id)
    except CheckpointError as error:
        if error.reason != "parent":
            raise
        return ParentRelease(fork_id=fork_id, problem=str(error))
    if released is not None and not dry_run:
        parent = LocationStore(released[0])
        with audited(parent, "release", fork_id=fork_id, fork=store.url):
            parent.delete(released[1])
    if not dry_run:
        store.delete([_PATHS.parent(fork_id)])
    if released is None:
        return ParentRelease(fork_id=fork_id)
    return ParentRelease(fork_id=fork_id, parent=released[0].url, tags=released[1])
