"""
Plan the copy of a location: which objects to copy, and in which order.

The retained checkpoints and the tagged ones, and every object that they refer to.  Pins of forks
and readers belong to the source only.  The audit lines are copied, so that they outlive the source.
Objects of log, state and output come before any metadata, and the metadata of the newest checkpoint
before that of the others: a copy that ended early has either no checkpoint, or the newest one with
objects missing, and a reader says so.  It never has an older checkpoint that looks like the newest.
A fork becomes whole: objects of its parents are copied under names of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.edit import with_record
from statelog.checkpoint.history import Entries, present_ids, read_checkpoint
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.retained import TagKind, list_tags
from statelog.checkpoint.state_stream import check_stream
from statelog.errors import CheckpointError, CorruptionError, ObjectNotFoundError
from statelog.format.buffers import Buffer, joined
from statelog.format.checkpoint_metadata import rewrite_metadata
from statelog.format.segment import parse_whole_file
from statelog.model import (
    CompletedCheckpoint,
    FileStateHandle,
    MaterializedHandle,
    StreamStateHandle,
)
from statelog.model.checkpoint import OBJECTS_PROPERTY
from statelog.store import PATHS, LocationStore, ObjectStore
from statelog.store.location_store import parse_parent_path
from statelog.store.paths import parse_audit_part, parse_checkpoint_metadata

_CHANGELOG = "changelog"
_STREAM = "stream"
_OTHER = "other"


@dataclass(frozen=True, slots=True)
class CopiedObject:
    """
    One object of a copy.

    Args:
        path: Its name in the copy.
        source: Its name in the source; another one for an object of the parent of a fork.
        size_bytes: Its length in the source; 0 if the listing does not have it.
        kind: How it is verified.
        handle: The handle with size and checksum, where one has them.
        record: The checkpoint to put into a metadata object, where it differs from the source's.
    """

    path: str
    source: str
    size_bytes: int
    kind: str
    handle: FileStateHandle | None = None
    record: CompletedCheckpoint | None = None

    def content(self, data: Buffer) -> Buffer:
        """Verify the bytes read from the source, and return the content for the copy."""
        self.check(data)
        if self.record is None:
            return data
        return joined(rewrite_metadata(data, self.record, where=self.source).buffers)

    def check(self, data: Buffer) -> None:
        """Verify bytes against the checksums that they contain."""
        if self.kind == _CHANGELOG:
            parse_whole_file(data, where=self.path)
        elif self.handle is not None:
            check_stream(self.handle, data, self.path)

    @property
    def verifies_itself(self) -> bool:
        """Whether `check` detects damage, so that the copy can be verified without the source."""
        if parse_checkpoint_metadata(self.path) is not None:
            return False  # its name is not unique: an earlier call may have put another record
        has_checksum = self.handle is not None and self.handle.crc32c is not None
        return self.kind == _CHANGELOG or has_checksum


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """
    The objects of a copy, in the order in which to write them.

    Args:
        checkpoints: The checkpoints that can be restored from the copy, ascending.
        objects: Log, snapshots and staged rows.
        metadata: Metadata objects by number, put after `objects`; the newest is first.
    """

    checkpoints: tuple[int, ...]
    objects: tuple[CopiedObject, ...]
    metadata: Mapping[int, CopiedObject]

    @property
    def size_bytes(self) -> int:
        """Total size of all objects."""
        return sum(copied.size_bytes for copied in (*self.objects, *self.metadata.values()))


def plan_copy(store: ObjectStore, checkpoint_id: int | None = None) -> CopyPlan:
    """Return the plan for a copy of a location."""
    present = present_ids(store)
    newest = Entries(store, present).newest()
    if newest is None:
        raise CheckpointError(f"{store.url} does not contain a checkpoint", reason="not_found")
    last = newest if checkpoint_id is None else find_checkpoint(store, checkpoint_id)
    tags = [
        tag
        for tag in list_tags(store)
        if tag.kind is TagKind.TAG and tag.checkpoint_id <= last.checkpoint_id
    ]
    tagged = {tag.checkpoint_id for tag in tags if tag.checkpoint_id in present}
    retained = tuple(number for number in newest.retained if number in last.retained)
    ids = tuple(sorted({*retained, *tagged}))
    checkpoints = [_read(store, checkpoint_id) for checkpoint_id in ids]
    sizes = {info.path: info.size_bytes for info in store.list()}
    needed = needed_objects(checkpoints, sizes)
    # An older checkpoint of the source names others that are deleted by now.
    for checkpoint in checkpoints:
        record = own_record(checkpoint)
        if checkpoint.checkpoint_id == last.checkpoint_id and not set(record.retained) <= set(ids):
            record = replace(record, retained=retained)
        if record != checkpoint:
            path = PATHS.metadata(checkpoint.checkpoint_id)
            needed[path] = replace(needed[path], record=record)
    for path in sizes:
        if parse_audit_part(path) is not None:
            # As it is: a damaged line, which `statelog audit` reports, must not prevent a copy.
            needed[path] = CopiedObject(path, path, sizes[path], _OTHER)
    for tag in tags:
        needed[tag.path] = CopiedObject(tag.path, tag.path, sizes.get(tag.path, 0), _CHANGELOG)
    numbers = {path: parse_checkpoint_metadata(path) for path in sorted(needed)}
    objects = tuple(needed[path] for path, number in numbers.items() if number is None)
    metadata = {number: needed[path] for path, number in numbers.items() if number is not None}
    return CopyPlan(ids, objects, dict(sorted(metadata.items(), reverse=True)))


def _read(store: ObjectStore, checkpoint_id: int) -> CompletedCheckpoint:
    try:
        return read_checkpoint(store, checkpoint_id).checkpoint
    except CorruptionError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint_id} is damaged and cannot be copied: {error}. `statelog verify "
            f"{store.url}` lists all damage; `--checkpoint` copies an older checkpoint",
            reason="damaged",
            checkpoint_id=checkpoint_id,
            path=PATHS.metadata(checkpoint_id),
        ) from error


def needed_objects(
    checkpoints: list[CompletedCheckpoint], sizes: Mapping[str, int]
) -> dict[str, CopiedObject]:
    """
    Return all objects of the checkpoints, under the names that they have in a copy.

    *sizes* by those in the source.
    """
    objects: dict[str, CopiedObject] = {}

    def need(source: str, kind: str, handle: FileStateHandle | None = None) -> None:
        path = own_path(source)
        if path not in objects or handle is not None:
            objects[path] = CopiedObject(path, source, sizes.get(source, 0), kind, handle)

    for checkpoint in checkpoints:
        need(PATHS.metadata(checkpoint.checkpoint_id), _CHANGELOG)
        for handle, piece in checkpoint.objects():
            if isinstance(piece, MaterializedHandle):
                need(handle.path, _STREAM, handle)
            else:
                need(handle.path, _OTHER if piece is None else _CHANGELOG)
    return objects


def parents_of(store: ObjectStore, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the URLs of a fork's direct and indirect parents that contain its objects."""
    urls = []
    for name in paths:
        place = store
        path = name
        while (parsed := parse_parent_path(path)) is not None and isinstance(place, LocationStore):
            place = place.parent(parsed[0])
            path = parsed[1]
        if place is not store:
            urls.append(place.url)
    return tuple(dict.fromkeys(urls))


def own_path(path: str) -> str:
    """
    Return the name of an object in the copy, where objects of a parent get new names.

    The metadata of a parent's checkpoint is there for its change sets only, and gets the name of a
    changelog file: the fork may have a checkpoint of the same number.
    """
    forks = []
    while (parsed := parse_parent_path(path)) is not None:
        forks.append(parsed[0])
        path = parsed[1]
    number = parse_checkpoint_metadata(path)
    if forks and number is not None:
        return PATHS.changelog(f"{'-'.join(forks)}-chk-{number}")
    return path


def own_record(checkpoint: CompletedCheckpoint) -> CompletedCheckpoint:
    """Return a checkpoint with the names that its objects have in the copy."""
    return with_names(checkpoint, own_path)


def with_names(
    checkpoint: CompletedCheckpoint, name_of: Callable[[str], str], **record: object
) -> CompletedCheckpoint:
    """Return a checkpoint with different names for its objects."""

    def moved(handle: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(handle, FileStateHandle):
            return handle
        return replace(handle, path=name_of(handle.path))

    log = tuple(
        replace(
            log_handle,
            handles_and_offsets=tuple(
                replace(entry, handle=moved(entry.handle))
                for entry in log_handle.handles_and_offsets
            ),
        )
        for log_handle in checkpoint.log
    )
    snapshots = tuple(
        replace(snapshot, handle=moved(snapshot.handle)) for snapshot in checkpoint.materialized
    )
    properties = checkpoint.properties
    listed = properties.get(OBJECTS_PROPERTY)
    if record or (isinstance(listed, list) and any(name_of(str(path)) != path for path in listed)):
        old = BatchRecord.of(checkpoint)
        files = [moved(staged).to_json() for staged in old.staged_files()]
        new = msgspec.structs.replace(old, **{"output_files": files, **record})
        properties = with_record(properties, new)
    return replace(checkpoint, log=log, materialized=snapshots, properties=properties)


def missing_in_source(error: ObjectNotFoundError, url: str) -> CheckpointError:
    """Return the error for a source whose objects are deleted faster than they are copied."""
    return CheckpointError(
        f"objects of {url} were missing in several attempts: {error}. If a query deletes them while they "
        "are copied, raise its retainedCheckpoints, or stop it for the last "
        "call; objects already copied are not copied again. Otherwise `statelog verify` lists missing objects",
        reason="subsumed",
    )
