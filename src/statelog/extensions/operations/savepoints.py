"""
Tags and forks by the names of locations: what the command line and Python callers use.

    tag, untag, tags   keep a checkpoint, with the position of its sources, under a name
    fork               go on from a checkpoint with a second query, next to the first
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from statelog.checkpoint.at_time import LATEST, CheckpointName, checkpoint_id_of
from statelog.checkpoint.audit import audited
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries, open_state
from statelog.checkpoint.query_files import StoredQuery
from statelog.checkpoint.restore import find_checkpoint, keep_tag
from statelog.checkpoint.tags import (
    Tag,
    TagKind,
    delete_tag,
    find_tag,
    list_tags,
    put_tag,
    read_tag,
)
from statelog.errors import CheckpointError, StatelogError, UsageError
from statelog.extensions.operations.begun_fork import begun_fork
from statelog.extensions.operations.fork import (
    Fork,
    ForkSource,
    apply_fork,
    finished_fork,
    fork_source,
    tagged_source,
)
from statelog.extensions.operations.rewind import missing_inputs
from statelog.model import Json
from statelog.redaction import redacted
from statelog.runtime.clock import pause, wall_clock_ms
from statelog.store import (
    LocationStore,
    ObjectStore,
    open_location,
    open_query_files,
    open_store,
)
from statelog.store.encryption import split_options
from statelog.store.location import is_known, kind_of, normalize_url
from statelog.store.parents import may_follow
from statelog.store.paths import STATE_FOLDER

__all__ = ["Fork", "Tag", "TagKind", "fork", "tag", "tags", "untag"]

Location = str | os.PathLike[str]

_log = logging.getLogger("statelog")

_SINK_ATTEMPTS: Final = 100
_SINK_PAUSE_S: Final = 0.1


def tags(location: Location, *, storage_options: Mapping[str, object] | None = None) -> list[Tag]:
    """
    Return the tags of a state location, tags of forks and readers too.

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
    Keep a checkpoint under a name, with the position of its sources.

    The checkpoint, and all it needs, stays until `untag`.  `fork` goes on from it, with the same rows
    of the sources as the query did, even when Spark has deleted the files of that micro-batch.  The same
    call repeated returns the tag of the first one.

    Example:
        statelog.tag(
            "s3://bucket/jobs/totals",
            "before-release",
            checkpoint_location="s3://bucket/queries/totals",
        )

    Args:
        location: Path or URL of the state location.
        name: Letters, digits, ".", "_" and "-"; not in use for another checkpoint or comment.
        checkpoint: Its id, "latest", "earliest", another tag, or a time of ISO 8601; None for the newest one.
        checkpoint_location: The query's checkpointLocation; None for what the checkpoint records.
        comment: Stored with the tag, for people.
        storage_options: Options of the store's client, as for `open_store`.

    Raises:
        CheckpointError: The checkpoint is not retained ("subsumed", "not_found"), or its micro-batch
            is not finished yet ("in_progress"), or its files do not match the state.
        UsageError: The name is taken or not valid, or *location* or *checkpoint_location* is none.
        StoreError: A store failed; repeat the call.

    Blocks: On both stores; up to 10 s more until the sink of the micro-batch has taken its rows.
    """
    store = open_state(location, options=storage_options)
    if checkpoint is not None and checkpoint != LATEST:
        checkpoint = checkpoint_id_of(store, checkpoint)
    with audited(store, "tag", name=name, comment=comment) as line:
        new = _tagged(store, name, checkpoint, comment, checkpoint_location, storage_options)
        line.result(checkpoint_id=new.checkpoint_id)
    return new


def _tagged(
    store: LocationStore,
    name: str,
    checkpoint: CheckpointName | None,
    comment: str,
    checkpoint_location: Location | None,
    storage_options: Mapping[str, object] | None,
) -> Tag:
    present = _same_tag(store, name, _checkpoint(store, checkpoint), comment)
    if present is not None:
        return present
    source = _finished_source(
        store,
        None if checkpoint == LATEST else checkpoint,
        lambda recorded: query_store(store, checkpoint_location, recorded, storage_options),
    )
    checkpoint = source.stored.checkpoint.checkpoint_id
    record = BatchRecord.of(source.stored.checkpoint)
    facts: dict[str, Json] = {
        "comment": comment,
        "batch_id": record.batch_id,
        "query_id": record.query_id,
    }
    new = Tag(kind=TagKind.TAG, name=name, checkpoint_id=checkpoint)
    return put_tag(store, new, clock_ms=wall_clock_ms, facts=facts, files=source.files)


def _same_tag(store: LocationStore, name: str, checkpoint: int, comment: str) -> Tag | None:
    """
    Return the tag that an earlier call of the same arguments put.

    Raises:
        CheckpointError: Its checkpoint was deleted meanwhile; so is the tag then.
    """
    for tag in list_tags(store):
        is_same = (tag.kind, tag.name, tag.checkpoint_id) == (TagKind.TAG, name, checkpoint)
        if is_same and read_tag(store, tag).facts.get("comment") == comment:
            keep_tag(store, tag)
            return tag
    return None


def _finished_source(
    store: LocationStore,
    checkpoint: CheckpointName | None,
    open_query: Callable[[str | None], ObjectStore | None],
) -> ForkSource:
    """Read a checkpoint whose sink has taken its rows, after a while; None is the newest one."""
    checkpoint_id = _checkpoint(store, checkpoint)
    for attempt in range(_SINK_ATTEMPTS + 1):
        try:
            return fork_source(store, checkpoint_id, open_query)
        except CheckpointError as error:
            if attempt == _SINK_ATTEMPTS:
                raise
            if error.reason == "in_progress":
                pause(_SINK_PAUSE_S)
            elif checkpoint is None and error.reason in ("subsumed", "not_found"):
                checkpoint_id = _checkpoint(store, None)  # the query went on meanwhile
            else:
                raise
    raise AssertionError("the last attempt returns or raises")


def untag(
    location: Location,
    name: str,
    *,
    kind: str = "tag",
    storage_options: Mapping[str, object] | None = None,
) -> Tag:
    """
    Remove a tag; the next clean-up deletes the checkpoint, if nothing else keeps it.

    Example:
        statelog.untag("s3://bucket/jobs/totals", "before-release")

    Args:
        location: Path or URL of the state location.
        name: Its name.
        kind: "tag", or "fork" or "reader" to remove what a fork or a reader has put.  A fork that
            still needs objects of the checkpoint can no longer be read afterwards.
        storage_options: Options of the store's client, as for `open_store`.

    Raises:
        CheckpointError: There is no such tag (`reason` "not_found").
        UsageError: *kind* is no kind of tag, or *location* does not exist.
        StoreError: The store failed.

    Blocks: On the store.
    """
    kinds = {each.value: each for each in TagKind}
    if kind not in kinds:
        raise UsageError(f"kind must be one of {', '.join(kinds)}, not {kind!r}")
    store = open_state(location, options=storage_options)
    existing = find_tag(store, name, kinds[kind])
    with audited(store, "untag", name=name, kind=kind) as line:
        delete_tag(store, existing)
        line.result(checkpoint_id=existing.checkpoint_id)
    return existing


def fork(
    location: Location,
    new_location: Location,
    *,
    checkpoint: CheckpointName | None = None,
    tag: str | None = None,
    checkpoint_location: Location | None = None,
    new_checkpoint_location: Location | None = None,
    state_only: bool = False,
    copy: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> Fork:
    """
    Make a location from which a second query goes on, in constant time.

    The new location refers to objects of the first, which a tag keeps there.  A query with the new
    checkpointLocation and stateLocation reads what the first query reads after the checkpoint.  Both
    run next to each other.  The same call repeated goes on where an interrupted one ended.

    Example:
        statelog.fork(
            "s3://bucket/jobs/totals",
            "s3://bucket/jobs/next",
            checkpoint_location="s3://bucket/queries/totals",
            new_checkpoint_location="s3://bucket/queries/next",
        )

    Args:
        location: Path or URL of the state location.
        new_location: Path or URL of the new one, which must be empty.
        checkpoint: Its id, "latest", "earliest", a tag, or a time of ISO 8601; None for the newest one.
        tag: Instead of *checkpoint*: the name of a tag, whose position of the sources is used.
        checkpoint_location: The query's checkpointLocation; None for what the checkpoint records.
        new_checkpoint_location: The checkpointLocation of the new query.  May be left out if
            *new_location* is its folder `statelog`.
        state_only: Fork the state without the position of the sources, for a query with
            `adopt=True`.
        copy: Copy the objects of the checkpoint, so that the new location does not need the first.
            Takes time and space by the size of the state.
        storage_options: Options of the store's client, as for `open_store`, for both locations.

    Raises:
        CheckpointError: The checkpoint or tag does not exist or is not retained, or its micro-batch is
            not finished yet ("in_progress"), or the files of the query do not match the state.
        UsageError: A new location is in use, or an argument is missing.
        CorruptionError: An object to copy is damaged.
        StoreError: A store failed; repeat the call.

    Blocks: On the stores; up to 10 s more until the sink of the micro-batch has taken its rows.
    """
    checkpoint = None if checkpoint == LATEST else checkpoint
    if checkpoint is not None and tag is not None:
        raise UsageError("give a checkpoint or a tag, not both")
    place = _new_place(new_location, new_checkpoint_location, state_only)
    store = open_state(location, options=storage_options)
    new = open_location(new_location, options=storage_options)
    new_query = (
        None if place is None else open_store(place, options=_of(place, new, storage_options))
    )
    if checkpoint in {each.name for each in list_tags(store) if each.kind is TagKind.TAG}:
        tag = str(checkpoint)
    forked_id = None
    if tag is not None:
        forked_id = find_tag(store, tag, TagKind.TAG).checkpoint_id
    elif checkpoint is not None:
        forked_id = checkpoint_id_of(store, checkpoint)
    begun = begun_fork(new, store, forked_id)
    if begun is not None and begun.checkpoint is not None:
        with audited(new, "fork", parent=store.url, copy=copy):
            return finished_fork(begun, store, new, new_query, copy=copy)
    files = None if begun is None else begun.files(store)
    if begun is not None and files is not None:
        source = ForkSource(
            store=store, stored=Entries(store).load(begun.checkpoint_id), files=files
        )
    elif tag is not None:
        source = _tagged_source(store, tag, state_only)
    else:
        source = _finished_source(
            store,
            forked_id if begun is None else begun.checkpoint_id,
            lambda recorded: (
                None
                if state_only
                else query_store(store, checkpoint_location, recorded, storage_options)
            ),
        )
    with (
        audited(store, "fork", fork=new.url, copy=copy) as line,
        audited(new, "fork", parent=store.url, copy=copy) as new_line,
    ):
        forked = apply_fork(source, new, new_query, wall_clock_ms, copy=copy)
        for each in (line, new_line):
            each.result(fork_id=forked.fork_id, checkpoint_id=forked.checkpoint_id)
    if source.files is None:
        return forked
    record = BatchRecord.of(source.stored.checkpoint)
    missing: tuple[str, ...] = ()
    with suppress(StatelogError):  # the query of a tag may be deleted by now
        query = query_store(store, checkpoint_location, record.checkpoint_location, storage_options)
        missing = missing_inputs(StoredQuery(query), record)
    if missing:
        _log.warning(
            "the query of the fork %s has to read %d input files that no longer exist, and continues "
            "without their rows; first %s",
            new.url,
            len(missing),
            missing[0],
        )
    return replace(forked, missing_files=missing)


def _tagged_source(store: LocationStore, tag: str, state_only: bool) -> ForkSource:
    source = tagged_source(store, tag)
    if source.files is None and not state_only:
        raise UsageError(
            f"the tag {tag!r} of {store.url} has no position of the sources; fork with "
            "state_only=True"
        )
    return source


def _checkpoint(store: LocationStore, checkpoint: CheckpointName | None) -> int:
    if checkpoint is not None:
        return checkpoint_id_of(store, checkpoint)
    return find_checkpoint(store).checkpoint_id


def _new_place(
    new_location: Location, new_checkpoint_location: Location | None, state_only: bool
) -> Location | None:
    """Return where the new checkpointLocation is; None without one."""
    if state_only:
        if new_checkpoint_location is not None:
            raise UsageError(
                "state_only (--state-only) makes no checkpointLocation; leave out it or "
                "new_checkpoint_location (--new-checkpoint-location)"
            )
        return None
    if new_checkpoint_location is None:
        folder, _, name = os.fspath(new_location).rstrip("/").rpartition("/")
        if name != STATE_FOLDER or not folder:
            raise UsageError(
                "a fork needs a checkpointLocation for the new query: give new_checkpoint_location "
                "(on the command line --new-checkpoint-location), or "
                f"a new location that ends with /{STATE_FOLDER}, which is then inside it"
            )
        return folder
    return new_checkpoint_location


def query_store(
    store: LocationStore,
    given: Location | None,
    recorded: str | None,
    options: Mapping[str, object] | None,
) -> ObjectStore:
    """
    Return the checkpointLocation of a query: given, recorded, or the folder around the state.

    Raises:
        CheckpointError: None of them is known, or the recorded one is in another bucket or store, where
            only a caller can name it (`reason` "not_found").
        UsageError: There is no such directory.
    """
    if given is None and recorded is not None and not may_follow(store.url, recorded, ()):
        raise CheckpointError(
            f"the checkpoint in {store.url} records {redacted(recorded)} as the query's "
            "checkpointLocation, which is in another bucket or store, and is not opened because the "
            "location says so: if you know it, give checkpoint_location (--checkpoint-location)",
            reason="not_found",
        )
    folder, _, name = store.url.rpartition("/")
    around = folder if name == STATE_FOLDER else None
    for place in (given, recorded, around):
        if place is not None:
            return open_query_files(place, options=_of(place, store, options))
    raise CheckpointError(
        f"the checkpoint in {store.url} does not record the query's "
        "checkpointLocation: give checkpoint_location (--checkpoint-location)",
        reason="not_found",
    )


def _of(
    place: Location, store: LocationStore, options: Mapping[str, object] | None
) -> Mapping[str, object] | None:
    """Return the options of *store*'s client for another place in the same kind of store; else None."""
    text = os.fspath(place)
    if is_known(text):
        same = kind_of(normalize_url(text)) is kind_of(store.url)
    else:
        same = text.partition(":")[0] == store.url.partition(":")[0]
    return split_options(options)[0] if same else None
