"""
Find the checkpoint from which a restart continues.

A restart continues from the newest checkpoint, or from one given by its id.  Objects that only
older checkpoints reached may still be stored, if their owner died before the clean-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from statelog.checkpoint.history import (
    Entries,
    StoredCheckpoint,
    is_usable,
    may_be_claim,
    missing_objects,
    read_checkpoint,
    unusable,
)
from statelog.checkpoint.retained import Tag, delete_tag, read_pins, retained_ids
from statelog.core.checkpoint_ledger import RetainedCheckpoint
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
)
from statelog.format.checkpoint_record import ClaimRecord
from statelog.model import CheckpointPosition, CompletedCheckpoint
from statelog.model.checkpoint import Pin, pinned
from statelog.store import PATHS, ObjectStore, ask_at_once, ask_both

LEFTOVERS_MAX: Final = 64
"""
Entries that an owner looks at after its start.

More than the checkpoints that an owner leaves to be deleted.

Claims stay for ever, so without a bound each start would read all of them.  Older leftovers, of
owners that died one after the other, are deleted by `collect_garbage`.
"""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """
    The checkpoint from which to continue, and older checkpoints as the ledger sees them.

    Args:
        stored: The checkpoint to continue from; None for a location without any.
        retained: It and the older ones that can be restored, ascending.
        leftovers: The newest entries that are neither retained nor needed by a retained one:
            checkpoints whose owner ended before the clean-up, and claims; at most `LEFTOVERS_MAX`.
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
        """The checkpoint from which to continue, or None if the location does not have one."""
        return None if self.stored is None else self.stored.checkpoint


def find_restore_point(
    entries: Entries, checkpoint_id: int | None = None, *, pins: tuple[Pin, ...] | None = None
) -> RestorePoint:
    """
    Find the checkpoint from which to continue: the newest, or the requested one.

    It divides the entries of the location, which are numbers from old to new::

        leftovers   retained  BASE   given up           claims
        3 4         5 7       8      9 11               6 10 12

    Those that the base retains, or a pin holds, can still be restored.  Newer ones are given up
    with the first commit.  What is neither, nor needed by a retained one, is a leftover: its owner
    ended before the clean-up.  Claims are none of these, and stay.
    """
    store = entries.store
    _, pins_of_location = ask_both(
        store, lambda: entries.ids, lambda: read_pins(store) if pins is None else pins
    )
    # The base, and the ids that it, or the newest checkpoint, retains.
    if checkpoint_id is not None:
        stored, retained_by_base = _asked_for(entries, checkpoint_id)
    else:
        newest = entries.newest_stored()
        if newest is None:
            return RestorePoint(None, pins=pins_of_location)
        stored = newest
        retained_by_base = newest.checkpoint.retained
    base = stored.checkpoint
    # Read after the base: what was read of it tells claims from checkpoints without a request.
    ids = entries.ids
    claims = {number for number in ids if isinstance(entries.read_before(number), ClaimRecord)}
    checkpoints = [number for number in ids if number not in claims]
    # A reader's pin counts from the newest checkpoint, which a restore may give up.
    latest = max((base.checkpoint_id, *checkpoints))
    pinned_ids = pinned(pins_of_location, ids, latest)
    # Older ones that can be restored; one of them may have been deleted meanwhile.
    older_ids = sorted(
        {number for number in (*retained_by_base, *pinned_ids) if number < base.checkpoint_id}
    )
    older = ask_at_once(store, [partial(kept_checkpoint, store, number) for number in older_ids])
    base_in_ledger = RetainedCheckpoint(base.checkpoint_id, objects_of(base))
    retained = (*(checkpoint for checkpoint in older if checkpoint is not None), base_in_ledger)
    # Newer ones: none if the base is the newest, though a claim above it may name an older number.
    last_id = ids[-1] if checkpoint_id is None else checkpoint_id
    gives_up = [
        partial(_given_up, entries, number, number in pinned_ids)
        for number in checkpoints
        if number > last_id
    ]
    given_up = tuple(
        checkpoint for checkpoint in ask_at_once(store, gives_up) if checkpoint is not None
    )
    # The rest: with unread entries among them, which may be claims too.
    settled = claims | {checkpoint.checkpoint_id for checkpoint in given_up}
    unsettled = [number for number in ids if number not in settled]
    leftovers = _leftovers(unsettled, retained)
    return RestorePoint(stored, retained, leftovers, given_up, pins_of_location)


def _given_up(entries: Entries, checkpoint_id: int, is_pinned: bool) -> RetainedCheckpoint | None:
    """
    Return a newer checkpoint that a restore discards, as the ledger sees it, or None.

    Of one that cannot be read, and that no pin holds, only the metadata is deleted.
    """
    # Read already: no request.
    entry = entries.read_before(checkpoint_id)
    if isinstance(entry, StoredCheckpoint):
        return RetainedCheckpoint(checkpoint_id, objects_of(entry.checkpoint))
    checkpoint = kept_checkpoint(entries.store, checkpoint_id)
    if checkpoint is None or checkpoint.objects is not None or is_pinned:
        return checkpoint
    # A claim stays for ever, also if it cannot be read: deleting it would free its number.
    if may_be_claim(entries.store, checkpoint_id):
        return None
    return RetainedCheckpoint(checkpoint_id, (PATHS.metadata(checkpoint_id),))


def objects_of(checkpoint: CompletedCheckpoint) -> tuple[str, ...]:
    """Return all objects of a checkpoint; its own metadata comes last."""
    metadata = PATHS.metadata(checkpoint.checkpoint_id)
    return (*(path for path in checkpoint.referenced_paths() if path != metadata), metadata)


def check_key_groups(url: str, checkpoint: CompletedCheckpoint, max_parallelism: int) -> None:
    """Check that a checkpoint has as many key groups as the job."""
    if checkpoint.max_parallelism != max_parallelism:
        raise unusable(
            checkpoint.checkpoint_id,
            "max_parallelism",
            f"checkpoint {checkpoint.checkpoint_id} of {url} was taken with {checkpoint.max_parallelism} key "
            f"groups; a job with max_parallelism {max_parallelism} cannot read it, because keys would move "
            "between key groups. Use the number with which the job started",
        )


def find_checkpoint(store: ObjectStore, checkpoint_id: int | None = None) -> CompletedCheckpoint:
    """Return the newest checkpoint, or the requested one, to read its state."""
    entries = Entries(store)
    if checkpoint_id is not None:
        return _asked_for(entries, checkpoint_id)[0].checkpoint
    newest = entries.newest()
    if newest is None:
        raise CheckpointError(f"{store.url} does not contain a checkpoint", reason="not_found")
    return newest


def find_continuing(store: ObjectStore, position: CheckpointPosition) -> CompletedCheckpoint:
    """Return the newest checkpoint, which must continue from a checkpoint recorded elsewhere."""
    newest = find_checkpoint(store)
    check_continues(store, newest, position)
    return newest


def check_continues(
    store: ObjectStore, checkpoint: CompletedCheckpoint, position: CheckpointPosition
) -> None:
    """Check that a checkpoint continues from a checkpoint recorded outside the location."""
    if checkpoint.continues(position):
        return
    number = position.checkpoint_id
    if position.location_id != checkpoint.timeline.location_id:
        why = "the location was deleted and created again, or replaced by a copy"
    elif position.timeline != checkpoint.timeline.number:
        why = "the query was rewound to an earlier checkpoint"
    else:
        why = "the location was restored from a backup"
    raise unusable(
        number,
        "not_newer",
        f"checkpoint {checkpoint.checkpoint_id} of {store.url} does not continue checkpoint "
        f"{number}, which was read before ({position.to_text()}): {why}. "
        "Start again from the full state",
    )


def keep_tag(store: ObjectStore, tag: Tag) -> None:
    """
    Check that the tag from an earlier call still pins its checkpoint; otherwise delete it.

    That call may have ended before it checked whether the checkpoint is retained.
    """
    try:
        find_checkpoint(store, tag.checkpoint_id)
    except CheckpointError as error:
        if error.reason in ("subsumed", "not_found", "objects_missing"):
            delete_tag(store, tag)
        raise


def _asked_for(entries: Entries, checkpoint_id: int) -> tuple[StoredCheckpoint, tuple[int, ...]]:
    """Return the requested checkpoint, if it can be restored, and what it retains."""
    store = entries.store
    ids = entries.ids
    stored = entries.load(checkpoint_id)
    try:
        newest = entries.newest()
    except (CheckpointError, IncompatibleFormatError):
        newest = None  # unreadable, which is the reason to restore an older one
    retained: tuple[int, ...] = ()
    if newest is not None:
        retained = newest.retained
        if checkpoint_id not in retained:
            retained = retained_ids(store, newest, ids)
        if checkpoint_id not in retained:
            raise unusable(
                checkpoint_id,
                "subsumed",
                f"checkpoint {checkpoint_id} is no longer retained (retained: {', '.join(map(str, retained))}); its objects may "
                "have been deleted; restore a retained one. To keep more, raise "
                "retainedCheckpoints, or pin a checkpoint with `statelog tag`",
            )
    base = stored.checkpoint
    # An older checkpoint may have lost objects to a garbage collection, so look before it is used.
    if missing := missing_objects(store, base):
        raise unusable(
            checkpoint_id,
            "objects_missing",
            f"checkpoint {checkpoint_id} cannot be restored: {len(missing)} of its objects do not "
            f"exist, the first is {missing[0]}; restore a different checkpoint",
            missing=missing,
        )
    if newest is None:
        return stored, tuple(number for number in base.retained if is_usable(store, number))
    # The others are subsumed, and may be deleted at any time.
    return stored, tuple(number for number in base.retained if number in retained)


def kept_checkpoint(store: ObjectStore, checkpoint_id: int) -> RetainedCheckpoint | None:
    """Return a checkpoint as the ledger sees it, or None if it does not exist."""
    try:
        checkpoint = read_checkpoint(store, checkpoint_id).checkpoint
    except ObjectNotFoundError:
        return None
    except (CorruptionError, IncompatibleFormatError):
        return RetainedCheckpoint(checkpoint_id, None)
    return RetainedCheckpoint(checkpoint_id, objects_of(checkpoint))


def _leftovers(ids: Sequence[int], retained: Sequence[RetainedCheckpoint]) -> tuple[int, ...]:
    """Return the newest of *ids* that no retained checkpoint needs."""
    needed = {path for checkpoint in retained for path in checkpoint.objects or ()}
    unneeded = [number for number in ids if PATHS.metadata(number) not in needed]
    return tuple(unneeded[-LEFTOVERS_MAX:])
