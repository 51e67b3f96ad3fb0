"""
Claims, which decide who is allowed to write: entries in the sequence of checkpoints.

A new owner puts its claim under the first free number, so that the owner before it finds the claim
at exactly the number that it wants.  A claim is never deleted.  There is no clock and no lease.
The proof is in docs/contributing/protocol.md.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from statelog.checkpoint.history import Entries, Entry, exists, present_ids, read_entry
from statelog.checkpoint.retained import read_pins
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    StatelogError,
)
from statelog.format.checkpoint_record import ClaimRecord, encode_claim
from statelog.model.checkpoint import Pin
from statelog.runtime.clock import pause as pause_thread
from statelog.runtime.clock import utc_time
from statelog.store import PATHS, ObjectStore, ask_both
from statelog.store.verified import put_or_find

_ATTEMPTS: Final = 1000


def new_owner_id(kind: str) -> str:
    """Return a unique name for a new owner."""
    return f"{kind}-{socket.gethostname()}-{os.getpid()}-{os.urandom(8).hex()}"


def describe_claim(claim: ClaimRecord) -> str:
    """Describe a claim for use in a message: its object, its owner and its time."""
    return (
        f"{PATHS.metadata(claim.number)}, claimed by {claim.owner_id!r}{time_text(claim, ' at ')}"
    )


def time_text(claim: ClaimRecord, before: str) -> str:
    """
    Return the time of a claim as text, preceded by *before*.

    "" if no calendar has the time, though the claim counts.
    """
    moment = utc_time(claim.created_at_ms)
    return "" if moment is None else f"{before}{moment:%Y-%m-%d %H:%M:%S} UTC"


def describe_newest_claim(store: ObjectStore) -> str:
    """
    Describe the newest claim for use in a message; see `describe_claim`.

    Raises nothing: the message that needs it reports another fault.
    """
    try:
        for number in reversed(present_ids(store)):
            entry = read_entry(store, number)
            if isinstance(entry, ClaimRecord):
                return describe_claim(entry)
    except StatelogError as error:
        return f"unknown ({error})"
    return "missing"


def claim_location(
    entries: Entries,
    owner_id: str,
    clock_ms: Callable[[], int],
    pause: Callable[[float], None] = pause_thread,
    *,
    verify: Callable[[], None] = lambda: None,
) -> tuple[ClaimRecord, tuple[Pin, ...]]:
    """
    Claim the location for a new owner.

    Returns:
        The claim, and the pins of the location, read after it.
    """
    store = entries.store
    attempt = os.urandom(8).hex()
    # Verified before the first put: without put-if-absent no claim means anything.
    ask_both(store, entries.list_again, verify)
    for _ in range(_ATTEMPTS):
        # 1. Find the first free number, and the history that it continues.
        _, lowest = ask_both(store, entries.top, entries.lowest)
        number = entries.next_number
        location_id, timeline = _history(entries, number, attempt)
        if lowest is not None and entries.copy_id is None:
            _check_location(entries, lowest, location_id)
        claim = ClaimRecord(
            number=number,
            owner_id=owner_id,
            attempt=attempt,
            created_at_ms=clock_ms(),
            newest=entries.newest_id(),
            next_number=number + 1,
            location_id=location_id,
            timeline=timeline,
        )
        # 2. Put the claim.  If another entry has the number, look again.
        if put_claim(store, claim, pause):
            # 3. Only a claim above all entries fences the owner before.
            pins = _pins_if_last(entries, claim)
            if pins is not None:
                entries.end_with(claim)
                return claim, pins
        entries.list_again()
    raise CheckpointError(
        f"could not claim {store.url} in {_ATTEMPTS} attempts: other owners keep taking it over; "
        "has the job been started more than once?",
        reason="contended",
    )


def _history(entries: Entries, number: int, attempt: str) -> tuple[str, int]:
    """
    Return the identity of the location, and the timeline of its newest entry.

    The first claim makes the identity.  The first claim of a copy begins a timeline: the location
    that it was copied from may go on too.
    """
    top = entries.top()
    if isinstance(top, CorruptionError):
        top = entries.newest_readable()
    # An empty location gets its identity from the attempt, which no other claim has.
    location_id, timeline = (attempt, number) if top is None else _history_of(top)
    if entries.copy_id not in (None, location_id):
        return entries.copy_id, number
    return location_id, timeline


def _history_of(entry: Entry) -> tuple[str, int]:
    """Return the location and the timeline that an entry records."""
    if isinstance(entry, ClaimRecord):
        return entry.location_id, entry.timeline
    return entry.checkpoint.timeline.location_id, entry.checkpoint.timeline.number


def _check_location(entries: Entries, lowest: Entry, location_id: str) -> None:
    """
    Check that the newest entry belongs to this location.

    A driver of a location that was deleted, and made again at the same place, may still run: its
    next number may be free in the new one.
    """
    own_id, _ = _history_of(lowest)
    if location_id == own_id:
        return
    number = entries.ids[-1]
    path = PATHS.metadata(number)
    raise CheckpointError(
        f"{path} of {entries.store.url} was written for a different location, {location_id}, which "
        f"was at this path before; this location is {own_id}. Stop the driver that wrote it, delete "
        f"{path}, and start again",
        reason="foreign_state",
        checkpoint_id=number,
        path=path,
    )


def _pins_if_last(entries: Entries, claim: ClaimRecord) -> tuple[Pin, ...] | None:
    """
    Return the location's pins; None if a claim did not get the first free number.

    Deletions leave gaps.  A claim in a gap fences no owner; there is a higher entry then.  But the
    entry that a listing has may be deleted before the question about it: an owner that was not
    fenced has committed a higher one.  So only a listing without new numbers shows that there is
    none.
    """
    store = entries.store
    (_, pins), _ = ask_both(
        store,
        lambda: ask_both(store, entries.list_again, lambda: read_pins(store)),
        lambda: _read_newest(entries, claim),
    )
    asked: set[int] = set()
    while above := [number for number in entries.ids if number > claim.number]:
        # Ascending, because that is the order of commits.
        if any(exists(store, PATHS.metadata(number)) for number in above):
            return None
        if asked.issuperset(above):  # folders on local disk that stayed without an entry
            break
        asked = set(above)
        entries.list_again()
    return pins


def _read_newest(entries: Entries, claim: ClaimRecord) -> None:
    """Read the checkpoint that a restore will need; errors are left for the restore to report."""
    if claim.newest is not None:
        with suppress(ObjectNotFoundError, CorruptionError, IncompatibleFormatError):
            entries.read(claim.newest)


def put_claim(
    store: ObjectStore,
    claim: ClaimRecord,
    pause: Callable[[float], None] = pause_thread,
) -> bool:
    """
    Write a claim under a number that was free when it was listed.

    Returns:
        Whether it has its number; False if another entry has it.
    """

    def found() -> Entry | None:
        try:
            return read_entry(store, claim.number)
        except (CorruptionError, IncompatibleFormatError):
            return None  # the entry of another

    path = PATHS.metadata(claim.number)
    taken = object()
    answer = put_or_find(store, path, encode_claim(claim), lambda: found() or taken, pause)
    # A lost answer looks like a conflict or a fault; the content of the claim names its owner.
    return answer is None or (isinstance(answer, ClaimRecord) and answer.attempt == claim.attempt)
