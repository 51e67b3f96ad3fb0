"""
The claim: an entry of the sequence that says who owns the location from here on.

The record has the place of a checkpoint record, the section `CKPT` of `chk-<number>/_metadata`, with
the kind `CLAIM_KIND` and this JSON.  The format is documented in
docs/reference/formats/checkpoint_metadata.md.
Source: our own; Flink elects a leader outside of the checkpoint storage.
"""

from __future__ import annotations

from typing import Final

import msgspec

from statelog.errors import UsageError
from statelog.format.bounds import ID_MAX, decode_json
from statelog.format.buffers import Buffer
from statelog.format.checkpoint_record import (
    CHECKPOINT_TAG,
    CLAIM_KIND,
    checkpoint_of,
    damaged_record,
    open_record,
    seal_record,
)
from statelog.format.segment import SegmentWriter
from statelog.model import CompletedCheckpoint
from statelog.model.checkpoint import is_history_name

CLAIM_BYTES_MAX: Final = 1024
"""A damaged entry that is larger was a checkpoint."""


class ClaimRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"owner_id": "owner", "next_number": "next", "location_id": "location"},
):
    """
    A claim.

    Args:
        number: The number of its entry.
        owner_id: Name of the owner.
        attempt: Random name of the attempt; distinguishes a lost answer from a lost race.
        location_id: The identity of the location: the name of the attempt of its first claim.
        timeline: The number of the timeline that the owner found, >= 0.
        created_at_ms: Milliseconds since 1970 (UTC).
        newest: The newest checkpoint below it, from which the owner continues; None without one.
        next_number: The number of the entry after it.  Only a fork and a copy leave numbers out.
    """

    number: int
    owner_id: str
    attempt: str
    created_at_ms: int
    next_number: int
    location_id: str
    timeline: int = 0
    newest: int | None = None


_decoder: Final = msgspec.json.Decoder(ClaimRecord)


def encode_claim(claim: ClaimRecord) -> bytes:
    """Return the object of a claim."""
    if claim.next_number > ID_MAX:
        raise UsageError(f"the highest number of an entry is {ID_MAX}")
    sections = {CHECKPOINT_TAG: seal_record(msgspec.json.encode(claim), CLAIM_KIND)}
    data = b"".join(SegmentWriter(compress=False).finish(sections))
    if len(data) > CLAIM_BYTES_MAX:
        raise UsageError(
            f"the claim of {claim.owner_id[:80]!r} has {len(data)} bytes, of at most {CLAIM_BYTES_MAX}: "
            "give the owner a shorter name"
        )
    return data


def decode_entry(body: Buffer, *, where: str = "") -> CompletedCheckpoint | ClaimRecord:
    """Read the body of the section `CKPT` of an entry."""
    opened = open_record(body, where=where)
    if opened.kind != CLAIM_KIND:
        return checkpoint_of(opened, where=where)
    try:
        claim = decode_json(opened.raw, _decoder)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise damaged_record(where, f"the claim cannot be read ({error})") from error
    newest = -1 if claim.newest is None else claim.newest
    if not -1 <= newest < claim.number < claim.next_number <= ID_MAX:
        raise damaged_record(where, "the numbers of the claim do not ascend")
    if not 0 <= claim.timeline <= claim.number:
        raise damaged_record(where, "the timeline of the claim is not one of its location")
    if not (is_history_name(claim.location_id) and is_history_name(claim.attempt)):
        raise damaged_record(where, "the name of its location or attempt is not hexadecimal")
    return claim
