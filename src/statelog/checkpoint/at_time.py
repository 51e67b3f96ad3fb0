"""Find the checkpoint that an id, a tag or a point in time means."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import suppress
from typing import Final

from statelog.arguments import whole_number
from statelog.checkpoint.history import Entries, read_checkpoint
from statelog.checkpoint.restore import check_continues, find_continuing
from statelog.checkpoint.tags import TagKind, list_tags, retained_checkpoints
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    UsageError,
)
from statelog.model import CheckpointPosition
from statelog.runtime.clock import utc_time
from statelog.store import ObjectStore

CheckpointName = int | str | dt.datetime
"""How callers name a checkpoint: an id, `latest`, `earliest`, a tag, or a time."""
LATEST: Final = "latest"
EARLIEST: Final = "earliest"
_ID: Final = re.compile(r"\d{1,18}", re.ASCII)


def checkpoint_id_of(store: ObjectStore, given: CheckpointName, name: str = "checkpoint") -> int:
    """Return the id of the checkpoint that a caller names."""
    if isinstance(given, dt.datetime):
        return find_checkpoint_at(store, _with_zone(given))
    if not isinstance(given, str):
        return whole_number(given, name, low=0)
    text = given.strip()
    if _ID.fullmatch(text):
        return int(text)
    if "/" in text:
        return _id_at(store, CheckpointPosition.from_text(text))
    if text == LATEST:
        newest = Entries(store).newest()
        if newest is not None:
            return newest.checkpoint_id
    if text == EARLIEST and (retained := retained_checkpoints(store)):
        return retained[0]
    if text in (LATEST, EARLIEST):
        raise CheckpointError(f"{store.url} has no checkpoint", reason="not_found")
    tags = {tag.name: tag for tag in list_tags(store) if tag.kind is TagKind.TAG}
    if text in tags:
        return tags[text].checkpoint_id
    try:
        time = parse_time(text)
    except UsageError as error:
        raise UsageError(
            f"{name} is {given!r:.100}, which is no id, no tag of {store.url} (it has: "
            f"{', '.join(tags) or 'none'}), not {LATEST} or {EARLIEST}, and no time of ISO 8601 such as "
            "2026-11-22T10:30:00+01:00"
        ) from error
    return find_checkpoint_at(store, time)


def _id_at(store: ObjectStore, position: CheckpointPosition) -> int:
    """Return the number of a position that the newest checkpoint continues."""
    find_continuing(store, position)
    with suppress(ObjectNotFoundError):  # the caller says what a deleted checkpoint means
        check_continues(store, read_checkpoint(store, position.checkpoint_id).checkpoint, position)
    return position.checkpoint_id


def given_checkpoint_id(store: ObjectStore, given: CheckpointName | None) -> int | None:
    """Return the id of the checkpoint that a caller names, None for none; raises as `checkpoint_id_of`."""
    return None if given is None else checkpoint_id_of(store, given)


def parse_time(text: str) -> dt.datetime:
    """Return a time of ISO 8601; without a zone it is UTC."""
    try:
        time = dt.datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(
            f"{text!r:.100} is no time of ISO 8601, such as 2026-11-22T10:30:00+01:00; without a zone "
            "it is UTC"
        ) from error
    return _with_zone(time)


def _with_zone(time: dt.datetime) -> dt.datetime:
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time


def find_checkpoint_at(store: ObjectStore, time: dt.datetime) -> int:
    """
    Return the newest retained checkpoint that was created at or before a time.

    A checkpoint that cannot be read, or whose time no calendar has, is passed over.
    """
    oldest = ""
    for checkpoint_id in reversed(retained_checkpoints(store)):
        try:
            checkpoint = read_checkpoint(store, checkpoint_id).checkpoint
        except (ObjectNotFoundError, CorruptionError, IncompatibleFormatError):
            continue
        created = utc_time(checkpoint.created_at_ms)
        if created is None:
            continue
        if created <= time:
            return checkpoint_id
        oldest = f"; the oldest, checkpoint {checkpoint_id}, was created at {created.isoformat()}"
    raise CheckpointError(
        f"{store.url} has no retained checkpoint that was created at or before {time.isoformat()}"
        f"{oldest}. Let the query retain more checkpoints (retainedCheckpoints)",
        reason="not_found",
    )
