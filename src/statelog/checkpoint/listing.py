"""List a location's checkpoints, and find a checkpoint by id, tag or time."""

from __future__ import annotations

import datetime as dt
import enum
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from statelog.arguments import whole_number
from statelog.checkpoint.history import (
    Entries,
    StoredCheckpoint,
    present_ids,
    read_checkpoint,
)
from statelog.checkpoint.restore import check_continues, find_continuing
from statelog.checkpoint.retained import (
    TagKind,
    list_tags,
    read_pins,
    retained_among,
    retained_checkpoints,
)
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    StatelogError,
    UsageError,
)
from statelog.model import CheckpointPosition, CompletedCheckpoint, Json
from statelog.plain_text import facts_as_html
from statelog.runtime.clock import utc_time
from statelog.store import PATHS, ObjectStore, ask_at_once, ask_both

FIGURES_PROPERTY: Final = "figures"
"""Property of a checkpoint: the figures of its micro-batch by name."""


class CheckpointState(enum.Enum):
    """Whether a checkpoint can be restored or read."""

    RETAINED = "retained"
    """Can be restored."""
    SUBSUMED = "subsumed"
    """Cannot be restored; others need change sets in its file, or it waits for deletion."""
    DAMAGED = "damaged"
    """Cannot be read."""
    INCOMPATIBLE = "incompatible"
    """Written by a newer statelog; not damaged."""


@dataclass(repr=False, frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """
    One checkpoint in a listing.

    Args:
        checkpoint_id: Its number.
        state: Whether it can be restored or read.
        size_bytes: Length of its metadata object (with inline changes and staged output).
        created_at_ms: Milliseconds since 1970, or None if it cannot be read.
        parent_id: The checkpoint it continues.
        epoch: Claim under which it was committed, or None.
        owner_id: The owner that committed it, or None.
        log_length: Number of log handles.
        log_size_bytes: Summed value bytes of its log.
        snapshot_count: Number of snapshots.
        position: Its name outside of the location; None if it cannot be read.
        is_given_up: Whether a rewind gave it up: it is not part of the history of the newest one.
        object_count: Number of objects that it refers to, its metadata not counted.
        properties: What the engine stored with it.
        problem: Why it cannot be read, or "".
    """

    checkpoint_id: int
    state: CheckpointState
    size_bytes: int
    created_at_ms: int | None = None
    parent_id: int | None = None
    epoch: int | None = None
    owner_id: str | None = None
    log_length: int = 0
    log_size_bytes: int = 0
    snapshot_count: int = 0
    object_count: int = 0
    position: CheckpointPosition | None = None
    is_given_up: bool = False
    properties: Mapping[str, Json] = field(default_factory=dict)
    problem: str = ""

    def __repr__(self) -> str:
        batch = "" if self.batch_id is None else f", micro-batch {self.batch_id}"
        created = "" if self.created_at is None else f", {self.created_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"<checkpoint {self.checkpoint_id}: {self.state.value}{batch}{created}>"

    def _repr_html_(self) -> str:
        facts = {
            "state": self.state.value,
            "micro-batch": self.batch_id,
            "created (UTC)": self.created_at and f"{self.created_at:%Y-%m-%d %H:%M:%S}",
            "size": f"{self.size_bytes:,} bytes",
            "log": f"{self.log_length:,} parts, {self.log_size_bytes:,} bytes",
            "snapshots": self.snapshot_count,
            "owner": self.owner_id,
            "problem": self.problem,
        }
        return facts_as_html(f"checkpoint {self.checkpoint_id}", facts)

    @property
    def is_retained(self) -> bool:
        """Whether the checkpoint can be restored and read."""
        return self.state is CheckpointState.RETAINED

    @property
    def batch_id(self) -> int | None:
        """The micro-batch that created the checkpoint; None if there is none or it is unknown."""
        batch_id = self.properties.get("batch_id")
        return batch_id if isinstance(batch_id, int) else None

    @property
    def durations_ms(self) -> Mapping[str, int]:
        """The duration in milliseconds of each recorded phase of its micro-batch, by name."""
        figures = self.properties.get(FIGURES_PROPERTY)
        stored = figures.get("milliseconds") if isinstance(figures, Mapping) else None
        if not isinstance(stored, Mapping):
            return {}
        return {
            name: int(duration)
            for name, duration in stored.items()
            if isinstance(duration, int | float) and not isinstance(duration, bool)
        }

    @property
    def created_at(self) -> dt.datetime | None:
        """The creation time in UTC; None if it is unreadable or out of range."""
        return None if self.created_at_ms is None else utc_time(self.created_at_ms)


def list_checkpoints(store: ObjectStore) -> list[CheckpointSummary]:
    """
    Return all checkpoints whose metadata exists, in ascending order of id.

    With a damaged newest checkpoint, those that the newest readable one retains are shown as
    retained.

    Raises:
        StoreError: The store failed.

    Blocks: On the store: a listing, and about two requests for each checkpoint, sent at once.
    """
    return [summary for summary, _ in read_listing(store)]


def read_listing(store: ObjectStore) -> list[tuple[CheckpointSummary, CompletedCheckpoint | None]]:
    """
    Return the result of `list_checkpoints`, each entry together with its checkpoint.

    None if it cannot be read.
    """
    # Two rounds of requests, each sent at once: what exists, then what is in it.
    ids, pins = ask_both(store, lambda: present_ids(store), lambda: read_pins(store))
    reads = [partial(_read, store, checkpoint_id) for checkpoint_id in ids]
    answers, newest = ask_both(
        store, lambda: ask_at_once(store, reads), lambda: _newest(Entries(store, ids))
    )
    entries = {
        checkpoint_id: answer
        for checkpoint_id, answer in zip(ids, answers, strict=True)
        if answer is not None
    }
    # The list is what a person looks at to repair a damaged location, so it must not fail.
    if isinstance(newest, StatelogError):
        readable = [entry for entry in entries.values() if isinstance(entry, StoredCheckpoint)]
        newest = readable[-1].checkpoint if readable else None
    retained = set() if newest is None else retained_among(pins, newest, list(entries))
    listing: list[tuple[CheckpointSummary, CompletedCheckpoint | None]] = []
    for checkpoint_id, entry in entries.items():
        if isinstance(entry, StoredCheckpoint):
            is_given_up = newest is not None and not newest.continues(entry.checkpoint.position)
            summary = _summary(entry, checkpoint_id in retained, is_given_up)
            listing.append((summary, entry.checkpoint))
        else:
            damaged = isinstance(entry, CorruptionError)
            unreadable = CheckpointSummary(
                checkpoint_id=checkpoint_id,
                state=CheckpointState.DAMAGED if damaged else CheckpointState.INCOMPATIBLE,
                size_bytes=store.head(PATHS.metadata(checkpoint_id)).size_bytes,
                problem=str(entry),
            )
            listing.append((unreadable, None))
    return listing


def _read(
    store: ObjectStore, checkpoint_id: int
) -> StoredCheckpoint | CorruptionError | IncompatibleFormatError | None:
    """Return a checkpoint, or the reason that it cannot be read; None if it does not exist."""
    try:
        return read_checkpoint(store, checkpoint_id)
    except ObjectNotFoundError:
        return None
    except (CorruptionError, IncompatibleFormatError) as error:
        return error


def _newest(entries: Entries) -> CompletedCheckpoint | StatelogError | None:
    """Return the newest checkpoint, or the reason that it cannot be read; None without one."""
    try:
        return entries.newest()
    except (CheckpointError, IncompatibleFormatError) as error:
        return error


def _summary(stored: StoredCheckpoint, retained: bool, is_given_up: bool) -> CheckpointSummary:
    checkpoint = stored.checkpoint
    return CheckpointSummary(
        checkpoint_id=checkpoint.checkpoint_id,
        state=CheckpointState.RETAINED if retained else CheckpointState.SUBSUMED,
        size_bytes=stored.size_bytes,
        created_at_ms=checkpoint.created_at_ms,
        parent_id=checkpoint.parent_id,
        epoch=checkpoint.epoch,
        owner_id=checkpoint.owner_id,
        log_length=len(checkpoint.log),
        log_size_bytes=sum(handle.size_bytes for handle in checkpoint.log),
        snapshot_count=len(checkpoint.materialized),
        object_count=len(checkpoint.referenced_paths()),
        position=checkpoint.position,
        is_given_up=is_given_up,
        properties=checkpoint.properties,
    )


CheckpointName = int | str | dt.datetime
"""How callers specify a checkpoint: an id, `latest`, `earliest`, a tag, or a time."""
LATEST: Final = "latest"
EARLIEST: Final = "earliest"
_ID: Final = re.compile(r"\d{1,18}", re.ASCII)


def checkpoint_id_of(store: ObjectStore, asked: CheckpointName, name: str = "checkpoint") -> int:
    """Return the id of the checkpoint that the caller asks for."""
    # By type, then by form: a time, a number, a position, a word, a tag, and a time as text.
    if isinstance(asked, dt.datetime):
        return find_checkpoint_at(store, _with_zone(asked))
    if not isinstance(asked, str):
        return whole_number(asked, name, low=0)
    text = asked.strip()
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
        raise CheckpointError(f"{store.url} does not contain a checkpoint", reason="not_found")
    tags = {tag.name: tag for tag in list_tags(store) if tag.kind is TagKind.TAG}
    if text in tags:
        return tags[text].checkpoint_id
    try:
        time = parse_time(text)
    except UsageError as error:
        raise UsageError(
            f"{name} must be an id, a tag of {store.url} (its tags: {', '.join(tags) or 'none'}), {LATEST}, "
            f"{EARLIEST}, or an ISO 8601 time such as 2026-11-22T10:30:00+01:00; got {asked!r:.100}"
        ) from error
    return find_checkpoint_at(store, time)


def _id_at(store: ObjectStore, position: CheckpointPosition) -> int:
    """Return the checkpoint number of a position, if the newest checkpoint continues it."""
    find_continuing(store, position)
    with suppress(ObjectNotFoundError):  # the caller says what a deleted checkpoint means
        check_continues(store, read_checkpoint(store, position.checkpoint_id).checkpoint, position)
    return position.checkpoint_id


def given_checkpoint_id(store: ObjectStore, asked: CheckpointName | None) -> int | None:
    """
    Return the id of the checkpoint that the caller asks for; None stays None.

    Raises as `checkpoint_id_of`.
    """
    return None if asked is None else checkpoint_id_of(store, asked)


def parse_time(text: str) -> dt.datetime:
    """Parse a time in ISO 8601; without a time zone, it is in UTC."""
    try:
        time = dt.datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(
            f"{text!r:.100} is not an ISO 8601 time such as 2026-11-22T10:30:00+01:00; a time "
            "without a time zone is in UTC"
        ) from error
    return _with_zone(time)


def _with_zone(time: dt.datetime) -> dt.datetime:
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time


def find_checkpoint_at(store: ObjectStore, time: dt.datetime) -> int:
    """
    Return the newest retained checkpoint created at or before a given time.

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
        f"{store.url} retains no checkpoint that was created at or before {time.isoformat()}"
        f"{oldest}. To retain more checkpoints, raise the query's setting retainedCheckpoints",
        reason="not_found",
    )
