"""
Verify every object that a retained checkpoint reaches.

These are the objects that garbage collection keeps.  Each is read once and dropped, so that memory
depends on the number of objects only.  Besides the checksums of the objects, the checkpoints are
compared with each other: what a checkpoint has of the log of the one before it must be all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from statelog.checkpoint.attachments import Attachment, attachments_in
from statelog.checkpoint.history import exists, present_ids, read_checkpoint, read_entry
from statelog.checkpoint.retained import retained_ids
from statelog.checkpoint.state_stream import read_materialized, read_stream
from statelog.errors import (
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    StatelogError,
)
from statelog.format.arrow_data import open_parquet
from statelog.format.change_set import decode_change_set
from statelog.format.checkpoint_record import ClaimRecord
from statelog.format.sealed_file import WHAT, verified_body
from statelog.format.segment import parse_segment, verify_set
from statelog.format.trailer import check_mark, damaged
from statelog.model import (
    CompletedCheckpoint,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    MaterializedHandle,
)
from statelog.model.checkpoint import covered_checkpoints
from statelog.model.handles import stream_handle_from_json
from statelog.store import PATHS, ObjectStore, read_verified
from statelog.store.paths import LOOSE_OBJECTS

OK: Final = "ok"
DAMAGED: Final = "damaged"
MISSING: Final = "missing"
NEWER: Final = "newer"
_SEALED: Final = WHAT
"""An object with its own checksum."""
OTHER: Final = "other"
_STATE: Final = ("checkpoint", "changelog", "snapshot")
_OUTPUT_FILES: Final = "output_files"
_PARQUET_MAGIC: Final = b"PAR1"
_KEY_GROUP_COLUMN: Final = "key_group"


@dataclass(frozen=True, slots=True)
class VerifiedObject:
    """
    The result for one object.

    Args:
        path: Its name.
        kind: "checkpoint", "changelog", "snapshot", the kind of an attachment, or "other" (another
            object that the engine needs).
        size_bytes: Bytes read; 0 if it could not be read.
        change_sets: Change sets verified in it, of those that checkpoints refer to.
        problem: What is wrong with it, or "".
        finding: "ok", "damaged", "missing", or "newer": written by a newer statelog, not damaged.
        offset: Where the damage begins, if that is known: as the problem says, a byte of the file
            or an offset in its uncompressed payload.
        checkpoints: The retained checkpoints that need it, ascending.
    """

    path: str
    kind: str
    size_bytes: int = 0
    change_sets: int = 0
    problem: str = ""
    finding: str = OK
    offset: int | None = None
    checkpoints: tuple[int, ...] = ()

    @property
    def blocks_restore(self) -> bool:
        """
        Whether damage to this object prevents restoring the checkpoints that need it.

        Damage of most attachments does not matter.
        """
        is_needed = self.kind in (*_STATE, OTHER) or self.finding == MISSING
        return bool(self.problem) and is_needed


def verify_location(store: ObjectStore) -> Iterator[VerifiedObject]:
    """
    Read and verify every object that retained checkpoints reach, and yield each result.

    If the newest checkpoint is damaged, that is one result, and the objects of the next older
    readable one are verified.  Unreadable metadata is first, the other objects follow by name.
    `LooseObjects` with a checksum are verified too, although no checkpoint names them.

    Raises:
        StoreError: The store failed, other than by a missing object.

    Blocks: On the store; reads every object whole, once.
    """
    needs = _Needs()
    unreadable: set[str] = set()
    checkpoints: dict[int, CompletedCheckpoint] = {}
    # 1. The metadata of every retained checkpoint.
    for finding, checkpoint in _checkpoints(store):
        if checkpoint is None:
            unreadable.add(finding.path)
            yield finding
        else:
            checkpoints[checkpoint.checkpoint_id] = checkpoint
    # 2. The objects that they name, each once, however many checkpoints need it.
    for checkpoint in checkpoints.values():
        needs.add(checkpoint, PATHS.metadata(checkpoint.checkpoint_id))
    needs.add_loose(store)
    # 3. Each checkpoint against its parent: an object may be sound and still not be named.
    gaps = {
        PATHS.metadata(child.checkpoint_id): gap
        for child in checkpoints.values()
        if child.parent_id in checkpoints and (gap := _log_gap(checkpoints[child.parent_id], child))
    }
    # 4. Read the objects.  A gap is reported with the metadata of the checkpoint that has it.
    for result in needs.verified(store, unreadable):
        gap = gaps.get(result.path, "")
        yield (
            replace(result, problem=gap, finding=DAMAGED) if gap and not result.problem else result
        )


def verify_checkpoint(store: ObjectStore, checkpoint_id: int) -> Iterator[VerifiedObject]:
    """Read and verify every object that one checkpoint needs, and yield each result."""
    path = PATHS.metadata(checkpoint_id)
    try:
        checkpoint = read_checkpoint(store, checkpoint_id).checkpoint
    except (CorruptionError, IncompatibleFormatError, ObjectNotFoundError) as error:
        yield _failed(path, "checkpoint", error, (checkpoint_id,))
        return
    needs = _Needs()
    needs.add(checkpoint, path)
    yield from needs.verified(store, set())


class SoundCheckpoints:
    """
    Finds the newest restorable checkpoint from the results of a verification.

    Attributes: `retained`: the checkpoints named by results; `unsound`: those that cannot be
    restored.
    """

    def __init__(self) -> None:
        self.retained: set[int] = set()
        self.unsound: set[int] = set()

    def add(self, item: VerifiedObject) -> None:
        """Record the result for one object."""
        self.retained.update(item.checkpoints)
        if item.blocks_restore:
            self.unsound.update(item.checkpoints)

    @property
    def newest(self) -> int | None:
        """The newest intact checkpoint, or None if there is none."""
        return max(self.retained - self.unsound, default=None)


@dataclass(slots=True)
class _Need:
    """What checkpoints record about one object that they need."""

    kind: str
    checkpoints: set[int] = field(default_factory=set)
    entries: dict[HandleAndOffset, None] = field(default_factory=dict)
    snapshots: dict[tuple[int, int, int | None], MaterializedHandle] = field(default_factory=dict)
    handle: FileStateHandle | None = None


class _Needs:
    """All objects that the verified checkpoints need."""

    def __init__(self) -> None:
        self._objects: dict[str, _Need] = {}

    def add(self, checkpoint: CompletedCheckpoint, metadata: str) -> None:
        checkpoint_id = checkpoint.checkpoint_id
        self._of(metadata, "checkpoint", checkpoint_id)
        for attachment in attachments_in(checkpoint.properties):
            path = attachment.path
            self._of(path, _kind_of(attachment), checkpoint_id).handle = attachment.handle
        for file in _output_files(checkpoint):
            self._of(file.path, OTHER, checkpoint_id).handle = file
        for file, piece in checkpoint.objects():
            if isinstance(piece, HandleAndOffset):
                kind = "checkpoint" if file.path.endswith("/_metadata") else "changelog"
                self._of(file.path, kind, checkpoint_id).entries[piece] = None
            elif piece is not None:
                groups = piece.key_group_range
                key = (groups.start, groups.end, file.crc32c)
                self._of(file.path, "snapshot", checkpoint_id).snapshots[key] = piece
            else:
                self._of(file.path, OTHER, checkpoint_id)

    def add_loose(self, store: ObjectStore) -> None:
        for loose in LOOSE_OBJECTS:
            for info in store.list(loose.folder.rstrip("/")) if loose.is_verified else ():
                self._objects.setdefault(info.path, _Need(_SEALED))

    def _of(self, path: str, kind: str, checkpoint_id: int) -> _Need:
        need = self._objects.get(path)
        if need is None:
            need = self._objects[path] = _Need(kind)
        need.checkpoints.add(checkpoint_id)
        return need

    def verified(self, store: ObjectStore, reported: set[str]) -> Iterator[VerifiedObject]:
        """Yield the result for each object, ordered by kind and name."""
        for path, need in sorted(
            self._objects.items(), key=lambda item: (_order_of(item[1].kind), item[0])
        ):
            if path in reported:
                continue
            needed_by = tuple(sorted(need.checkpoints))
            try:
                yield replace(_verified(store, path, need), checkpoints=needed_by)
            except (CorruptionError, IncompatibleFormatError, ObjectNotFoundError) as error:
                if needed_by or not isinstance(error, ObjectNotFoundError):
                    yield _failed(path, need.kind, error, needed_by)
                # Else it was deleted since it was listed, and no checkpoint names it.


def _kind_of(attachment: Attachment) -> str:
    if attachment.is_required:
        return OTHER
    return _SEALED if attachment.crc is None else attachment.kind.replace("_", " ")


def _order_of(kind: str) -> tuple[int, str]:
    """Return the sort position of a kind; objects needed for a restore come first."""
    if kind in _STATE:
        return max(_STATE.index(kind), 1), ""
    return (len(_STATE), kind) if kind != OTHER else (len(_STATE) + 1, "")


def _verified(store: ObjectStore, path: str, need: _Need) -> VerifiedObject:
    """Return the result for an object if it is intact; otherwise, raise an error."""
    if need.kind in ("checkpoint", "changelog"):
        size = _verify_changelog(store, path, need)
        return VerifiedObject(path, need.kind, size, len(need.entries))
    if need.kind == "snapshot":
        size = 0
        for snapshot in need.snapshots.values():
            data = read_materialized(store, snapshot)
            _check_key_groups(path, data, snapshot.key_group_range)
            size = len(data)
        return VerifiedObject(path, need.kind, size)
    if need.kind == _SEALED:
        data = store.get(path)
        verified_body(data, where=path)
        return VerifiedObject(path, need.kind, len(data))
    handle = FileStateHandle(path, -1) if need.handle is None else need.handle
    return VerifiedObject(path, need.kind, len(read_stream(store, handle, what="output")))


def _failed(
    path: str, kind: str, error: StatelogError, checkpoints: tuple[int, ...]
) -> VerifiedObject:
    finding = DAMAGED
    if isinstance(error, ObjectNotFoundError):
        finding = MISSING
    elif isinstance(error, IncompatibleFormatError):
        finding = NEWER
    offset = error.facts.get("offset")
    return VerifiedObject(
        path,
        kind,
        problem=str(error).splitlines()[0],
        finding=finding,
        offset=offset if isinstance(offset, int) else None,
        checkpoints=checkpoints,
    )


def _checkpoints(store: ObjectStore) -> Iterator[tuple[VerifiedObject, CompletedCheckpoint | None]]:
    """Yield the retained checkpoints, newest first; None in place of an unreadable one."""
    checked: set[int] | None = None
    ids = present_ids(store)
    # A newest checkpoint that is gone is not listed, so only the claim above tells of it.
    lost = _lost_newest(store, ids)
    unreadable = len(lost)
    for checkpoint_id in lost:
        yield _gone(checkpoint_id), None
    for checkpoint_id in reversed(ids):
        if checked is not None and checkpoint_id not in checked:
            continue
        path = PATHS.metadata(checkpoint_id)
        try:
            checkpoint = read_checkpoint(store, checkpoint_id).checkpoint
        except ObjectNotFoundError:
            continue
        except (CorruptionError, IncompatibleFormatError) as error:
            if checked is None:
                unreadable += 1
            else:
                checked.discard(checkpoint_id)
            yield _failed(path, "checkpoint", error, (checkpoint_id,)), None
            continue
        if checked is None:
            # Each newer one that cannot be read may have subsumed one more.
            retained = checkpoint.retained[min(unreadable, len(checkpoint.retained) - 1) :]
            checked = set(retained_ids(store, replace(checkpoint, retained=retained), ids))
        checked.discard(checkpoint_id)
        yield VerifiedObject(path, "checkpoint"), checkpoint
    # Retained by the newest readable one, and in no listing: these are missing.
    for checkpoint_id in sorted(checked or ()):
        if checkpoint_id not in lost:
            yield _gone(checkpoint_id), None


def _lost_newest(store: ObjectStore, ids: list[int]) -> list[int]:
    """Return the newest checkpoint that a later claim references, if it no longer exists."""
    try:
        top = read_entry(store, ids[-1]) if ids else None
    except (ObjectNotFoundError, CorruptionError, IncompatibleFormatError):
        return []  # reported when it is read as a checkpoint
    if not isinstance(top, ClaimRecord) or top.newest is None:
        return []
    if exists(store, PATHS.metadata(top.newest)):
        return []
    # After another commit a query may have deleted it meanwhile.
    return [top.newest] if present_ids(store)[-1:] == ids[-1:] else []


def _gone(checkpoint_id: int) -> VerifiedObject:
    gone = ObjectNotFoundError(f"retained checkpoint {checkpoint_id} does not exist")
    return _failed(PATHS.metadata(checkpoint_id), "checkpoint", gone, (checkpoint_id,))


def _verify_changelog(store: ObjectStore, path: str, need: _Need) -> int:
    """Return the size of a changelog file if it is intact and contains the needed change sets."""
    return read_verified(store, path, lambda data: _verify_segment(data, path, need))


def _verify_segment(data: memoryview, path: str, need: _Need) -> int:
    segment = parse_segment(data, where=path)
    if segment.trailer is None and need.kind == "checkpoint":
        raise damaged(
            path, "it does not contain a checkpoint record; the object was truncated or replaced"
        )
    for entry in sorted(need.entries, key=lambda entry: entry.offset):
        offset = entry.offset
        # First what checkpoints refer to, with its place in the message; then the whole file.
        end = decode_change_set(segment.payload, offset, where=path).end
        if entry.size_bytes is not None and end - offset != entry.size_bytes:
            raise CorruptionError(
                f"the change set at payload offset {offset} of {path} is {end - offset} bytes long, "
                f"but the checkpoint records {entry.size_bytes} bytes",
                path=path,
                offset=offset,
            )
        if entry.crc32c is not None:
            verify_set(segment.payload[offset:end], entry.crc32c, where=path, offset=offset)
    check_mark(data, where=path)
    for offset, size_bytes in segment.set_ranges():
        decode_change_set(segment.payload, offset, size_bytes=size_bytes, where=path)
    return len(data)


def _output_files(checkpoint: CompletedCheckpoint) -> Iterator[FileStateHandle]:
    """Yield the files that contain staged rows."""
    files = checkpoint.properties.get(_OUTPUT_FILES)
    for value in files if isinstance(files, list) else ():
        handle = stream_handle_from_json(value) if isinstance(value, dict) else None
        if isinstance(handle, FileStateHandle):
            yield handle


def _check_key_groups(path: str, data: memoryview, expected: KeyGroupRange) -> None:
    """Reject a statelog snapshot that has no rows in the key groups recorded for it."""
    if bytes(data[: len(_PARQUET_MAGIC)]) != _PARQUET_MAGIC:
        return  # the snapshot of another engine
    try:
        file = open_parquet(data)
        if not file.metadata.num_rows or _KEY_GROUP_COLUMN not in file.schema_arrow.names:
            return
        column = file.read(columns=[_KEY_GROUP_COLUMN]).column(0)
        ends: dict[str, int] = pa.compute.min_max(column).as_py()
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(
            f"snapshot {path} is not a Parquet file: {error}", path=path
        ) from error
    if ends["max"] < expected.start or ends["min"] > expected.end:
        raise CorruptionError(
            f"snapshot {path} contains key groups {ends['min']} to {ends['max']}, but the "
            f"checkpoint records {expected.start} to {expected.end}",
            path=path,
        )


def _log_gap(parent: CompletedCheckpoint, child: CompletedCheckpoint) -> str:
    """Return which of its parent's logs are missing from a checkpoint, or ""."""
    covered = covered_checkpoints(child.materialized, child.max_parallelism)
    present = {log.state_handle_id: log.key_group_range for log in child.log}
    for handle in parent.log:
        groups = handle.key_group_range
        needed = covered[groups.start : groups.end + 1] < handle.checkpoint_id
        if needed.any() and present.get(handle.state_handle_id) != groups:
            return (
                f"checkpoint {child.checkpoint_id} does not contain the log of checkpoint "
                f"{handle.checkpoint_id} (handle {handle.state_handle_id}, key groups {groups.start} to {groups.end}), which "
                f"its parent {parent.checkpoint_id} contains and no snapshot covers"
            )
    return ""
