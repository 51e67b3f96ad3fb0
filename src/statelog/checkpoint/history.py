"""
Read the entries of a location back: which exist, and which checkpoint is the newest.

Checkpoints and claims are entries of one sequence, `chk-<number>/_metadata`.  The highest entry is the
newest checkpoint, or a claim, which names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from statelog.checkpoint.first_edition import is_zombie
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
)
from statelog.format.checkpoint_metadata import CHECKPOINT_TAG, CheckpointRecord
from statelog.format.checkpoint_record import FIRST_VERSION
from statelog.format.claim_record import CLAIM_BYTES_MAX, ClaimRecord, decode_entry
from statelog.format.segment import parse_segment
from statelog.format.trailer import FOOTER, Trailer, read_trailer
from statelog.model import CompletedCheckpoint
from statelog.store import PATHS, ObjectStore, ask_at_once, read_verified
from statelog.store.at_once import read_tail
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

    @property
    def is_of_first_edition(self) -> bool:
        """Whether statelog 0.2 committed it."""
        return self.record.version == FIRST_VERSION


Entry: TypeAlias = StoredCheckpoint | ClaimRecord

KnownEntries: TypeAlias = dict[int, Entry]
"""Entries that were read whole, by number; a caller that asks several times reads each once."""


@dataclass(frozen=True, slots=True)
class History:
    """
    The history of a location, for a restart.

    Args:
        stored: The checkpoint to continue from as the store has it, or None if there is none.
        top: The highest entry, or None if there is none.
    """

    stored: StoredCheckpoint | None
    top: Entry | None = None

    @property
    def newest(self) -> CompletedCheckpoint | None:
        """The checkpoint to continue from, or None if there is none."""
        return None if self.stored is None else self.stored.checkpoint


def present_ids(store: ObjectStore) -> list[int]:
    """Return the numbers of the folders of all entries, ascending; one may have no metadata."""
    ids = (parse_checkpoint_folder(name) for name in store.list_folders())
    return sorted(one for one in ids if one is not None)


def read_entry(store: ObjectStore, number: int, *, whole: bool = False) -> Entry:
    """
    Read one entry, verified.

    Args:
        store: The store of the location.
        number: Its number.
        whole: Also read and verify the change sets inside; otherwise only the trailer is read.

    Raises:
        ObjectNotFoundError: There is no such entry.
        CorruptionError: Its metadata is damaged.
        IncompatibleFormatError: A newer statelog wrote it.
        StoreError: The store failed.

    Blocks: On the store.
    """
    path = PATHS.metadata(number)

    def parsed(data: memoryview) -> Entry:
        return _entry(parse_segment(data, where=path).trailer, path, len(data), number)

    def from_tail() -> Entry:
        trailer, size = _read_trailer(store, path)
        return _entry(trailer, path, size, number)

    return read_verified(store, path, parsed, first=None if whole else from_tail)


def read_checkpoint(
    store: ObjectStore, checkpoint_id: int, *, whole: bool = False
) -> StoredCheckpoint:
    """
    Read one checkpoint, verified; arguments, errors and `Blocks:` are those of `read_entry`.

    Raises:
        ObjectNotFoundError: There is no such checkpoint: nothing has the number, or a claim has it.
    """
    return _no_claim(read_entry(store, checkpoint_id, whole=whole))


def fetch_checkpoint(store: ObjectStore, checkpoint_id: int) -> StoredCheckpoint:
    """
    Read one checkpoint with a single request, for a reader that will need the change sets inside.

    They are verified when they are read.  Arguments, errors and `Blocks:` are those of
    `read_checkpoint`.
    """
    path = PATHS.metadata(checkpoint_id)

    def parsed(data: memoryview) -> Entry:
        return _entry(read_trailer(data, where=path), path, len(data), checkpoint_id)

    return _no_claim(read_verified(store, path, parsed))


def _no_claim(entry: Entry) -> StoredCheckpoint:
    if isinstance(entry, ClaimRecord):
        path = PATHS.metadata(entry.number)
        raise ObjectNotFoundError(
            f"{path} is a claim, of {entry.owner_id!r}, no checkpoint", path=path
        )
    return entry


def _entry(trailer: Trailer | None, path: str, size: int, number: int) -> Entry:
    """Return the entry in a trailer, or raise `CorruptionError`."""
    if trailer is None or CHECKPOINT_TAG not in trailer.sections:
        raise CorruptionError(
            f"damaged checkpoint metadata {path}: its {size} bytes contain no checkpoint record "
            "(the object was truncated, or is not a checkpoint)",
            path=path,
        )
    record = decode_entry(trailer.sections[CHECKPOINT_TAG], where=path)
    if isinstance(record, ClaimRecord):
        entry: Entry = record
        what, found = "the claim", record.number
    else:
        entry = StoredCheckpoint(record, trailer.sections, size)
        what, found = "checkpoint", record.checkpoint.checkpoint_id
    if found != number:
        raise CorruptionError(
            f"{path} contains {what} {found}; the object was moved or copied", path=path
        )
    return entry


def read_whole_entry(store: ObjectStore, number: int, known: KnownEntries | None = None) -> Entry:
    """
    Read one entry with the change sets inside, unless it is *known*; raises as `read_entry`.

    Args:
        store: Where it is stored.
        number: Its number.
        known: What was read before, and gets what is read now; entries never change.

    Blocks: On the store.
    """
    known = {} if known is None else known
    if number not in known:
        known[number] = read_entry(store, number, whole=True)
    return known[number]


def read_whole(
    store: ObjectStore,
    checkpoint_id: int,
    known: KnownEntries | None = None,
) -> StoredCheckpoint:
    """Read one checkpoint as `read_whole_entry` does; raises as `read_checkpoint`."""
    return _no_claim(read_whole_entry(store, checkpoint_id, known))


def _read_trailer(store: ObjectStore, path: str) -> tuple[Trailer | None, int]:
    """Return the trailer of an object, and the size of the whole."""
    tail, size = read_tail(store, path, _TAIL_SIZE)
    if len(tail) >= FOOTER.size:
        needed = FOOTER.size + FOOTER.unpack(tail[-FOOTER.size :])[0]
        if len(tail) < needed <= size:
            tail = store.get_range(path, size - needed, needed)
    return read_trailer(tail, where=path), size


def find_newest(
    store: ObjectStore,
    *,
    ids: list[int] | None = None,
    known: KnownEntries | None = None,
) -> History:
    """
    Find the checkpoint to continue from.

    Args:
        store: The store of the location.
        ids: Result of `present_ids`, if known.
        known: As for `read_whole_entry`.

    Raises:
        CheckpointError: The newest one is damaged (`reason` "damaged"); the error names the newest
            older one that can be restored (`usable_id`).  Or a driver of statelog 0.2 has written to
            the location since it was taken over ("two_editions").
        IncompatibleFormatError: A newer statelog wrote the newest one.

    Blocks: On the store.
    """
    ids = present_ids(store) if ids is None else ids
    while True:
        top, ids = read_top(store, ids, known)
        if top is None:
            return History(None)
        number = ids[-1]
        try:
            if isinstance(top, CorruptionError):
                raise top
            if isinstance(top, StoredCheckpoint):
                if not top.is_of_first_edition:
                    return History(top, top)
                return History(_newest_of_first_edition(store, ids, known), top)
            if top.newest is None:
                return History(None, top)
            number = top.newest
            return History(read_whole(store, number, known), top)
        except ObjectNotFoundError as error:
            listed = present_ids(store)
            if listed[-1:] == ids[-1:]:  # nothing came after the claim, so the checkpoint is lost
                older = [one for one in ids if one < number]
                raise _damaged(store, number, older, error) from error
            ids = listed
        except CorruptionError as error:
            older = [one for one in ids if one < number]
            raise _damaged(store, number, older, error) from error


def read_top(
    store: ObjectStore, ids: list[int], known: KnownEntries | None
) -> tuple[Entry | CorruptionError | None, list[int]]:
    """
    Read the highest entry.

    An owner may have deleted every entry of a listing before one was read; then there are newer ones.

    Args:
        store: The store of the location.
        ids: Result of `present_ids`.
        known: As for `read_whole_entry`.

    Returns:
        The entry, or why it is damaged; None without one.  And the listing that it ends.

    Blocks: On the store.
    """
    missing: set[int] = set()
    while ids:
        try:
            return read_whole_entry(store, ids[-1], known), ids
        except CorruptionError as error:
            return error, ids
        except ObjectNotFoundError:
            missing.add(ids[-1])  # a folder on local disk may stay without a metadata object
            ids = [one for one in present_ids(store) if one not in missing]
    return None, ids


def _newest_of_first_edition(
    store: ObjectStore, ids: list[int], known: KnownEntries | None
) -> StoredCheckpoint | None:
    """Return the newest checkpoint of a location of statelog 0.2; the highest one may be a zombie."""
    reads = [partial(_quietly, store, one) for one in ids]
    entries = [one for one in ask_at_once(store, reads) if one is not None]
    checkpoints = [one for one in entries if isinstance(one, StoredCheckpoint)]
    if any(not one.is_of_first_edition for one in checkpoints) or len(checkpoints) < len(entries):
        late = checkpoints[-1].checkpoint
        raise CheckpointError(
            f"checkpoint {late.checkpoint_id} of {store.url} was committed by {late.owner_id!r}, a driver "
            "of statelog 0.2, after the location was taken over by this edition. It is not part of the "
            f"history. Stop that driver, and delete {PATHS.metadata(late.checkpoint_id)}; then start "
            "again",
            reason="two_editions",
            checkpoint_id=late.checkpoint_id,
            path=PATHS.metadata(late.checkpoint_id),
        )
    for one in reversed(ids):
        try:
            candidate = read_whole(store, one, known)
        except ObjectNotFoundError:
            continue
        if not is_zombie(candidate.checkpoint, [other.checkpoint for other in checkpoints]):
            return candidate
    return None


def _quietly(store: ObjectStore, number: int) -> Entry | None:
    """Return an entry; None if it does not exist, or cannot be read."""
    try:
        return read_entry(store, number)
    except (ObjectNotFoundError, CorruptionError, IncompatibleFormatError):
        return None


def may_be_claim(store: ObjectStore, number: int) -> bool:
    """
    Return whether an entry is a claim, or a damaged one that is small enough to be one.

    Blocks: On the store.
    """
    try:
        return isinstance(read_entry(store, number), ClaimRecord)
    except ObjectNotFoundError:
        return False
    except IncompatibleFormatError:
        return True
    except CorruptionError:
        return store.head(PATHS.metadata(number)).size_bytes <= CLAIM_BYTES_MAX


def missing_objects(store: ObjectStore, checkpoint: CompletedCheckpoint) -> tuple[str, ...]:
    """Return the objects of the checkpoint that do not exist."""
    listed = {info.path for info in store.list()}
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
    checkpoint_id: int,
    older: list[int],
    error: CorruptionError | ObjectNotFoundError,
) -> CheckpointError:
    usable = _newest_usable(store, older)
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
        path=PATHS.metadata(checkpoint_id),
        usable_id=usable,
    )


def _newest_usable(store: ObjectStore, ids: list[int]) -> int | None:
    for checkpoint_id in reversed(ids):
        try:
            found = read_checkpoint(store, checkpoint_id, whole=True).checkpoint
        except (ObjectNotFoundError, CorruptionError):
            continue
        if not missing_objects(store, found):
            return checkpoint_id
    return None


def load_checkpoint(store: ObjectStore, checkpoint_id: int) -> CompletedCheckpoint:
    """
    Read one checkpoint by its id.

    Raises:
        CheckpointError: `reason` "not_found" or "damaged".
        IncompatibleFormatError: A newer statelog wrote it.

    Blocks: On the store.
    """
    return load_stored(store, checkpoint_id).checkpoint


def load_section(store: ObjectStore, checkpoint_id: int, tag: bytes) -> bytes | None:
    """
    Return a caller's section of one checkpoint, or None if it has none.

    Raises:
        CheckpointError: `reason` "not_found" or "damaged".
        IncompatibleFormatError: A newer statelog wrote it.

    Blocks: On the store.
    """
    return load_stored(store, checkpoint_id).sections.get(tag)


def load_stored(store: ObjectStore, checkpoint_id: int) -> StoredCheckpoint:
    """Return one checkpoint as it is stored; raises as `load_checkpoint`."""
    path = PATHS.metadata(checkpoint_id)
    try:
        return read_checkpoint(store, checkpoint_id)
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
