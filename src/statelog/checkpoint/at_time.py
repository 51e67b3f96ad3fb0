"""Find the checkpoint that a point in time, given as text, means."""

from __future__ import annotations

import datetime as dt

from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.tags import retained_checkpoints
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    UsageError,
)
from statelog.store import LocationPaths, ObjectStore


def parse_time(text: str) -> dt.datetime:
    """
    Return a time of ISO 8601; without a zone it is UTC.

    Raises:
        UsageError: It is no such time.
    """
    try:
        time = dt.datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(
            f"{text!r:.100} is no time of ISO 8601, such as 2026-11-22T10:30:00+01:00; without a zone "
            "it is UTC"
        ) from error
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time


def find_checkpoint_at(store: ObjectStore, paths: LocationPaths, time: dt.datetime) -> int:
    """
    Return the newest retained checkpoint that was created at or before a time.

    A checkpoint that cannot be read is passed over: its time is not known.

    Args:
        store: The store of the location.
        paths: The location in the store.
        time: With a zone.

    Raises:
        CheckpointError: All are newer, or there is none (`reason` "not_found").
        StoreError: The store failed.

    Blocks: On the store, up to two requests for each retained checkpoint.
    """
    oldest = ""
    for checkpoint_id in reversed(retained_checkpoints(store, paths)):
        try:
            found = read_checkpoint(store, paths, checkpoint_id).checkpoint
        except (ObjectNotFoundError, CorruptionError, IncompatibleFormatError):
            continue
        created = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(
            milliseconds=found.created_at_ms
        )
        if created <= time:
            return checkpoint_id
        oldest = f"; the oldest, checkpoint {checkpoint_id}, was created at {created.isoformat()}"
    raise CheckpointError(
        f"{store.url} has no retained checkpoint that was created at or before {time.isoformat()}"
        f"{oldest}. Let the query retain more checkpoints (retainedCheckpoints)",
        reason="not_found",
    )
