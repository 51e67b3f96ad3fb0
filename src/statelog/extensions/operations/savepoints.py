"""Tags, which pin a checkpoint together with the position of its sources, under a name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.edit import edit_session
from statelog.checkpoint.history import Entries, StoredCheckpoint, open_state
from statelog.checkpoint.listing import LATEST, CheckpointName, given_checkpoint_id
from statelog.checkpoint.query_files import StoredQuery
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.retained import Tag, TagKind, delete_tag, list_tags
from statelog.checkpoint.tags import find_tag, read_tag
from statelog.errors import CheckpointError, CheckpointNotFoundError, UsageError
from statelog.extensions.operations.position_files import position_files
from statelog.model import Json
from statelog.redaction import redacted
from statelog.runtime.clock import pause
from statelog.store import LocationStore, ObjectStore, open_query_files
from statelog.store.location import is_known, kind_of, normalize_url
from statelog.store.location_store import split_options
from statelog.store.parents import may_follow
from statelog.store.paths import STATE_FOLDER

__all__ = ["Tag", "TagKind", "tag", "tags", "untag"]

Location = str | os.PathLike[str]

_SINK_ATTEMPTS: Final = 100
_SINK_PAUSE_S: Final = 0.1


def tags(location: Location, *, storage_options: Mapping[str, object] | None = None) -> list[Tag]:
    """
    Return the tags of a state location, including the tags of forks and readers.

    Example:
        for tag in statelog.tags("s3://bucket/jobs/totals"):
            print(tag.name, tag.checkpoint_id)

    Args:
        location: Path or URL of the state location.
        storage_options: Options of the store's client, as for `open_store`.

    Raises:
        UsageError: There is no such directory.
        StoreError: The store failed.

    Blocks: On the store, one listing.
    """
    return list_tags(open_state(location, options=storage_options))


def tag(
    location: Location,
    name: str,
    *,
    checkpoint: CheckpointName | None = None,
    checkpoint_location: Location | None = None,
    comment: str = "",
    storage_options: Mapping[str, object] | None = None,
) -> Tag:
    """
    Pin a checkpoint under a name, together with the position of its sources.

    The checkpoint, and all it needs, stays until `untag`.  `fork` continues from it, with the same
    rows of the sources as the query, even when Spark has deleted the files of that micro-batch.
    The same call repeated returns the tag of the first one.

    Example:
        statelog.tag(
            "s3://bucket/jobs/totals",
            "before-release",
            checkpoint_location="s3://bucket/queries/totals",
        )

    Args:
        location: Path or URL of the state location.
        name: Letters, digits, ".", "_" and "-"; not in use for another checkpoint or comment.
        checkpoint: Its id, "latest", "earliest", another tag, or a time of ISO 8601; None for the
            newest one.
        checkpoint_location: The query's checkpointLocation; None for what the checkpoint records.
        comment: A human-readable comment, stored with the tag.
        storage_options: Options of the store's client, as for `open_store`.

    Raises:
        CheckpointNotFoundError: The checkpoint is not retained.
        CheckpointError: Its micro-batch is not finished yet (`reason` "in_progress"), or its files
            do not match the state.
        UsageError: The name is taken or not valid, or *location* or *checkpoint_location* is none.
        StoreError: A store failed; repeat the call.

    Blocks: On both stores; up to 10 s more until the sink of the micro-batch has taken its rows.
    """
    store = open_state(location, options=storage_options)
    checkpoint = None if checkpoint == LATEST else checkpoint
    checkpoint_id = given_checkpoint_id(store, checkpoint)
    now_id = _newest_id(store) if checkpoint_id is None else checkpoint_id
    with edit_session(store, "tag", name=name, comment=comment) as session:
        new = _earlier_tag(store, name, now_id, comment)
        facts: dict[str, Json] = {"comment": comment}
        files = None
        if new is None:
            source = finished_source(
                store,
                checkpoint_id,
                lambda recorded: query_store(store, checkpoint_location, recorded, storage_options),
            )
            record = source.record
            files = source.files
            facts |= {"batch_id": record.batch_id, "query_id": record.query_id}
            new = Tag(kind=TagKind.TAG, name=name, checkpoint_id=source.checkpoint_id)
        new = session.pin(new, facts=facts, files=files)
        session.result(checkpoint_id=new.checkpoint_id)
    return new


def _earlier_tag(store: LocationStore, name: str, checkpoint_id: int, comment: str) -> Tag | None:
    """Return the tag that an earlier call with the same arguments created, if any."""
    for tag in list_tags(store):
        is_same = (tag.kind, tag.name, tag.checkpoint_id) == (TagKind.TAG, name, checkpoint_id)
        if is_same and read_tag(store, tag).facts.get("comment") == comment:
            return tag
    return None


def untag(
    location: Location,
    name: str,
    *,
    kind: str = "tag",
    apply: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> Tag:
    """
    Remove a tag; garbage collection then deletes the checkpoint unless it is retained.

    Example:
        statelog.untag("s3://bucket/jobs/totals", "before-release", apply=True)

    Args:
        location: Path or URL of the state location.
        name: Its name.
        kind: "tag", or "fork" or "reader" to remove what a fork or a reader has put.  A fork that
            still needs objects of the checkpoint can no longer be read afterwards.
        apply: Remove it; False only returns the tag.
        storage_options: Options of the store's client, as for `open_store`.

    Raises:
        CheckpointNotFoundError: The location does not contain such a tag.
        UsageError: *kind* is not a kind of tag, or *location* does not exist.
        StoreError: The store failed.

    Blocks: On the store.
    """
    kinds = {tag_kind.value: tag_kind for tag_kind in TagKind}
    if kind not in kinds:
        raise UsageError(f"kind must be one of {', '.join(kinds)}, not {kind!r}")
    store = open_state(location, options=storage_options)
    existing = find_tag(store, name, kinds[kind])
    if not apply:
        return existing
    with edit_session(store, "untag", name=name, kind=kind) as session:
        delete_tag(store, existing)
        session.result(checkpoint_id=existing.checkpoint_id)
    return existing


# What a tag keeps, and a fork goes on from: a checkpoint, and the position of its sources.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSource:
    """
    The checkpoint to tag or fork, with its record.

    Args:
        store: The location.
        stored: The checkpoint.
        files: The files of its source position; None for the state only.
        query: The checkpointLocation that they were read from; None for another place.
    """

    store: LocationStore
    stored: StoredCheckpoint
    files: dict[str, bytes] | None
    query: StoredQuery | None = None

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint."""
        return self.stored.checkpoint.checkpoint_id

    @property
    def record(self) -> BatchRecord:
        """The record of the micro-batch that created the checkpoint."""
        return BatchRecord.of(self.stored.checkpoint)


OpenQuery = Callable[[str | None], ObjectStore | None]
"""
Opens the checkpointLocation, given what the checkpoint records as its place.

Returns None for the state only.
"""


def fork_source(store: LocationStore, checkpoint_id: int, open_query: OpenQuery) -> ForkSource:
    """Read a checkpoint, and the position of its sources."""
    stored = Entries(store).load(checkpoint_id)
    record = BatchRecord.of(stored.checkpoint)
    opened = open_query(record.checkpoint_location)
    if opened is None:
        return ForkSource(store=store, stored=stored, files=None)
    query = StoredQuery(opened)
    files = position_files(query, record)
    return ForkSource(store=store, stored=stored, files=files, query=query)


def finished_source(
    store: LocationStore, checkpoint_id: int | None, open_query: OpenQuery
) -> ForkSource:
    """Wait until the sink has written a checkpoint's rows, then read it; None is the newest."""
    now_id = _newest_id(store) if checkpoint_id is None else checkpoint_id
    for attempt in range(_SINK_ATTEMPTS + 1):
        try:
            return fork_source(store, now_id, open_query)
        except CheckpointNotFoundError:
            if attempt == _SINK_ATTEMPTS or checkpoint_id is not None:
                raise
            now_id = _newest_id(store)  # the query went on meanwhile
        except CheckpointError as error:
            if attempt == _SINK_ATTEMPTS or error.reason != "in_progress":
                raise
            pause(_SINK_PAUSE_S)
    raise AssertionError("the last attempt must return or raise an error")


def tagged_source(store: LocationStore, tag: Tag) -> ForkSource:
    """Read a tagged checkpoint, and the position stored in the tag."""
    files = read_tag(store, tag).files or None
    return ForkSource(store=store, stored=Entries(store).load(tag.checkpoint_id), files=files)


def _newest_id(store: LocationStore) -> int:
    return find_checkpoint(store).checkpoint_id


def query_store(
    store: LocationStore,
    named: Location | None,
    recorded: str | None,
    options: Mapping[str, object] | None,
) -> ObjectStore:
    """Return a query's checkpointLocation: given, recorded, or the folder around the state."""
    if named is None and recorded is not None and not may_follow(store.url, recorded, ()):
        raise CheckpointError(
            f"the checkpoint in {store.url} records {redacted(recorded)} as the query's "
            "checkpointLocation, which is in a different bucket or store. statelog does not open a "
            "checkpointLocation that only the state location names: if you trust it, pass "
            "checkpoint_location (--checkpoint-location)",
            reason="not_found",
        )
    folder, _, name = store.url.rpartition("/")
    around = folder if name == STATE_FOLDER else None
    for place in (named, recorded, around):
        if place is not None:
            return open_query_files(place, options=client_options(place, store, options))
    raise CheckpointError(
        f"the checkpoint in {store.url} does not record the query's "
        "checkpointLocation: pass checkpoint_location (--checkpoint-location)",
        reason="not_found",
    )


def client_options(
    place: Location, store: LocationStore, options: Mapping[str, object] | None
) -> Mapping[str, object] | None:
    """
    Return the client options of *store* for a different place in the same kind of store.

    Else None.
    """
    text = os.fspath(place)
    if is_known(text):
        same = kind_of(normalize_url(text)) is kind_of(store.url)
    else:
        same = text.partition(":")[0] == store.url.partition(":")[0]
    return split_options(options)[0] if same else None
