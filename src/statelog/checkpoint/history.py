"""
Read checkpoints back: which exist, which one is the newest, and their records.

A checkpoint exists if its `_metadata` does.  The newest is the one to continue from, unless it is a
*zombie*: committed late by a fenced owner, while the history continued without it.  Between a zombie
and its parent there is another checkpoint, of a later claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from statelog.errors import CheckpointError, CorruptionError, ObjectNotFoundError
from statelog.format.checkpoint_metadata import CHECKPOINT_TAG, CheckpointRecord, decode_record
from statelog.format.segment import parse_segment
from statelog.format.trailer import FOOTER, Trailer, read_trailer
from statelog.model import CompletedCheckpoint
from statelog.store import LocationPaths, ObjectStore, read_verified
from statelog.store.paths import parse_checkpoint_folder

_TAIL_SIZE: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """
    A checkpoint as it is stored.

    Args:
        record: Its record.
        sections: The trailer sections of its file by tag.
        size_bytes: Length of its file.
    """

    record: CheckpointRecord
    sections: Mapping[bytes, bytes]
    size_bytes: int

    @property
    def checkpoint(self) -> CompletedCheckpoint:
        """The checkpoint itself."""
        return self.record.checkpoint


KnownCheckpoints: TypeAlias = dict[int, StoredCheckpoint]
"""Checkpoints that were read whole, by id; a caller that asks several times reads each once."""


@dataclass(frozen=True, slots=True)
class History:
    """
    The history of a location, for a restart.

    Args:
        stored: The checkpoint to continue from as the store has it, or None if there is none.
        zombies: Checkpoints with higher ids that are not part of its history.
    """

    stored: StoredCheckpoint | None
    zombies: tuple[int, ...] = ()

    @property
    def newest(self) -> CompletedCheckpoint | None:
        """The checkpoint to continue from, or None if there is none."""
        return None if self.stored is None else self.stored.checkpoint


def present_ids(store: ObjectStore, paths: LocationPaths) -> list[int]:
    """Return the ids of all checkpoint folders, ascending; one may have no metadata."""
    ids = (parse_checkpoint_folder(name) for name in store.list_folders(paths.root))
    return sorted(one for one in ids if one is not None)


def read_checkpoint(
    store: ObjectStore, paths: LocationPaths, checkpoint_id: int, *, whole: bool = False
) -> StoredCheckpoint:
    """
    Read one checkpoint, verified.

    Args:
        store: The store of the location.
        paths: The location in the store.
        checkpoint_id: Its id.
        whole: Also read and verify the change sets inside; otherwise only the trailer is read.

    Raises:
        ObjectNotFoundError: There is no such checkpoint.
        CorruptionError: Its metadata is damaged.
        IncompatibleFormatError: A newer statelog wrote it.
        StoreError: The store failed.

    Blocks: On the store.
    """
    path = paths.metadata(checkpoint_id)

    def parsed(data: memoryview) -> StoredCheckpoint:
        return _stored(parse_segment(data, where=path).trailer, path, len(data), checkpoint_id)

    def from_tail() -> StoredCheckpoint:
        size = store.head(path).size_bytes
        return _stored(_read_tail(store, path, size), path, size, checkpoint_id)

    return read_verified(store, path, parsed, first=None if whole else from_tail)


def fetch_checkpoint(
    store: ObjectStore, paths: LocationPaths, checkpoint_id: int
) -> StoredCheckpoint:
    """
    Read one checkpoint with a single request, for a reader that will need the change sets inside.

    They are verified when they are read.  Arguments, errors and `Blocks:` are those of
    `read_checkpoint`.
    """
    path = paths.metadata(checkpoint_id)

    def parsed(data: memoryview) -> StoredCheckpoint:
        return _stored(read_trailer(data, where=path), path, len(data), checkpoint_id)

    return read_verified(store, path, parsed)


def _stored(trailer: Trailer | None, path: str, size: int, checkpoint_id: int) -> StoredCheckpoint:
    """Return the checkpoint in a trailer, or raise `CorruptionError`."""
    if trailer is None or CHECKPOINT_TAG not in trailer.sections:
        raise CorruptionError(
            f"damaged checkpoint metadata {path}: its {size} bytes contain no checkpoint record "
            "(the object was truncated, or is not a checkpoint)",
            path=path,
        )
    record = decode_record(trailer.sections[CHECKPOINT_TAG], where=path)
    if record.checkpoint.checkpoint_id != checkpoint_id:
        raise CorruptionError(
            f"{path} contains checkpoint {record.checkpoint.checkpoint_id}; the object was moved "
            "or copied",
            path=path,
        )
    return StoredCheckpoint(record, trailer.sections, size)


def read_whole(
    store: ObjectStore,
    paths: LocationPaths,
    checkpoint_id: int,
    known: KnownCheckpoints | None = None,
) -> StoredCheckpoint:
    """
    Read one checkpoint with the change sets inside, unless it is *known*; raises as `read_checkpoint`.

    Args:
        store: Where it is stored.
        paths: The location in the store.
        checkpoint_id: Its id.
        known: What was read before, and gets what is read now; checkpoints never change.

    Blocks: On the store.
    """
    known = {} if known is None else known
    if checkpoint_id not in known:
        known[checkpoint_id] = read_checkpoint(store, paths, checkpoint_id, whole=True)
    return known[checkpoint_id]


def _read_tail(store: ObjectStore, path: str, size: int) -> Trailer | None:
    start = max(0, size - _TAIL_SIZE)
    tail = store.get_range(path, start, size - start)
    if len(tail) >= FOOTER.size:
        needed = FOOTER.size + FOOTER.unpack(tail[-FOOTER.size :])[0]
        if len(tail) < needed <= size:
            tail = store.get_range(path, size - needed, needed)
    return read_trailer(tail, where=path)


def find_newest(
    store: ObjectStore,
    paths: LocationPaths,
    *,
    ids: list[int] | None = None,
    known: KnownCheckpoints | None = None,
) -> History:
    """
    Find the checkpoint to continue from.

    Args:
        store: The store of the location.
        paths: The location in the store.
        ids: Result of `present_ids`, if known.
        known: As for `read_whole`.

    Raises:
        CheckpointError: The newest one is damaged (`reason` "damaged"); the error names the newest
            older one that can be restored (`usable_id`).
        IncompatibleFormatError: A newer statelog wrote the newest one.

    Blocks: On the store.
    """
    ids = present_ids(store, paths) if ids is None else ids
    zombies: list[int] = []
    for position in reversed(range(len(ids))):
        try:
            stored = read_whole(store, paths, ids[position], known)
        except ObjectNotFoundError:
            continue
        except CorruptionError as error:
            raise _damaged(store, paths, ids[position], ids[:position], error) from error
        if not _is_zombie(store, paths, stored.checkpoint, ids[:position]):
            return History(stored, tuple(reversed(zombies)))
        zombies.append(ids[position])
    return History(None, tuple(reversed(zombies)))


def _is_zombie(
    store: ObjectStore, paths: LocationPaths, newest: CompletedCheckpoint, older: list[int]
) -> bool:
    parent = -1 if newest.parent_id is None else newest.parent_id
    for checkpoint_id in older:
        if checkpoint_id <= parent:
            continue
        try:
            other = read_checkpoint(store, paths, checkpoint_id).checkpoint
        except (ObjectNotFoundError, CorruptionError):
            continue
        if other.epoch > newest.epoch:
            return True
    return False


def missing_objects(
    store: ObjectStore, paths: LocationPaths, checkpoint: CompletedCheckpoint
) -> tuple[str, ...]:
    """Return the objects of the checkpoint that do not exist."""
    listed = {info.path for info in store.list(paths.root)}
    return tuple(
        path
        for path in checkpoint.referenced_paths()
        if path not in listed and not exists(store, path)
    )


def exists(store: ObjectStore, path: str) -> bool:
    """Return whether an object exists."""
    try:
        store.head(path)
    except ObjectNotFoundError:
        return False
    return True


def _damaged(
    store: ObjectStore,
    paths: LocationPaths,
    checkpoint_id: int,
    older: list[int],
    error: CorruptionError,
) -> CheckpointError:
    usable = _newest_usable(store, paths, older)
    advice = (
        "no older checkpoint can be restored"
        if usable is None
        else f"the newest older checkpoint that can be restored is {usable}; to continue from it, "
        f"and give up all later commits, restore it by its id (restoreFrom={usable})"
    )
    return CheckpointError(
        f"checkpoint {checkpoint_id} is damaged: {error}. Nothing was skipped: {advice}",
        reason="damaged",
        checkpoint_id=checkpoint_id,
        path=paths.metadata(checkpoint_id),
        usable_id=usable,
    )


def _newest_usable(store: ObjectStore, paths: LocationPaths, ids: list[int]) -> int | None:
    for checkpoint_id in reversed(ids):
        try:
            found = read_checkpoint(store, paths, checkpoint_id, whole=True).checkpoint
        except (ObjectNotFoundError, CorruptionError):
            continue
        if not missing_objects(store, paths, found):
            return checkpoint_id
    return None


def load_checkpoint(
    store: ObjectStore, paths: LocationPaths, checkpoint_id: int
) -> CompletedCheckpoint:
    """
    Read one checkpoint by its id.

    Raises:
        CheckpointError: `reason` "not_found" or "damaged".
        IncompatibleFormatError: A newer statelog wrote it.

    Blocks: On the store.
    """
    return load_stored(store, paths, checkpoint_id).checkpoint


def load_section(
    store: ObjectStore, paths: LocationPaths, checkpoint_id: int, tag: bytes
) -> bytes | None:
    """
    Return a caller's section of one checkpoint, or None if it has none.

    Raises:
        CheckpointError: `reason` "not_found" or "damaged".
        IncompatibleFormatError: A newer statelog wrote it.

    Blocks: On the store.
    """
    return load_stored(store, paths, checkpoint_id).sections.get(tag)


def load_stored(store: ObjectStore, paths: LocationPaths, checkpoint_id: int) -> StoredCheckpoint:
    """Return one checkpoint as it is stored; raises as `load_checkpoint`."""
    path = paths.metadata(checkpoint_id)
    try:
        return read_checkpoint(store, paths, checkpoint_id)
    except ObjectNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint_id} does not exist in {store.url}; `statelog checkpoints` "
            "lists all",
            reason="not_found",
            checkpoint_id=checkpoint_id,
            path=path,
        ) from error
    except CorruptionError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint_id} is damaged: {error}",
            reason="damaged",
            checkpoint_id=checkpoint_id,
            path=path,
        ) from error
