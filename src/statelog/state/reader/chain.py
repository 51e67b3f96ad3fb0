"""The newest checkpoint, those between two, each the parent of the next, and the time of each."""

from __future__ import annotations

from typing import Final

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import (
    Entries,
    StoredCheckpoint,
    present_ids,
    read_checkpoint,
    readable,
)
from statelog.errors import CheckpointError, ObjectNotFoundError, StatelogError, UsageError
from statelog.model import CompletedCheckpoint
from statelog.store import PATHS, ObjectStore, ask_both

ATTEMPTS: Final = 5
"""How often a checkpoint is looked for again that was deleted while it was read."""


def newest_after(
    store: ObjectStore, held: CompletedCheckpoint | None
) -> CompletedCheckpoint | None:
    """
    Return the newest checkpoint, or None if it is the one held.

    Without a newer one, that costs two requests at once: a listing, and the entry of the one held,
    because a location that was made again may have another checkpoint of its number.

    Args:
        store: Where the location is.
        held: The checkpoint held; None for none.

    Raises:
        CheckpointError: There is no checkpoint (`reason` "not_found"), or the newest is damaged.
        IncompatibleFormatError: A newer statelog wrote the newest one.
        StoreError: The store failed.

    Blocks: On the store.
    """
    for _ in range(ATTEMPTS):
        ids, is_stored = ask_both(store, lambda: _present(store), lambda: _is_stored(store, held))
        if held is not None and is_stored and ids[-1:] == [held.checkpoint_id]:
            return None
        newest = Entries(store, ids).newest() if ids else None
        if newest is not None:
            is_same = held is not None and newest.position == held.position
            return None if is_same else newest
        if not ids:
            break
        # The query may have deleted every checkpoint of the listing before one could be read.
    text = "has no checkpoint"
    if held is not None:
        text = f"no longer has a checkpoint; {held.checkpoint_id} was the last one read"
    raise CheckpointError(f"{store.url} {text}", reason="not_found")


def _is_stored(store: ObjectStore, held: CompletedCheckpoint | None) -> bool:
    """Return whether the location still has the checkpoint held, and not another one of its number."""
    if held is None:
        return False
    entry = readable(store, held.checkpoint_id)
    return isinstance(entry, StoredCheckpoint) and entry.checkpoint.position == held.position


def _present(store: ObjectStore) -> list[int]:
    try:
        return present_ids(store)
    except ObjectNotFoundError:  # the directory was deleted
        return []


def chain_before(
    store: ObjectStore, last: CompletedCheckpoint, after: int
) -> list[CompletedCheckpoint]:
    """
    Return the checkpoints from *after* on that lead to *last*, which is left out, ascending.

    Args:
        store: Where the location is.
        last: The last checkpoint.
        after: Id of the first one; the id of *last* gives none.

    Raises:
        UsageError: *after* is newer than *last*.
        CheckpointError: One of them was deleted (`reason` "subsumed"), or *last* does not continue
            *after*, because the query was taken back (`reason` "not_newer").
        CorruptionError: One is damaged.

    Blocks: On the store, two requests for each checkpoint.
    """
    if after > last.checkpoint_id:
        raise UsageError(
            f"checkpoint {after} is newer than checkpoint {last.checkpoint_id}: a feed goes from an "
            "older one to a newer one"
        )
    chain: list[CompletedCheckpoint] = []
    checkpoint = last
    while checkpoint.checkpoint_id > after:
        parent = checkpoint.parent_id
        if parent is None or parent < after:
            raise CheckpointError(
                f"checkpoint {last.checkpoint_id} of {store.url} does not continue checkpoint "
                f"{after}: its history goes from {checkpoint.checkpoint_id} back to "
                f"{'the empty state' if parent is None else parent}, because the query was rewound. "
                "Begin again with the whole state",
                reason="not_newer",
                checkpoint_id=after,
            )
        try:
            checkpoint = read_checkpoint(store, parent).checkpoint
        except ObjectNotFoundError as error:
            raise CheckpointError(
                f"the changes from checkpoint {after} to {last.checkpoint_id} of {store.url} are not "
                f"whole: checkpoint {parent} was deleted{_retained(store)}. Let the query "
                "retain more checkpoints, compare the two states instead, or begin again with the "
                "whole state",
                reason="subsumed",
                checkpoint_id=parent,
                path=PATHS.metadata(parent),
            ) from error
        chain.append(checkpoint)
    return chain[::-1]


def as_of_ms(checkpoint: CompletedCheckpoint) -> int:
    """Return the processing time of a checkpoint's micro-batch; without one, its creation."""
    now_ms = BatchRecord.of(checkpoint).now_ms
    return now_ms if now_ms >= 0 else checkpoint.created_at_ms


def _retained(store: ObjectStore) -> str:
    try:
        newest = Entries(store).newest()
    except StatelogError:
        return ""
    if newest is None:
        return ""
    return f" (the query retains {', '.join(map(str, newest.retained))})"
