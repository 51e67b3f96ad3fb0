"""
Read the entries of a location: which exist, and which checkpoint is the newest.

Checkpoints and claims are entries of one sequence, `chk-<number>/_metadata`.  The highest entry is
the newest checkpoint, or a claim, which names it.  A location is also found by the
checkpointLocation that has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Final, TypeAlias

from statelog.errors import (
    CheckpointError,
    CorruptionError,
    Fact,
    IncompatibleFormatError,
    ObjectNotFoundError,
)
from statelog.format.checkpoint_record import (
    CHECKPOINT_TAG,
    CLAIM_BYTES_MAX,
    ClaimRecord,
    decode_entry,
)
from statelog.format.segment import parse_segment
from statelog.format.trailer import FOOTER, Trailer, read_trailer
from statelog.model import CompletedCheckpoint
from statelog.store import (
    PATHS,
    LocationStore,
    ObjectStore,
    ask_at_once,
    open_existing_store,
    read_verified,
)
from statelog.store.paths import STATE_FOLDER, parse_checkpoint_folder, parse_copy_folder
from statelog.store.requests import read_tail

_TAIL_SIZE: Final = 64 * 1024
_NAMED: Final = 10
"""Entries looked at where the newest one is damaged, or to name checkpoints in an error."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint together with its stored object."""

    checkpoint: CompletedCheckpoint
    sections: Mapping[bytes, bytes]
    size_bytes: int


Entry: TypeAlias = StoredCheckpoint | ClaimRecord


def present_ids(store: ObjectStore) -> list[int]:
    """Return the numbers of all entries, ascending, including folders without metadata."""
    return _numbers(store.list_folders())


def _numbers(folders: Iterable[str]) -> list[int]:
    numbers = map(parse_checkpoint_folder, folders)
    return sorted(number for number in numbers if number is not None)


def read_entry(store: ObjectStore, number: int, *, whole: bool = False) -> Entry:
    """Read and verify one entry."""
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
    """Read and verify one checkpoint; see `read_entry` for arguments and errors."""
    return _no_claim(read_entry(store, checkpoint_id, whole=whole))


def fetch_checkpoint(store: ObjectStore, checkpoint_id: int) -> StoredCheckpoint:
    """
    Read a checkpoint with one request, for a reader that needs its inline change sets.

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
            f"{path} is a claim by {entry.owner_id!r}, not a checkpoint", path=path
        )
    return entry


def _entry(trailer: Trailer | None, path: str, size: int, number: int) -> Entry:
    """Return the entry contained in a trailer, or raise `CorruptionError`."""
    if trailer is None or CHECKPOINT_TAG not in trailer.sections:
        raise CorruptionError(
            f"damaged checkpoint metadata {path}: its {size} bytes contain no checkpoint record "
            "(the object was truncated or is not a checkpoint)",
            path=path,
        )
    record = decode_entry(trailer.sections[CHECKPOINT_TAG], where=path)
    if isinstance(record, ClaimRecord):
        entry: Entry = record
        what = "the claim"
        number_inside = record.number
    else:
        entry = StoredCheckpoint(record, trailer.sections, size)
        what = "checkpoint"
        number_inside = record.checkpoint_id
    # A record under a number that is not its own would be restored as another checkpoint.
    if number_inside != number:
        raise CorruptionError(
            f"{path} contains {what} {number_inside}; the object was moved or copied", path=path
        )
    return entry


def _read_trailer(store: ObjectStore, path: str) -> tuple[Trailer | None, int]:
    """Return the trailer of an object, and the size of the whole object."""
    # Usually one request: the record is at the end, and the end is small.
    tail, size = read_tail(store, path, _TAIL_SIZE)
    if len(tail) >= FOOTER.size:
        # A large checkpoint: the footer says how much more is needed.
        needed = FOOTER.size + FOOTER.unpack(tail[-FOOTER.size :])[0]
        if len(tail) < needed <= size:
            tail = store.get_range(path, size - needed, needed)
    return read_trailer(tail, where=path), size


class Entries:
    """
    The entries of a location; each entry is read at most once.

    Entries never change.  An owner may delete entries while they are read here; then the listing is
    taken again.
    """

    def __init__(self, store: ObjectStore, ids: list[int] | None = None) -> None:
        self.store = store
        self.copy_id: str | None = None
        """The identity of a copy of another location, by the last listing."""
        self._ids = ids
        self._entries: dict[int, Entry] = {}

    @property
    def ids(self) -> list[int]:
        """The numbers of the entries as of the last listing, in ascending order."""
        return self.list_again().ids if self._ids is None else self._ids

    def list_again(self) -> Entries:
        """List the entries again, without forgetting those that were already read."""
        folders = list(self.store.list_folders())
        self.copy_id = next(filter(None, map(parse_copy_folder, folders)), None)
        self._ids = _numbers(folders)
        return self

    def end_with(self, claim: ClaimRecord) -> None:
        """End the sequence with a claim; later entries in the listing are ignored."""
        self._entries[claim.number] = claim
        self._ids = [number for number in self.ids if number <= claim.number]

    def read(self, number: int) -> Entry:
        """Return an entry with its inline change sets; raises like `read_entry`."""
        if number not in self._entries:
            self._entries[number] = read_entry(self.store, number, whole=True)
        return self._entries[number]

    def read_checkpoint(self, checkpoint_id: int) -> StoredCheckpoint:
        """Return a checkpoint with its inline change sets; raises like `read_checkpoint`."""
        return _no_claim(self.read(checkpoint_id))

    def read_before(self, number: int) -> Entry | None:
        """Return an entry that has already been read, or None."""
        return self._entries.get(number)

    def top(self) -> Entry | CorruptionError | None:
        """
        Return the highest entry, or the reason that it is damaged; None without entries.

        The listing ends with it then: every entry of a listing may be deleted before one was read.
        """
        missing: set[int] = set()
        while self.ids:
            try:
                return self.read(self.ids[-1])
            except CorruptionError as error:
                return error
            except ObjectNotFoundError:
                missing.add(self.ids[-1])  # a folder on local disk may stay without an object
                self._ids = [number for number in present_ids(self.store) if number not in missing]
        return None

    def lowest(self) -> Entry | None:
        """
        Return the lowest entry, which is the first claim unless the location is a copy.

        None if it cannot be read.
        """
        with suppress(ObjectNotFoundError, CorruptionError, IncompatibleFormatError):
            return self.read(self.ids[0]) if self.ids else None
        return None

    @property
    def next_number(self) -> int:
        """The first free number."""
        top = self.top()
        if isinstance(top, ClaimRecord):
            return top.next_number
        return 0 if top is None else self.ids[-1] + 1

    def newest_readable(self) -> Entry | None:
        """Return the highest readable entry among the newest ten, or None."""
        for number in reversed(self.ids[-_NAMED:]):
            entry = readable(self.store, number)
            if entry is not None:
                return entry
        return None

    def newest_id(self) -> int | None:
        """Return the id of the newest checkpoint, which may be damaged, or None."""
        top = self.top()
        if isinstance(top, ClaimRecord):
            return top.newest
        return None if top is None else self.ids[-1]

    def newest(self) -> CompletedCheckpoint | None:
        """
        Return the checkpoint from which to continue, or None if there is none.

        Raises as `newest_stored`.
        """
        stored = self.newest_stored()
        return None if stored is None else stored.checkpoint

    def newest_stored(self) -> StoredCheckpoint | None:
        """Return the checkpoint from which to continue in its stored form, or None."""
        while True:
            top = self.top()
            if top is None:
                return None
            # Remembered, to detect below whether an owner has gone on meanwhile.
            last = self.ids[-1:]
            number = self.ids[-1]
            try:
                if isinstance(top, CorruptionError):
                    raise top
                if isinstance(top, StoredCheckpoint):
                    return top
                if top.newest is None:
                    return None
                number = top.newest
                return self.read_checkpoint(number)
            except ObjectNotFoundError as error:
                if self.list_again().ids[-1:] == last:  # no entry came after the claim
                    raise self._damaged(number, error) from error
            except CorruptionError as error:
                raise self._damaged(number, error) from error

    def _damaged(
        self, checkpoint_id: int, error: CorruptionError | ObjectNotFoundError
    ) -> CheckpointError:
        # Found for the message only: nothing is restored that the caller did not name.
        older = (number for number in reversed(self.ids) if number < checkpoint_id)
        usable = next(
            (number for number in older if is_usable(self.store, number, whole=True)), None
        )
        advice = (
            "no older checkpoint can be restored"
            if usable is None
            else f"the newest older checkpoint that can be restored is {usable}; to continue from it, "
            f"and discard all later commits, restore it by its id (checkpoint={usable})"
        )
        problem = str(error).removeprefix("damaged ")
        text = f"checkpoint {checkpoint_id} is damaged: {problem}. Nothing was skipped: {advice}"
        return unusable(checkpoint_id, "damaged", text, usable_id=usable)

    def load(self, checkpoint_id: int) -> StoredCheckpoint:
        """Return the checkpoint that the caller asks for."""
        try:
            return self.read_checkpoint(checkpoint_id)
        except ObjectNotFoundError as error:
            numbers = self.ids[-_NAMED:]
            checks = [partial(_is_checkpoint, self.store, number) for number in numbers]
            named = ", ".join(map(str, compress(numbers, ask_at_once(self.store, checks))))
            text = f"checkpoint {checkpoint_id} does not exist in {self.store.url} (newest: {named or 'none'})"
            raise unusable(checkpoint_id, "not_found", text) from error
        except CorruptionError as error:
            text = f"checkpoint {checkpoint_id} is damaged: {error}; restore a different checkpoint"
            raise unusable(checkpoint_id, "damaged", text, usable_id=None) from error


def unusable(checkpoint_id: int, reason: str, message: str, **facts: Fact) -> CheckpointError:
    """Return the error for a checkpoint that cannot be used, with the reason."""
    return CheckpointError(
        message,
        reason=reason,
        checkpoint_id=checkpoint_id,
        path=PATHS.metadata(checkpoint_id),
        **facts,
    )


def readable(store: ObjectStore, number: int, *, whole: bool = False) -> Entry | None:
    """Return an entry, or None if it does not exist or cannot be read."""
    with suppress(ObjectNotFoundError, CorruptionError, IncompatibleFormatError):
        return read_entry(store, number, whole=whole)
    return None


def is_usable(store: ObjectStore, number: int, *, whole: bool = False) -> bool:
    """Return whether an entry is a readable checkpoint whose objects all exist."""
    entry = readable(store, number, whole=whole)
    return isinstance(entry, StoredCheckpoint) and not missing_objects(store, entry.checkpoint)


def _is_checkpoint(store: ObjectStore, number: int) -> bool:
    """Return whether an entry exists and is not a claim; a damaged entry counts."""
    try:
        return not isinstance(read_entry(store, number), ClaimRecord)
    except ObjectNotFoundError:
        return False
    except (CorruptionError, IncompatibleFormatError):
        return True


def may_be_claim(store: ObjectStore, number: int) -> bool:
    """Return whether an entry is a claim, or is damaged but small enough to be one."""
    try:
        return isinstance(read_entry(store, number), ClaimRecord)
    except ObjectNotFoundError:
        return False
    except IncompatibleFormatError:
        return True
    except CorruptionError:
        return store.head(PATHS.metadata(number)).size_bytes <= CLAIM_BYTES_MAX


def missing_objects(store: ObjectStore, checkpoint: CompletedCheckpoint) -> tuple[str, ...]:
    """Return the objects that the checkpoint needs but that do not exist."""
    # One listing instead of a request for each object; those outside of the location are asked for.
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


def open_state(
    location: str | os.PathLike[str],
    *,
    options: Mapping[str, object] | None = None,
) -> LocationStore:
    """
    Return the store of a state location.

    A location wins over a folder of the same name inside it.  A path with neither is returned as it
    is: the caller says what is missing.
    """
    store = open_existing_store(location, options=options)
    if is_state(store) or STATE_FOLDER not in store.list_folders():
        return store
    inner = open_existing_store(
        f"{os.fspath(location).rstrip('/')}/{STATE_FOLDER}", options=options
    )
    return inner if is_state(inner) else store


def is_state(store: LocationStore) -> bool:
    """Return whether a store contains a checkpoint or a claim written by statelog."""
    return bool(present_ids(store))
