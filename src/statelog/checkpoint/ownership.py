"""
Who may write: claims, which are entries of the sequence of checkpoints.

A new owner puts its claim under the first free number, so that the owner before it finds the claim at
exactly the number that it wants.  A claim is never deleted.  There is no clock and no lease.  The proof is
in docs/contributing/protocol.md.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from statelog.checkpoint.first_edition import fence_drivers
from statelog.checkpoint.history import (
    Entry,
    KnownEntries,
    exists,
    find_newest,
    present_ids,
    read_entry,
    read_top,
    read_whole_entry,
)
from statelog.checkpoint.tags import read_pins
from statelog.core.pins import Pin
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    StatelogError,
)
from statelog.format.claim_record import ClaimRecord, encode_claim
from statelog.runtime.clock import pause as pause_thread
from statelog.store import PATHS, ObjectStore, ask_both
from statelog.store.conditional_put import put_or_find

_ATTEMPTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Top:
    """
    The end of the sequence.

    Args:
        number: The highest entry, -1 if there is none.
        newest: The newest checkpoint; None if there is none.  It may be damaged.
        next_number: The first free number.
        is_taken_over: Whether drivers of statelog 0.2 cannot write here any more.
    """

    number: int = -1
    newest: int | None = None
    next_number: int = 0
    is_taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """
    The place of an owner.

    Args:
        claim: Its claim.
        ids: The numbers of the entries, ascending, listed after the claim, which is the last one.
        pins: The pins of the location, read after the claim.
    """

    claim: ClaimRecord
    ids: tuple[int, ...]
    pins: tuple[Pin, ...]


def find_top(store: ObjectStore, ids: list[int], known: KnownEntries | None = None) -> Top:
    """
    Return the end of the sequence; a damaged newest checkpoint is no error.

    Args:
        store: The store of the location.
        ids: Result of `present_ids`.
        known: As for `read_whole_entry`.

    Raises:
        CheckpointError: Two editions write to the location (`reason` "two_editions").
        IncompatibleFormatError: A newer statelog wrote the highest entry.
        StoreError: The store failed.

    Blocks: On the store.
    """
    top, ids = read_top(store, ids, known)
    if top is None:
        return Top()
    number = ids[-1]
    if isinstance(top, CorruptionError):
        return Top(number, number, number + 1)
    if isinstance(top, ClaimRecord):
        return Top(number, top.newest, top.next_number, is_taken_over=True)
    if not top.is_of_first_edition:
        return Top(number, number, number + 1, is_taken_over=True)
    return Top(number, _newest_of_first_edition(store, ids, known), number + 1)


def _newest_of_first_edition(
    store: ObjectStore, ids: list[int], known: KnownEntries | None
) -> int | None:
    try:
        newest = find_newest(store, ids=ids, known=known).newest
    except CheckpointError as error:
        damaged = error.facts.get("checkpoint_id")
        if error.reason != "damaged" or not isinstance(damaged, int):
            raise
        return damaged
    return None if newest is None else newest.checkpoint_id


def new_owner_id(kind: str) -> str:
    """
    Return a name for an owner that no other owner has.

    Args:
        kind: What claims: "query", "rewind", ...  It comes first in the name; host and process
            follow, so that a person can find the owner.
    """
    return f"{kind}-{socket.gethostname()}-{os.getpid()}-{os.urandom(8).hex()}"


def describe_claim(claim: ClaimRecord) -> str:
    """Return a claim as text for a message: its object, its owner and its time."""
    return (
        f"{PATHS.metadata(claim.number)}, claimed by {claim.owner_id!r}{time_text(claim, ' at ')}"
    )


def time_text(claim: ClaimRecord, before: str) -> str:
    """Return *before* and the time of a claim; "" if no calendar has the time, though the claim counts."""
    try:
        moment = dt.datetime.fromtimestamp(claim.created_at_ms / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{before}{moment:%Y-%m-%d %H:%M:%S} UTC"


def describe_newest_claim(store: ObjectStore) -> str:
    """
    Return the newest claim as text for a message; see `describe_claim`.

    Raises nothing: the message that needs it reports another fault.

    Blocks: On the store (a listing, and the newest entries).
    """
    try:
        for number in reversed(present_ids(store)):
            entry = read_entry(store, number)
            if isinstance(entry, ClaimRecord):
                return describe_claim(entry)
    except StatelogError as error:
        return f"unknown ({error})"
    return "missing"


def claim_place(
    store: ObjectStore,
    owner_id: str,
    clock_ms: Callable[[], int],
    pause: Callable[[float], None] = pause_thread,
    *,
    known: KnownEntries | None = None,
    verify: Callable[[], None] = lambda: None,
) -> Place:
    """
    Take over the location.

    Args:
        store: The store of the location.
        owner_id: Name of the owner, for information.
        clock_ms: Milliseconds since 1970, for information.
        pause: Waits so many seconds if the store answers "exists" and returns no claim.
        known: As for `read_whole_entry`; gets the claim, and the newest checkpoint if it can be read.
        verify: Called before the first put, at the same time as other requests; raises if the location
            must not be claimed.

    Raises:
        StoreError: The store failed, or answers that an entry exists and returns none.
        CheckpointError: Other owners claimed the location first, a thousand times in a row (`reason`
            "contended").  Or two editions write to it ("two_editions").
        IncompatibleFormatError: A newer statelog wrote the highest entry.

    Blocks: On the store: four round trips (a listing, the highest entry, the put, a listing).
    """
    known = {} if known is None else known
    attempt, fenced = os.urandom(8).hex(), -1
    listed, _ = ask_both(store, lambda: present_ids(store), verify)
    for _ in range(_ATTEMPTS):
        top = find_top(store, listed, known)
        if not top.is_taken_over and fenced < 0:
            fenced = fence_drivers(store, owner_id, clock_ms, pause)
            if fenced:  # one of them may have committed before
                listed = present_ids(store)
                continue
        claim = ClaimRecord(
            number=top.next_number,
            owner_id=owner_id,
            attempt=attempt,
            created_at_ms=clock_ms(),
            newest=top.newest,
            next_number=top.next_number + 1,
            fenced=max(0, fenced),
        )
        if put_claim(store, claim, pause):
            known[claim.number] = claim
            place = _place(store, claim, known)
            if place is not None:
                return place
        listed = present_ids(store)
    raise CheckpointError(
        f"could not claim {store.url} in {_ATTEMPTS} attempts: other owners keep taking it over; "
        "is the job started more than once?",
        reason="contended",
    )


def _place(store: ObjectStore, claim: ClaimRecord, known: KnownEntries) -> Place | None:
    """
    Return the place of a claim; None if its number was not the first free one.

    Deletions leave gaps.  A claim in a gap fences no owner; there is a higher entry then.  But the entry
    that a listing has may be deleted before the question about it: an owner that was not fenced has
    committed a higher one.  So only a listing without new numbers shows that there is none.
    """
    (ids, pins), _ = ask_both(
        store,
        lambda: ask_both(store, lambda: present_ids(store), lambda: read_pins(store)),
        lambda: _read_newest(store, claim, known),
    )
    asked: set[int] = set()
    while above := [one for one in ids if one > claim.number]:
        # Ascending, because that is the order of commits.
        if any(exists(store, PATHS.metadata(one)) for one in above):
            return None
        if asked.issuperset(above):  # folders on local disk that stayed without an entry
            break
        asked = set(above)
        ids = present_ids(store)
    return Place(claim, tuple(one for one in ids if one <= claim.number), pins)


def _read_newest(store: ObjectStore, claim: ClaimRecord, known: KnownEntries) -> None:
    """Read the checkpoint that a restore will need; what is wrong with it, the restore reports."""
    if claim.newest is not None:
        with suppress(ObjectNotFoundError, CorruptionError, IncompatibleFormatError):
            read_whole_entry(store, claim.newest, known)


def put_claim(
    store: ObjectStore,
    claim: ClaimRecord,
    pause: Callable[[float], None] = pause_thread,
) -> bool:
    """
    Put a claim under a number that was free.

    Args:
        store: The store of the location.
        claim: The claim.
        pause: Waits so many seconds if the store answers "exists" and returns no entry.

    Returns:
        Whether it has its number; False if another entry has it.

    Raises:
        StoreError: The store failed.

    Blocks: On the store.
    """

    def found() -> Entry | None:
        try:
            return read_entry(store, claim.number)
        except (CorruptionError, IncompatibleFormatError):
            return None  # the entry of another

    path, taken = PATHS.metadata(claim.number), object()
    answer = put_or_find(store, path, encode_claim(claim), lambda: found() or taken, pause)
    # A lost answer looks like a conflict or a fault; the content of the claim names its owner.
    return answer is None or (isinstance(answer, ClaimRecord) and answer.attempt == claim.attempt)
