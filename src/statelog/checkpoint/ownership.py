"""
Who may write: claims of a location, numbered by epoch.

A claim is the object `owner/<epoch>`, created by put-if-absent, so that one of several owners wins
each number; it is never deleted.  The owner of epoch e is fenced as soon as `owner/<e + 1>` exists.
Checking that is one request to the store, without a clock and without a lease.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from statelog.errors import (
    CheckpointError,
    ObjectNotFoundError,
    StatelogError,
    StoreError,
)
from statelog.format.bounds import decode_json
from statelog.runtime.clock import pause as pause_thread
from statelog.store import LocationPaths, ObjectStore
from statelog.store.conditional_put import put_or_find
from statelog.store.paths import parse_owner

_ATTEMPTS: Final = 1000


def newest_epoch(store: ObjectStore, paths: LocationPaths) -> int:
    """Return the newest claimed epoch, 0 if there is none."""
    epochs = (parse_owner(info.path) for info in store.list(paths.owners))
    return max((epoch for epoch in epochs if epoch is not None), default=0)


def new_owner_id(kind: str) -> str:
    """
    Return a name for an owner that no other owner has.

    Args:
        kind: What claims: "query", "rewind", ...  It comes first in the name; host and process
            follow, so that a person can find the owner.
    """
    return f"{kind}-{socket.gethostname()}-{os.getpid()}-{os.urandom(8).hex()}"


class _Claim(msgspec.Struct):
    """What is read of a claim; for messages alone."""

    owner_id: str = ""
    created_at_ms: int = 0


_claim_decoder: Final = msgspec.json.Decoder(_Claim)


def describe_claim(store: ObjectStore, paths: LocationPaths, epoch: int) -> str:
    """
    Return a claim as text for a message: its object, and its owner and time where they can be read.

    Raises nothing: the message that needs it reports another fault.

    Blocks: On the store.
    """
    path = paths.owner(epoch)
    try:
        claim = decode_json(store.get(path), _claim_decoder)
        moment = dt.datetime.fromtimestamp(claim.created_at_ms / 1000, dt.UTC)
    except (StatelogError, msgspec.MsgspecError, ValueError, OverflowError, OSError):
        return path
    return f"{path}, of {claim.owner_id!r} at {moment:%Y-%m-%d %H:%M:%S} UTC"


def describe_newest_claim(store: ObjectStore, paths: LocationPaths) -> str:
    """
    Return the newest claim as text for a message; see `describe_claim`.

    Blocks: On the store (a listing, a get).
    """
    try:
        epoch = newest_epoch(store, paths)
        return describe_claim(store, paths, epoch) if epoch else "missing"
    except StoreError as error:
        return f"unknown ({error})"


def claim_epoch(
    store: ObjectStore,
    paths: LocationPaths,
    owner_id: str,
    clock_ms: Callable[[], int],
    pause: Callable[[float], None] = pause_thread,
) -> int:
    """
    Take over the location and return the epoch of the claim.

    No epoch is skipped: an owner reads only the epoch after its own, so a number without a claim
    would not fence the owner before it.

    Args:
        store: The store of the location.
        paths: The location in the store.
        owner_id: Name of the owner, for information.
        clock_ms: Milliseconds since 1970, for information.
        pause: Waits so many seconds if the store answers "exists" and returns no claim.

    Raises:
        StoreError: The store failed, or answers that a claim exists and returns none.
        CheckpointError: Other owners claimed the location first, a thousand times in a row.

    Blocks: On the store.
    """
    nonce = os.urandom(16).hex()
    body = msgspec.json.encode(
        {"version": 1, "owner_id": owner_id, "attempt": nonce, "created_at_ms": clock_ms()}
    )
    epoch = newest_epoch(store, paths)
    for _ in range(_ATTEMPTS):
        epoch += 1
        path = paths.owner(epoch)
        # A lost answer looks like a conflict or a fault; the content of the claim names its owner.
        found = put_or_find(store, path, body, partial(store.get, path), pause)
        if found is None or found == body:
            return epoch
    raise CheckpointError(
        f"could not claim {store.url} in {_ATTEMPTS} attempts: other owners keep taking it over; "
        "is the job started more than once?",
        reason="contended",
    )


def is_taken_over(store: ObjectStore, paths: LocationPaths, epoch: int) -> bool:
    """
    Return whether a newer claim than *epoch* exists.

    Raises:
        StoreError: The store failed, so the answer is unknown.
    """
    try:
        store.head(paths.owner(epoch + 1))
    except ObjectNotFoundError:
        return False
    return True
