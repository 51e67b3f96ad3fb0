"""
Fork a location, so that a second query continues from a checkpoint of the first one.

The first checkpoint of the new location refers to the objects of the parent, which never change, so
a fork copies no state and its cost does not depend on the size of the state.  A tag of the parent
keeps the checkpoint there; garbage collection of the fork deletes the tag once the fork has written
all it needs itself.

The order of the steps makes a crash harmless: first the reference to the parent, which names the
fork, then the tag with the source position, the new checkpointLocation, the copied objects, and
last the checkpoint, with which the fork is complete.  Each of them has the id of the fork or is
derived from it, and the tag stores the files of the source position.  So a repeated call writes the
same bytes, whatever the query of the parent has done meanwhile.

A reference without a tag in the parent is ignored: the call that put it did not write anything
else.  Garbage collection of the fork deletes it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import release_parent
from statelog.checkpoint.edit import EditSession, edit_session
from statelog.checkpoint.history import exists, open_state, present_ids, readable
from statelog.checkpoint.listing import LATEST, CheckpointName, given_checkpoint_id
from statelog.checkpoint.query_files import StoredQuery
from statelog.checkpoint.retained import Tag, TagKind, list_tags
from statelog.errors import FencedError, StatelogError, UsageError
from statelog.extensions.operations.copy_plan import needed_objects, own_record, with_names
from statelog.extensions.operations.position_files import missing_inputs, write_query
from statelog.extensions.operations.savepoints import (
    ForkSource,
    Location,
    OpenQuery,
    client_options,
    finished_source,
    query_store,
    tagged_source,
)
from statelog.format.checkpoint_record import ClaimRecord
from statelog.model import CompletedCheckpoint
from statelog.redaction import HIDDEN
from statelog.runtime.clock import wall_clock_ms
from statelog.runtime.fail_points import fail_point
from statelog.store import PATHS, LocationStore, ObjectStore, open_location, open_store
from statelog.store.location_store import is_fork_id, parent_path, parse_parent_path
from statelog.store.parents import ParentReference
from statelog.store.paths import STATE_FOLDER
from statelog.store.verified import create

FORKED_FROM: Final = "forked_from"
"""Property of the first checkpoint of a fork: parent and checkpoint, as in the reference."""
_OWNER: Final = "fork-"
_CLAIM: Final = 0
"""The number of the claim of a fork: its location is empty."""

_log = logging.getLogger("statelog")


@dataclass(frozen=True, slots=True)
class NewQuery:
    """The query that continues from the fork."""

    query_id: str
    checkpoint_location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """
    The result of a fork.

    Args:
        fork_id: Name of the tag in the parent.
        parent: URL of the parent's location.
        location: URL of the new location.
        checkpoint_id: The checkpoint that both have.
        batch_id: The micro-batch after which the new query begins.
        query: The new query; None if only the state was forked.
        missing_files: Input files that the new query has to read and that no longer exist on local
            disk: it continues without their rows.
    """

    fork_id: str
    parent: str
    location: str
    checkpoint_id: int
    batch_id: int
    query: NewQuery | None
    missing_files: tuple[str, ...] = ()


def fork(
    location: Location,
    new_location: Location,
    *,
    checkpoint: CheckpointName | None = None,
    checkpoint_location: Location | None = None,
    new_checkpoint_location: Location | None = None,
    state_only: bool = False,
    copy: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> Fork:
    """
    Create a location from which a second query continues, without copying state.

    The new location refers to objects of the first, which a tag keeps there.  A query with the new
    checkpointLocation and stateLocation reads what the first query reads after the checkpoint.
    Both run next to each other.  Repeat an interrupted call: it continues where it ended.

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
        checkpoint: Its id, "latest", "earliest", a tag, or a time of ISO 8601; None for the newest
            one.  A tag has the position of the sources, so its fork does not read the query's
            files.
        checkpoint_location: The query's checkpointLocation; None for what the checkpoint records.
        new_checkpoint_location: The checkpointLocation of the new query.  May be left out if
            *new_location* is its folder `statelog`.
        state_only: Fork the state without the position of the sources, for a query with
            `adopt=True`.
        copy: Copy the objects of the checkpoint, so that the new location does not need the first.
            Takes time and space by the size of the state.
        storage_options: Options of the store's client, as for `open_store`, for both locations.

    Raises:
        CheckpointError: The checkpoint or tag does not exist or is not retained, or its micro-batch
            is not finished yet ("in_progress"), or the files of the query do not match the state.
        UsageError: A new location is in use, or an argument is missing.
        CorruptionError: An object to copy is damaged.
        StoreError: A store failed; repeat the call.

    Blocks: On the stores; up to 10 s more until the sink of the micro-batch has taken its rows.
    """
    place = _new_place(new_location, new_checkpoint_location, state_only)
    store = open_state(location, options=storage_options)
    new = open_location(new_location, options=storage_options)
    new_query = None
    if place is not None:
        new_query = open_store(place, storage_options=client_options(place, new, storage_options))
    named, forked_id = _asked_for(store, checkpoint)
    begun = _begun(new, store, forked_id)
    if begun is not None and begun.checkpoint is not None:
        return _finished(begun, store, new, new_query, copy=copy)

    def open_query(recorded: str | None) -> ObjectStore:
        return query_store(store, checkpoint_location, recorded, storage_options)

    source = _source(store, begun, named, forked_id, None if state_only else open_query)
    forked = apply_fork(source, new, new_query, wall_clock_ms, copy=copy)
    return replace(forked, missing_files=_missing_files(source, new, open_query))


def _asked_for(
    store: LocationStore, checkpoint: CheckpointName | None
) -> tuple[Tag | None, int | None]:
    """Return the tag and checkpoint that the caller asks for; None means the newest checkpoint."""
    for tag in list_tags(store):
        if tag.kind is TagKind.TAG and tag.name == checkpoint:
            return tag, tag.checkpoint_id
    return None, given_checkpoint_id(store, None if checkpoint == LATEST else checkpoint)


def _source(
    store: LocationStore,
    begun: _Begun | None,
    named: Tag | None,
    forked_id: int | None,
    open_query: OpenQuery | None,
) -> ForkSource:
    """Read the fork's source: a record of an earlier call, a tag, or a checkpoint and its query."""
    if begun is not None and begun.tag is not None:
        source = tagged_source(store, begun.tag)
        if source.files is not None:
            return source
    if named is not None:
        source = tagged_source(store, named)
        if source.files is None and open_query is not None:
            raise UsageError(
                f"the tag {named.name!r} of {store.url} does not contain a position of the sources; fork with "
                "state_only=True"
            )
        return source
    checkpoint_id = forked_id if begun is None else begun.checkpoint_id
    return finished_source(store, checkpoint_id, open_query or (lambda recorded: None))


def _missing_files(
    source: ForkSource, new: LocationStore, open_query: Callable[[str | None], ObjectStore]
) -> tuple[str, ...]:
    """Return input files that the new query must read but that no longer exist."""
    missing: tuple[str, ...] = ()
    if source.files is None:
        return missing
    record = source.record
    with suppress(StatelogError):  # the query of a tag may be deleted by now
        query = source.query or StoredQuery(open_query(record.checkpoint_location))
        missing = missing_inputs(query, record)
    if missing:
        _log.warning(
            "the query of the fork %s must read %d input files that no longer exist; it continues "
            "without their rows; the first is %s",
            new.url,
            len(missing),
            missing[0],
        )
    return missing


def _new_place(
    new_location: Location, new_checkpoint_location: Location | None, state_only: bool
) -> Location | None:
    """Return the new checkpointLocation, or None if there is none."""
    if state_only:
        if new_checkpoint_location is not None:
            raise UsageError(
                "state_only (--state-only) does not create a checkpointLocation; omit it or "
                "new_checkpoint_location (--new-checkpoint-location)"
            )
        return None
    if new_checkpoint_location is None:
        folder, _, name = os.fspath(new_location).rstrip("/").rpartition("/")
        if name != STATE_FOLDER or not folder:
            raise UsageError(
                "a fork needs a checkpointLocation for the new query: pass new_checkpoint_location "
                "(on the command line --new-checkpoint-location), or "
                f"a new location that ends with /{STATE_FOLDER}, which is then inside the checkpointLocation"
            )
        return folder
    return new_checkpoint_location


def apply_fork(
    source: ForkSource,
    new: LocationStore,
    new_query: ObjectStore | None,
    clock_ms: Callable[[], int],
    *,
    copy: bool = False,
) -> Fork:
    """Create the fork; if the process crashes, repeat the call."""
    parent = source.store
    if HIDDEN in parent.url:
        raise UsageError(
            f"the URL of the location contains a secret ({parent.url}), which the fork would have "
            "to store to find its parent: pass credentials as store options or in the environment"
        )
    new.name_parent(parent.url)
    begun = _begun(new, parent, source.checkpoint_id)
    if begun is None:
        begun = _Begun(fork_id=os.urandom(8).hex(), checkpoint_id=source.checkpoint_id)
    elif begun.checkpoint is not None:
        return _finished(begun, parent, new, new_query, copy=copy)
    with (
        edit_session(parent, "fork", clock_ms=clock_ms, fork=new.url, copy=copy) as pinning,
        edit_session(new, "fork", clock_ms=clock_ms, parent=parent.url, copy=copy) as session,
    ):
        query = _prepared(source, begun, pinning, new, new_query)
        first = _first_checkpoint(source, begun, query)
        if copy:
            _copy_objects(new, first)
            first = own_record(first)
        fail_point("fork-copied")
        _commit(session, begun, first, source, new)
        if copy:
            release_parent(new, begun.fork_id, apply=True)
        for audited in (pinning, session):
            audited.result(fork_id=begun.fork_id, checkpoint_id=source.checkpoint_id)
    return begun.to_fork(parent, new, source.record.batch_id, query)


def _prepared(
    source: ForkSource,
    begun: _Begun,
    pinning: EditSession,
    new: LocationStore,
    new_query: ObjectStore | None,
) -> NewQuery | None:
    """Record the parent, pin its checkpoint there, and write the new checkpointLocation."""
    if not exists(new, PATHS.parent(begun.fork_id)):
        create(new, PATHS.parent(begun.fork_id), begun.reference(source.store).encoded())
    fail_point("fork-referred")
    tag = Tag(kind=TagKind.FORK, name=begun.fork_id, checkpoint_id=source.checkpoint_id)
    pinning.pin(begun.tag or tag, facts={"location": new.url}, files=source.files)
    fail_point("fork-pinned")
    query = None
    if new_query is not None and source.files is not None:
        query = NewQuery(begun.query_id, new_query.url)
        write_query(new_query, source.files, query.query_id)
    fail_point("fork-query-written")
    return query


def _first_checkpoint(
    source: ForkSource, begun: _Begun, query: NewQuery | None
) -> CompletedCheckpoint:
    """Return the first checkpoint of the fork, which refers to objects of the parent."""
    checkpoint = source.stored.checkpoint
    record: dict[str, object] = {"went_back_to": None, "attachments": ()}
    if query is not None:
        record |= {"query_id": query.query_id, "checkpoint_location": query.checkpoint_location}
    moved = with_names(checkpoint, partial(parent_path, begun.fork_id), **record)
    origin = msgspec.to_builtins(begun.reference(source.store))
    return replace(
        moved,
        parent_id=None,
        owner_id=begun.owner_id,
        epoch=_CLAIM,
        timeline=checkpoint.timeline.continued(begun.fork_id, _CLAIM, checkpoint.checkpoint_id),
        retained=(checkpoint.checkpoint_id,),
        properties={**moved.properties, FORKED_FROM: origin},
    )


def _copy_objects(new: LocationStore, checkpoint: CompletedCheckpoint) -> None:
    """Copy the objects of the parent that *checkpoint* references."""
    for needed_object in needed_objects([checkpoint], {}).values():
        if needed_object.path != needed_object.source:
            new.put(needed_object.path, needed_object.content(new.get(needed_object.source)))


def _commit(
    session: EditSession,
    begun: _Begun,
    first: CompletedCheckpoint,
    source: ForkSource,
    new: LocationStore,
) -> None:
    """Commit the first checkpoint of the new location, under its number in the parent."""
    # Number 0 is the next one of an empty location.
    if (
        first.checkpoint_id != _CLAIM
        and not begun.is_claimed
        and not session.leave_out(
            _CLAIM, first.checkpoint_id, owner_id=begun.owner_id, location_id=begun.fork_id
        )
    ):
        raise FencedError(f"{new.url} was claimed by a different owner at the same time")
    fail_point("fork-claimed")
    try:
        session.commit_first(first, source.stored.sections)
    except FencedError as conflict:
        raise FencedError(
            f"another call forked into {new.url} at the same time: {conflict}"
        ) from conflict


# Recognize a fork that an earlier call began or finished.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """
    A fork that was started by this call or an earlier one.

    Args:
        fork_id: Its id.
        checkpoint_id: The checkpoint that is forked.
        tag: The tag in the parent; None if it was not put yet, or was released.
        is_claimed: Whether the claim of the new location is the one of this fork.
        checkpoint: The first checkpoint of the new location; None if it was not committed yet.
    """

    fork_id: str
    checkpoint_id: int
    tag: Tag | None = None
    is_claimed: bool = False
    checkpoint: CompletedCheckpoint | None = None

    @property
    def owner_id(self) -> str:
        """The owner of the fork's claim and of its first checkpoint."""
        return _OWNER + self.fork_id

    @property
    def query_id(self) -> str:
        """The id of the new query; repeating the call returns the same id."""
        digits = hashlib.sha256(self.fork_id.encode()).hexdigest()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))

    def reference(self, parent: LocationStore) -> ParentReference:
        """Return the reference to the parent, which the new location stores."""
        return ParentReference(location=parent.url, checkpoint_id=self.checkpoint_id)

    def to_fork(
        self, parent: LocationStore, new: LocationStore, batch_id: int, query: NewQuery | None
    ) -> Fork:
        """Return the result of the fork."""
        return Fork(
            fork_id=self.fork_id,
            parent=parent.url,
            location=new.url,
            checkpoint_id=self.checkpoint_id,
            batch_id=batch_id,
            query=query,
        )


def _begun(new: LocationStore, parent: LocationStore, checkpoint_id: int | None) -> _Begun | None:
    """
    Return the fork that an earlier call with the same arguments started in *new*.

    None without one.
    """
    # A folder on local disk may stay without an object.
    numbers = [number for number in present_ids(new) if exists(new, PATHS.metadata(number))]
    entries = {number: readable(new, number) for number in numbers}
    owners = {entry.owner_id for entry in entries.values() if isinstance(entry, ClaimRecord)}
    checkpoints = [
        number for number, entry in entries.items() if not isinstance(entry, ClaimRecord)
    ]
    if checkpoints:
        finished = _committed(new, parent, checkpoints[0]) if len(checkpoints) == 1 else None
        if finished is None or checkpoint_id not in (None, finished.checkpoint_id):
            raise _in_use(new)
        return finished
    begun = _referred(new, parent, checkpoint_id)
    # The claim of a fork says which number is the next one, so that only this fork can go on here.
    if owners and (begun is None or owners != {begun.owner_id}):
        raise _in_use(new)
    return None if begun is None else replace(begun, is_claimed=bool(owners))


def _referred(
    new: LocationStore, parent: LocationStore, checkpoint_id: int | None
) -> _Begun | None:
    """Return the fork whose reference is in *new*, if no checkpoint has been committed there."""
    tags = {tag.name: tag for tag in list_tags(parent) if tag.kind is TagKind.FORK}
    begun = None
    for info in list(new.list(PATHS.parents)):
        fork_id = info.path.removeprefix(f"{PATHS.parents}/")
        if not is_fork_id(fork_id):
            continue
        reference = ParentReference.read(new, fork_id)
        tag = tags.get(fork_id)
        is_same = checkpoint_id in (None, reference.checkpoint_id)
        if reference.location != parent.url or (tag is not None and not is_same):
            raise UsageError(
                f"a fork of checkpoint {reference.checkpoint_id} of {reference.location} was started in "
                f"{new.url} but not finished; repeat the call that started it, or use a different "
                f"location. To let the parent delete the checkpoint, run `statelog tag "
                f"{reference.location} {fork_id} --kind fork --remove --apply`"
            )
        if tag is not None:
            return _Begun(fork_id=fork_id, checkpoint_id=tag.checkpoint_id, tag=tag)
        if checkpoint_id is not None and is_same:
            begun = _Begun(fork_id=fork_id, checkpoint_id=checkpoint_id)
    return begun


def _committed(new: LocationStore, parent: LocationStore, checkpoint_id: int) -> _Begun | None:
    """Return the fork of *parent*, if *new* contains only the fork's first checkpoint."""
    stored = readable(new, checkpoint_id)
    if stored is None or isinstance(stored, ClaimRecord):
        return None
    checkpoint = stored.checkpoint
    fork_id = checkpoint.owner_id.removeprefix(_OWNER)
    begun = _Begun(fork_id=fork_id, checkpoint_id=checkpoint_id, checkpoint=checkpoint)
    origin = msgspec.to_builtins(begun.reference(parent))
    is_fork = checkpoint.properties.get(FORKED_FROM) == origin
    return begun if is_fork and checkpoint.owner_id == begun.owner_id else None


def _finished(
    begun: _Begun,
    parent: LocationStore,
    new: LocationStore,
    new_query: ObjectStore | None,
    *,
    copy: bool,
) -> Fork:
    """Return the fork that an identical, earlier call committed, and release its parent."""
    checkpoint = begun.checkpoint
    if checkpoint is None:
        raise _in_use(new)
    record = BatchRecord.of(checkpoint)
    needs_parent = any(map(parse_parent_path, checkpoint.referenced_paths()))
    if new_query is None:
        is_same = record.query_id != begun.query_id
    else:
        is_same = record.checkpoint_location == new_query.url
    if not is_same or (copy and needs_parent):
        raise _in_use(new)
    new.name_parent(parent.url)
    if copy:
        with edit_session(new, "fork", parent=parent.url, copy=copy):
            release_parent(new, begun.fork_id, apply=True)
    query = None if new_query is None else NewQuery(record.query_id, new_query.url)
    return begun.to_fork(parent, new, record.batch_id, query)


def _in_use(new: ObjectStore) -> UsageError:
    return UsageError(f"{new.url} already contains state; fork into an empty location")
