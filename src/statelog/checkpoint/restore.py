"""
Find the checkpoint that a restart continues from.

A restart continues from the newest checkpoint, or from one given by its id.  Objects that only older
checkpoints reached may still be stored, if their owner died before the clean-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from statelog.checkpoint.history import (
    KnownEntries,
    StoredCheckpoint,
    find_newest,
    may_be_claim,
    missing_objects,
    present_ids,
    read_checkpoint,
    read_whole,
)
from statelog.checkpoint.tags import Tag, delete_tag, read_pins, retained_ids
from statelog.core.checkpoint_events import RetainedCheckpoint
from statelog.core.pins import Pin, pinned
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
)
from statelog.format.claim_record import ClaimRecord
from statelog.model import CompletedCheckpoint
from statelog.store import PATHS, ObjectStore, ask_at_once, ask_both

_LISTINGS: Final = 3
LEFTOVERS_MAX: Final = 64
"""
Entries that an owner looks at after its start; more than the checkpoints that an owner leaves to be deleted.

Claims stay for ever, so without a bound each start would read all of them.  Older leftovers, of owners that
died one after the other, are deleted by `collect_garbage`.
"""
_NAMED: Final = 10
"""Entries looked at to name the newest checkpoints in an error; claims are left out."""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """
    The checkpoint to continue from, and what the ledger needs of older ones.

    Args:
        stored: The checkpoint to continue from; None for a location without any.
        retained: It and the older ones that can be restored, ascending.
        leftovers: The newest entries that are neither retained nor needed by a retained one: checkpoints
            whose owner ended before the clean-up, and claims; at most `LEFTOVERS_MAX`.
        given_up: Newer checkpoints that are given up with the first commit, ascending.
        pins: The pins of the location.
    """

    stored: StoredCheckpoint | None
    retained: tuple[RetainedCheckpoint, ...] = ()
    leftovers: tuple[int, ...] = ()
    given_up: tuple[RetainedCheckpoint, ...] = ()
    pins: tuple[Pin, ...] = ()

    @property
    def checkpoint(self) -> CompletedCheckpoint | None:
        """The checkpoint to continue from; None for a location without any."""
        return None if self.stored is None else self.stored.checkpoint


def find_restore_point(
    store: ObjectStore,
    checkpoint_id: int | None = None,
    *,
    known: KnownEntries | None = None,
    listed: Sequence[int] | None = None,
    pins: tuple[Pin, ...] | None = None,
) -> RestorePoint:
    """
    Find the checkpoint to continue from: the newest one, or the given one.

    Args:
        store: Where the location is.
        checkpoint_id: None for the newest one, or the id of one.
        known: Entries read before, see `read_whole_entry`.
        listed: The numbers of the entries, ascending; None to list them.
        pins: The pins of the location; None to read them.

    Raises:
        CheckpointError: It is damaged, does not exist, or can no longer be restored (`reason`).
        IncompatibleFormatError: A newer statelog wrote it.

    Blocks: On the store.
    """
    find_ids = partial(present_ids, store) if listed is None else partial(list[int], listed)
    find_pins = partial(read_pins, store) if pins is None else partial(tuple[Pin, ...], pins)
    ids, pinning = ask_both(store, find_ids, find_pins)
    known = {} if known is None else known
    newer: list[int] = []
    if checkpoint_id is None:
        newest = find_newest(store, ids=ids, known=known).stored
        if newest is None:
            return RestorePoint(None, pins=pinning)
        stored, kept = newest, newest.checkpoint.retained
    else:
        stored, kept = _asked_for(store, checkpoint_id, ids, known)
        newer = [
            one
            for one in ids
            if one > checkpoint_id and not isinstance(known.get(one), ClaimRecord)
        ]
    found = stored.checkpoint
    latest = max(one for one in ids if not isinstance(known.get(one), ClaimRecord))
    pinned_ids = pinned(pinning, ids, latest)
    own = RetainedCheckpoint(found.checkpoint_id, objects_of(found))
    wanted = sorted({*kept, *(one for one in pinned_ids if one < found.checkpoint_id)})
    reads = [partial(kept_checkpoint, store, one) for one in wanted if one != found.checkpoint_id]
    older = ask_at_once(store, reads)
    retained = (*(one for one in older if one is not None), own)
    gives_up = [partial(_given_up, store, one, known, one in pinned_ids) for one in newer]
    given_up = tuple(one for one in ask_at_once(store, gives_up) if one is not None)
    settled = {one.checkpoint_id for one in given_up}
    settled |= {number for number, one in known.items() if isinstance(one, ClaimRecord)}
    unsettled = [one for one in ids if one not in settled]
    return RestorePoint(stored, retained, _leftovers(unsettled, retained), given_up, pinning)


def _given_up(
    store: ObjectStore,
    checkpoint_id: int,
    known: KnownEntries,
    is_pinned: bool,
) -> RetainedCheckpoint | None:
    """
    Return the ledger's view of a newer checkpoint that a restore gives up; None if there is none.

    Of one that cannot be read, and that no pin holds, only the metadata is deleted.
    """
    stored = known.get(checkpoint_id)
    if isinstance(stored, StoredCheckpoint):
        return RetainedCheckpoint(checkpoint_id, objects_of(stored.checkpoint))
    found = kept_checkpoint(store, checkpoint_id)
    if found is None or found.objects is not None or is_pinned:
        return found
    if may_be_claim(store, checkpoint_id):
        return None
    return RetainedCheckpoint(checkpoint_id, (PATHS.metadata(checkpoint_id),))


def objects_of(checkpoint: CompletedCheckpoint) -> tuple[str, ...]:
    """Return all objects of a checkpoint, its own metadata last."""
    own = PATHS.metadata(checkpoint.checkpoint_id)
    return (*(path for path in checkpoint.referenced_paths() if path != own), own)


def check_key_groups(url: str, found: CompletedCheckpoint, max_parallelism: int) -> None:
    """
    Check that a checkpoint has the number of key groups of the job.

    Raises:
        CheckpointError: It has another one (`reason` "max_parallelism").
    """
    if found.max_parallelism != max_parallelism:
        raise CheckpointError(
            f"checkpoint {found.checkpoint_id} of {url} was taken with {found.max_parallelism} key "
            f"groups; max_parallelism {max_parallelism} cannot read it, because keys would move "
            "between key groups. Use the number the job began with",
            reason="max_parallelism",
            checkpoint_id=found.checkpoint_id,
        )


def find_checkpoint(store: ObjectStore, checkpoint_id: int | None = None) -> CompletedCheckpoint:
    """
    Return the newest checkpoint, or the one asked for, to read its state.

    Raises:
        CheckpointError: There is none (`reason` "not_found"), or as `find_restore_point`.
        IncompatibleFormatError: A newer statelog wrote it.

    Blocks: On the store.
    """
    if checkpoint_id is not None:
        ids = present_ids(store)
        return _asked_for(store, checkpoint_id, ids, {})[0].checkpoint
    for _ in range(_LISTINGS):
        ids = present_ids(store)
        newest = find_newest(store, ids=ids).newest
        if newest is not None:
            return newest
        if not ids:
            break
        # A query may have deleted every checkpoint of the listing before one could be read.
    raise CheckpointError(f"{store.url} has no checkpoint", reason="not_found")


def keep_tag(store: ObjectStore, tag: Tag) -> None:
    """
    Check that a tag of an earlier call keeps its checkpoint; else delete the tag.

    That call may have ended before it checked whether the checkpoint is retained.

    Args:
        store: The store of the location.
        tag: The tag, with its path.

    Raises:
        CheckpointError: The checkpoint was deleted meanwhile (`reason` "subsumed", "not_found",
            "objects_missing").
        StoreError: The store failed.

    Blocks: On the store.
    """
    try:
        find_checkpoint(store, tag.checkpoint_id)
    except CheckpointError as error:
        if error.reason in ("subsumed", "not_found", "objects_missing"):
            delete_tag(store, tag)
        raise


def _asked_for(
    store: ObjectStore,
    checkpoint_id: int,
    ids: list[int],
    known: KnownEntries,
) -> tuple[StoredCheckpoint, tuple[int, ...]]:
    """Return the given checkpoint if it can be restored, and what it retains."""
    path = PATHS.metadata(checkpoint_id)
    try:
        stored = read_whole(store, checkpoint_id, known)
    except ObjectNotFoundError as error:
        reads = [partial(kept_checkpoint, store, one) for one in ids[-_NAMED:]]
        found_ids = [one.checkpoint_id for one in ask_at_once(store, reads) if one is not None]
        present = ", ".join(map(str, found_ids)) or "none"
        raise CheckpointError(
            f"checkpoint {checkpoint_id} does not exist in {store.url} (newest: {present})",
            reason="not_found",
            checkpoint_id=checkpoint_id,
            path=path,
        ) from error
    except CorruptionError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint_id} is damaged: {error}; restore another one",
            reason="damaged",
            usable_id=None,
            checkpoint_id=checkpoint_id,
            path=path,
        ) from error
    try:
        newest = find_newest(store, ids=ids, known=known).newest
    except (CheckpointError, IncompatibleFormatError):
        newest = None  # unreadable, which is the reason to restore an older one
    if newest is None:
        retained: tuple[int, ...] = ()
    elif checkpoint_id in newest.retained:
        retained = newest.retained
    else:
        retained = retained_ids(store, newest, ids)
    if newest is not None and checkpoint_id not in retained:
        raise CheckpointError(
            f"checkpoint {checkpoint_id} is no longer retained (retained: "
            f"{', '.join(map(str, retained))}); its objects may have been deleted; restore "
            "a retained one. A query keeps more of them with retainedCheckpoints, and `statelog tag` "
            "keeps one",
            reason="subsumed",
            checkpoint_id=checkpoint_id,
            path=path,
        )
    found = stored.checkpoint
    if missing := missing_objects(store, found):
        raise CheckpointError(
            f"checkpoint {checkpoint_id} cannot be restored: {len(missing)} of its objects do not "
            f"exist, first {missing[0]}; restore another one",
            reason="objects_missing",
            missing=missing,
            checkpoint_id=checkpoint_id,
            path=path,
        )
    if newest is not None:  # the others are subsumed, and may be deleted at any time
        return stored, tuple(one for one in found.retained if one in retained)
    return stored, _whole(store, found)


def _whole(store: ObjectStore, found: CompletedCheckpoint) -> tuple[int, ...]:
    """Return the checkpoints that *found* retains and whose objects all exist."""
    whole = []
    for checkpoint_id in found.retained[:-1]:
        try:
            older = read_checkpoint(store, checkpoint_id).checkpoint
        except (ObjectNotFoundError, CorruptionError, IncompatibleFormatError):
            continue
        if not missing_objects(store, older):
            whole.append(checkpoint_id)
    return (*whole, found.checkpoint_id)


def kept_checkpoint(store: ObjectStore, checkpoint_id: int) -> RetainedCheckpoint | None:
    """Return the ledger's view of a checkpoint; None if it does not exist."""
    try:
        checkpoint = read_checkpoint(store, checkpoint_id).checkpoint
    except ObjectNotFoundError:
        return None
    except (CorruptionError, IncompatibleFormatError):
        return RetainedCheckpoint(checkpoint_id, None)
    return RetainedCheckpoint(checkpoint_id, objects_of(checkpoint))


def _leftovers(ids: Sequence[int], retained: Sequence[RetainedCheckpoint]) -> tuple[int, ...]:
    """Return the newest of *ids* that no retained checkpoint needs: older ones, or late ones of 0.2."""
    needed = {path for each in retained for path in each.objects or ()}
    unneeded = [each for each in ids if PATHS.metadata(each) not in needed]
    return tuple(unneeded[-LEFTOVERS_MAX:])
