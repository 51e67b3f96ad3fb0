"""
Fork a location: a second query goes on from a checkpoint of the first, at once, next to it.

The first checkpoint of the new location refers to the objects of the parent, which never change, so a
fork copies no state and its cost does not depend on the size of the state.  A tag of the parent keeps
the checkpoint there; garbage collection of the fork deletes the tag once the fork has written all it
needs itself.

The order of the steps makes a crash harmless: first the reference to the parent, which names the fork,
then the tag with the source position, the new checkpointLocation, and last the checkpoint, which is the
point of no return.  A repeated call goes on where the first one ended, see `begun_fork`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.checkpoint.clean_up import release_parent
from statelog.checkpoint.coordinator import prepare_commit, put_commit
from statelog.checkpoint.history import Entries, StoredCheckpoint, exists
from statelog.checkpoint.ownership import put_claim
from statelog.checkpoint.query_files import StoredQuery
from statelog.checkpoint.restore import keep_tag
from statelog.checkpoint.tags import Tag, TagKind, find_tag, put_tag, read_tag
from statelog.errors import FencedError, UsageError
from statelog.extensions.operations.begun_fork import (
    BegunFork,
    begun_fork,
    first_properties,
    in_use,
    is_own_claim,
    owner_of,
    query_id_of,
)
from statelog.extensions.operations.copy_plan import needed_objects, own_record
from statelog.extensions.operations.position_files import position_files, write_query
from statelog.format.checkpoint_metadata import RESERVED_TAGS
from statelog.format.claim_record import ClaimRecord
from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    Json,
    MaterializedHandle,
    StreamStateHandle,
)
from statelog.redaction import HIDDEN
from statelog.runtime.clock import pause
from statelog.runtime.fail_points import fail_point
from statelog.store import PATHS, LocationStore, ObjectStore
from statelog.store.conditional_put import create
from statelog.store.location_store import parent_path
from statelog.store.parents import ParentReference

_CLAIM: Final = 0
"""The number of the claim of a fork: its location is empty."""
_RECORDED: Final = {
    field.name for kind in (BatchRecord, OperatorRecord) for field in msgspec.structs.fields(kind)
}
"""Properties that the record of the micro-batch writes again; others are kept as they are."""


@dataclass(frozen=True, slots=True)
class NewQuery:
    """The query that goes on from a fork."""

    query_id: str
    checkpoint_location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """
    What a fork made.

    Args:
        fork_id: Name of the tag in the parent.
        parent: URL of the parent's location.
        location: URL of the new location.
        checkpoint_id: The checkpoint that both have.
        batch_id: The micro-batch after which the new query begins.
        query: The new query; None if only the state was forked.
        missing_files: Input files that the new query has to read and that no longer exist on local disk:
            it continues without their rows.
    """

    fork_id: str
    parent: str
    location: str
    checkpoint_id: int
    batch_id: int
    query: NewQuery | None
    missing_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSource:
    """
    What is forked.

    Args:
        store: The parent's location.
        stored: The checkpoint.
        files: The files of its source position; None to fork the state only.
    """

    store: LocationStore
    stored: StoredCheckpoint
    files: dict[str, bytes] | None


def fork_source(
    store: LocationStore, checkpoint_id: int, open_query: Callable[[str | None], ObjectStore | None]
) -> ForkSource:
    """
    Read a checkpoint and the position of its sources.

    Args:
        store: The parent's location.
        checkpoint_id: A retained checkpoint.
        open_query: Opens the checkpointLocation, given what the checkpoint records as its place;
            returns None to fork the state only.

    Raises:
        CheckpointError: The checkpoint does not exist, or was not made by a query, or the files are not
            those of the state; see `position_files`.
        StoreError: A store failed.

    Blocks: On both stores.
    """
    stored = Entries(store).load(checkpoint_id)
    record = BatchRecord.of(stored.checkpoint)
    query = open_query(record.checkpoint_location)
    files = None if query is None else position_files(StoredQuery(query), record)
    return ForkSource(store=store, stored=stored, files=files)


def tagged_source(store: LocationStore, name: str) -> ForkSource:
    """
    Read a tagged checkpoint and the position that the tag holds.

    Raises:
        CheckpointError: There is no such tag.
        StoreError: The store failed.

    Blocks: On the store.
    """
    tag = find_tag(store, name, TagKind.TAG)
    content = read_tag(store, tag)
    return ForkSource(
        store=store,
        stored=Entries(store).load(tag.checkpoint_id),
        files=content.files or None,
    )


def apply_fork(
    source: ForkSource,
    new: LocationStore,
    new_query: ObjectStore | None,
    clock_ms: Callable[[], int],
    *,
    copy: bool = False,
) -> Fork:
    """
    Make the fork; after a crash, repeat the call.

    Args:
        source: What is forked.
        new: The new location, which must be empty.
        new_query: The new checkpointLocation; None to fork the state only.
        clock_ms: Milliseconds since 1970 (UTC).
        copy: Copy the objects of the checkpoint, verified, so that the parent is not needed.

    Raises:
        CheckpointError: The checkpoint was deleted meanwhile (`reason` "subsumed").
        UsageError: The new location or checkpointLocation is in use.
        FencedError: Another call forks into the same location.
        CorruptionError: An object to copy is damaged.
        StoreError: A store failed; repeat the call.

    Blocks: On the stores; without *copy* the requests do not depend on the size of the state.
    """
    checkpoint = source.stored.checkpoint
    batch_id = BatchRecord.of(checkpoint).batch_id
    if HIDDEN in source.store.url:
        raise UsageError(
            f"the URL of the location contains a secret ({source.store.url}), which a fork would have "
            "to store to find its parent: give credentials by store options or the environment"
        )
    new.name_parent(source.store.url)
    checkpoint_id = checkpoint.checkpoint_id
    begun = begun_fork(new, source.store, checkpoint_id)
    if begun is not None and begun.checkpoint is not None:
        return finished_fork(begun, source.store, new, new_query, copy=copy)
    fork_id = os.urandom(8).hex() if begun is None else begun.fork_id
    reference = ParentReference(location=source.store.url, checkpoint_id=checkpoint_id)
    if not exists(new, PATHS.parent(fork_id)):
        create(new, PATHS.parent(fork_id), reference.encoded())
    fail_point("fork-referred")
    _pin(source, fork_id, begun, new.url, clock_ms)
    fail_point("fork-pinned")
    query = None
    if new_query is not None and source.files is not None:
        query = NewQuery(query_id_of(fork_id), new_query.url)
        write_query(new_query, source.files, query.query_id)
    fail_point("fork-query-written")
    first = _moved_checkpoint(checkpoint, fork_id, reference, query)
    if copy:
        _copy_objects(new, first)
        first = own_record(first)
    fail_point("fork-copied")
    _commit(fork_id, first, source.stored.sections, new, clock_ms)
    if copy:
        release_parent(new, fork_id)
    return Fork(
        fork_id=fork_id,
        parent=source.store.url,
        location=new.url,
        checkpoint_id=checkpoint_id,
        batch_id=batch_id,
        query=query,
    )


def finished_fork(
    begun: BegunFork,
    parent: LocationStore,
    new: LocationStore,
    new_query: ObjectStore | None,
    *,
    copy: bool,
) -> Fork:
    """
    Return a fork that an earlier call of the same arguments committed, and release its parent.

    Args:
        begun: Result of `begun_fork`, with a checkpoint.
        parent: The parent's location.
        new: The new location.
        new_query: The new checkpointLocation; None to fork the state only.
        copy: Whether the new location must not need the parent.

    Raises:
        UsageError: The earlier call had other arguments.
        StoreError: A store failed; repeat the call.

    Blocks: On both stores.
    """
    place = None if new_query is None else new_query.url
    if begun.checkpoint is None or not begun.is_of(place) or (copy and begun.needs_parent):
        raise in_use(new)
    new.name_parent(parent.url)
    if copy:
        release_parent(new, begun.fork_id)
    record = BatchRecord.of(begun.checkpoint)
    return Fork(
        fork_id=begun.fork_id,
        parent=parent.url,
        location=new.url,
        checkpoint_id=begun.checkpoint_id,
        batch_id=record.batch_id,
        query=None if place is None else NewQuery(record.query_id, place),
    )


def _pin(
    source: ForkSource,
    fork_id: str,
    begun: BegunFork | None,
    location: str,
    clock_ms: Callable[[], int],
) -> None:
    """Put the tag of the fork into the parent, unless an earlier call did."""
    if begun is not None and begun.tag is not None:
        keep_tag(source.store, begun.tag)
        return
    tag = Tag(
        kind=TagKind.FORK,
        name=fork_id,
        checkpoint_id=source.stored.checkpoint.checkpoint_id,
    )
    facts: dict[str, Json] = {"location": location}
    put_tag(source.store, tag, clock_ms=clock_ms, facts=facts, files=source.files)


def _copy_objects(new: LocationStore, checkpoint: CompletedCheckpoint) -> None:
    """Copy what *checkpoint* refers to in the parent."""
    for needed_object in needed_objects([checkpoint], {}).values():
        if needed_object.path != needed_object.source:
            new.put(needed_object.path, needed_object.content(new.get(needed_object.source)))


def _moved_checkpoint(
    checkpoint: CompletedCheckpoint,
    fork_id: str,
    reference: ParentReference,
    query: NewQuery | None,
) -> CompletedCheckpoint:
    """Return a checkpoint as the first one of a fork, which refers to the parent."""
    return replace(
        checkpoint,
        parent_id=None,
        timeline=checkpoint.timeline.continued(fork_id, _CLAIM, checkpoint.checkpoint_id),
        materialized=tuple(_moved_snapshot(each, fork_id) for each in checkpoint.materialized),
        log=tuple(_moved_log(each, fork_id) for each in checkpoint.log),
        retained=(checkpoint.checkpoint_id,),
        properties={
            **{name: each for name, each in checkpoint.properties.items() if name not in _RECORDED},
            **_own_record(BatchRecord.of(checkpoint), fork_id, query).to_properties(),
            **first_properties(reference),
        },
    )


def _commit(
    fork_id: str,
    checkpoint: CompletedCheckpoint,
    sections: Mapping[bytes, bytes],
    new: LocationStore,
    clock_ms: Callable[[], int],
) -> None:
    """
    Put the first checkpoint of the new location, under the number that it has in the parent.

    The claim before it says that the numbers up to there are left out, so that a query which starts here
    meanwhile wants the same number.
    """
    owner = owner_of(fork_id)
    _leave_out(new, fork_id, checkpoint.checkpoint_id, clock_ms)
    prepared = prepare_commit(
        replace(checkpoint, parent_id=None, owner_id=owner, epoch=_CLAIM),
        {tag: data for tag, data in sections.items() if tag not in RESERVED_TAGS},
        compress=True,
    )
    fail_point("fork-claimed")
    try:
        put_commit(new, prepared, pause)
    except FencedError as conflict:
        raise FencedError(
            f"{new.url} was forked into by another call at the same time: {conflict}"
        ) from conflict


def _leave_out(
    new: LocationStore, fork_id: str, checkpoint_id: int, clock_ms: Callable[[], int]
) -> None:
    """Put the claim after which *checkpoint_id* is the next number, unless an earlier call did."""
    owner = owner_of(fork_id)
    if checkpoint_id == _CLAIM:
        return  # it is the next number of an empty location
    claim = ClaimRecord(
        number=_CLAIM,
        owner_id=owner,
        attempt=os.urandom(8).hex(),
        created_at_ms=clock_ms(),
        newest=None,
        next_number=checkpoint_id,
        location_id=fork_id,
    )
    if is_own_claim(new, owner) or put_claim(new, claim):
        return
    raise FencedError(f"{new.url} was claimed by another owner at the same time")


def _own_record(record: BatchRecord, fork_id: str, query: NewQuery | None) -> BatchRecord:
    """Return the record of a micro-batch as a record of the new query."""
    files = [_moved(staged_file, fork_id).to_json() for staged_file in record.staged_files()]
    new = msgspec.structs.replace(
        record,
        output_files=files,
        went_back_to=None,
        attachments=(),
    )
    if query is None:
        return new
    return msgspec.structs.replace(
        new, query_id=query.query_id, checkpoint_location=query.checkpoint_location
    )


def _moved(handle: StreamStateHandle, fork_id: str) -> StreamStateHandle:
    if not isinstance(handle, FileStateHandle):
        return handle
    return replace(handle, path=parent_path(fork_id, handle.path))


def _moved_snapshot(snapshot: MaterializedHandle, fork_id: str) -> MaterializedHandle:
    return replace(snapshot, handle=_moved(snapshot.handle, fork_id))


def _moved_log(log: ChangelogStateHandle, fork_id: str) -> ChangelogStateHandle:
    entries = tuple(
        replace(entry, handle=_moved(entry.handle, fork_id)) for entry in log.handles_and_offsets
    )
    return replace(log, handles_and_offsets=entries)
