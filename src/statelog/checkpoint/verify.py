"""
Verify every object that a retained checkpoint reaches.

These are the objects that garbage collection keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from statelog.checkpoint.history import present_ids, read_checkpoint
from statelog.checkpoint.state_stream import read_materialized
from statelog.checkpoint.tags import retained_ids
from statelog.errors import (
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    StatelogError,
)
from statelog.format.change_set_decoder import decode_change_set
from statelog.format.segment import parse_segment, verify_set
from statelog.model import (
    OBJECTS_PROPERTY,
    CompletedCheckpoint,
    FileStateHandle,
    HandleAndOffset,
    MaterializedHandle,
)
from statelog.store import LocationPaths, ObjectStore


@dataclass(frozen=True, slots=True)
class VerifiedObject:
    """
    The result for one object.

    Args:
        path: Its name.
        kind: "checkpoint", "changelog", "snapshot", or "other" (an object that the engine listed,
            without a known checksum).
        size_bytes: Bytes read; 0 if it could not be read.
        change_sets: Change sets verified in it, of those that checkpoints refer to.
        problem: What is wrong with it, or "".
    """

    path: str
    kind: str
    size_bytes: int = 0
    change_sets: int = 0
    problem: str = ""


def verify_location(store: ObjectStore, paths: LocationPaths) -> Iterator[VerifiedObject]:
    """
    Read and verify every object that retained checkpoints reach; yield each result.

    If the newest checkpoint is damaged, that is one result, and the objects of the next older
    readable one are verified.  Unreadable metadata is first, the other objects follow by name.

    Raises:
        StoreError: The store failed, other than by a missing object.

    Blocks: On the store; reads every object whole, once.
    """
    needs = _Needs()
    reported: set[str] = set()
    for finding, checkpoint in _checkpoints(store, paths):
        if checkpoint is not None:
            needs.add(checkpoint)
        else:
            reported.add(finding.path)
            yield finding
    for path in sorted((needs.metadata(paths) | set(needs.changelog)) - reported):
        yield _verify_changelog(store, path, needs.changelog.get(path, {}))
    for path in sorted(needs.snapshots):
        yield _verify_snapshot(store, needs.snapshots[path])
    for path in sorted(needs.others):
        yield _verify_other(store, path)


class _Needs:
    """The objects that the verified checkpoints need."""

    def __init__(self) -> None:
        self.checkpoints: list[int] = []
        self.changelog: dict[str, dict[int, HandleAndOffset]] = {}
        self.snapshots: dict[str, MaterializedHandle] = {}
        self.others: set[str] = set()

    def add(self, checkpoint: CompletedCheckpoint) -> None:
        self.checkpoints.append(checkpoint.checkpoint_id)
        for handle in checkpoint.log:
            for entry in handle.handles_and_offsets:
                if isinstance(entry.handle, FileStateHandle):
                    self.changelog.setdefault(entry.handle.path, {})[entry.offset] = entry
        for snapshot in checkpoint.materialized:
            if isinstance(snapshot.handle, FileStateHandle):
                self.snapshots[snapshot.handle.path] = snapshot
        listed = checkpoint.properties.get(OBJECTS_PROPERTY)
        if isinstance(listed, list):
            self.others.update(path for path in listed if isinstance(path, str))

    def metadata(self, paths: LocationPaths) -> set[str]:
        return {paths.metadata(checkpoint_id) for checkpoint_id in self.checkpoints}


def _checkpoints(
    store: ObjectStore, paths: LocationPaths
) -> Iterator[tuple[VerifiedObject, CompletedCheckpoint | None]]:
    """Yield the retained checkpoints, newest first; None for one that cannot be read."""
    wanted: set[int] | None = None
    ids = present_ids(store, paths)
    for checkpoint_id in reversed(ids):
        if wanted is not None and checkpoint_id not in wanted:
            continue
        path = paths.metadata(checkpoint_id)
        try:
            checkpoint = read_checkpoint(store, paths, checkpoint_id).checkpoint
        except ObjectNotFoundError:
            continue
        except (CorruptionError, IncompatibleFormatError) as error:
            if wanted is not None:
                wanted.discard(checkpoint_id)
            yield VerifiedObject(path, "checkpoint", problem=_first_line(error)), None
            continue
        if wanted is None:
            wanted = set(retained_ids(store, paths, checkpoint, ids))
        wanted.discard(checkpoint_id)
        yield VerifiedObject(path, "checkpoint"), checkpoint
    for checkpoint_id in sorted(wanted or ()):
        path = paths.metadata(checkpoint_id)
        problem = f"retained checkpoint {checkpoint_id} does not exist"
        yield VerifiedObject(path, "checkpoint", problem=problem), None


def _verify_changelog(
    store: ObjectStore, path: str, entries: dict[int, HandleAndOffset]
) -> VerifiedObject:
    kind = "checkpoint" if path.endswith("/_metadata") else "changelog"
    size = 0
    try:
        data = store.get(path)
        size = len(data)
        segment = parse_segment(data, where=path)
        for offset, entry in sorted(entries.items()):
            end = decode_change_set(segment.payload, offset, where=path).end
            if entry.size_bytes is not None and end - offset != entry.size_bytes:
                raise CorruptionError(
                    f"change set of {path} at payload offset {offset} has {end - offset} bytes, "
                    f"the checkpoint records {entry.size_bytes}"
                )
            if entry.crc32c is not None:
                verify_set(segment.payload[offset:end], entry.crc32c, where=path, offset=offset)
        for offset, size_bytes in segment.set_ranges():
            decode_change_set(segment.payload, offset, size_bytes=size_bytes, where=path)
    except (CorruptionError, IncompatibleFormatError, ObjectNotFoundError) as error:
        return VerifiedObject(path, kind, size, problem=_first_line(error))
    return VerifiedObject(path, kind, size, len(entries))


def _verify_snapshot(store: ObjectStore, snapshot: MaterializedHandle) -> VerifiedObject:
    path = snapshot.handle.path if isinstance(snapshot.handle, FileStateHandle) else ""
    try:
        return VerifiedObject(path, "snapshot", len(read_materialized(store, snapshot)))
    except (CorruptionError, ObjectNotFoundError) as error:
        return VerifiedObject(path, "snapshot", problem=_first_line(error))


def _verify_other(store: ObjectStore, path: str) -> VerifiedObject:
    try:
        return VerifiedObject(path, "other", len(store.get(path)))
    except ObjectNotFoundError as error:
        return VerifiedObject(path, "other", problem=_first_line(error))


def _first_line(error: StatelogError) -> str:
    return str(error).splitlines()[0]
