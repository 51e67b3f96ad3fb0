"""
The commit of a checkpoint: one metadata object, created by put-if-absent.

Whether the object exists, and which owner wrote it, is found out here.  The coordinator decides what
follows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from statelog.checkpoint.history import Entry, read_entry
from statelog.checkpoint.ownership import describe_claim
from statelog.core.checkpoint_events import WriteMetadata
from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.format.checkpoint_metadata import CheckpointRecord, MetadataFile, write_metadata
from statelog.format.claim_record import ClaimRecord
from statelog.model import CompletedCheckpoint, Json
from statelog.store import PATHS, ObjectStore
from statelog.store.conditional_put import put_or_find


@dataclass(frozen=True, slots=True)
class CommitAuthor:
    """
    The owner of a commit, and the time.

    Args:
        owner_id: Name of the owner.
        epoch: Number of its claim, >= 0.
        max_parallelism: Number of key groups of the job.
        created_at_ms: Milliseconds since 1970 (UTC).
    """

    owner_id: str
    epoch: int
    max_parallelism: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class CommitConflict:
    """
    The number of a commit is taken, by another owner.

    Args:
        reason: What was found.
        cause: The error of a read that failed, or None.
    """

    reason: str
    cause: Exception | None = None


def prepare_commit(
    plan: WriteMetadata,
    author: CommitAuthor,
    path: str,
    *,
    properties: Mapping[str, Json],
    sections: Mapping[bytes, bytes],
    compress: bool,
) -> MetadataFile:
    """
    Build the metadata object of a checkpoint.

    Args:
        plan: The parts of the checkpoint.
        author: Its owner.
        path: Name of the object.
        properties: What the engine stores with it, in JSON.
        sections: Opaque bytes by four-byte tag.
        compress: Snappy-frame the change sets.

    Raises:
        UsageError: A property is not JSON, or a tag is reserved.
    """
    checkpoint = CompletedCheckpoint(
        checkpoint_id=plan.checkpoint_id,
        parent_id=plan.parent_id,
        created_at_ms=author.created_at_ms,
        epoch=author.epoch,
        owner_id=author.owner_id,
        max_parallelism=author.max_parallelism,
        materialized=plan.materialized,
        log=plan.log,
        retained=plan.retained,
        properties=dict(properties),
    )
    record = CheckpointRecord(checkpoint, os.urandom(8).hex())
    return write_metadata(record, path, compress=compress, sections=sections)


def put_commit(
    store: ObjectStore,
    prepared: MetadataFile,
    pause: Callable[[float], None],
) -> CommitConflict | None:
    """
    Put the metadata object; None if it exists and this owner wrote it.

    Raises:
        StoreError: The store failed; the object may exist or not.

    Blocks: On the store.
    """
    own = prepared.record.checkpoint
    path = PATHS.metadata(own.checkpoint_id)
    # A lost answer looks like a fault, or (repeated by the client) like a conflict.
    try:
        found = put_or_find(
            store,
            path,
            prepared.buffers,
            lambda: read_entry(store, own.checkpoint_id),
            pause,
        )
    except (CorruptionError, IncompatibleFormatError) as unreadable:
        reason = f"{path} exists and this owner did not write it: {unreadable}"
        return CommitConflict(reason, unreadable)
    return None if found is None else _conflict(found, prepared.record)


def _conflict(found: Entry, own: CheckpointRecord) -> CommitConflict | None:
    """Return the conflict of a commit with the entry under its number; None if it is the same."""
    if isinstance(found, ClaimRecord):
        return CommitConflict(f"another owner has the location: {describe_claim(found)}")
    if found.record.attempt == own.attempt and found.checkpoint.owner_id == own.checkpoint.owner_id:
        return None
    other, mine = found.checkpoint, own.checkpoint
    return CommitConflict(
        f"checkpoint {mine.checkpoint_id} was committed by {other.owner_id!r} in epoch "
        f"{other.epoch} (attempt {found.record.attempt}), not by {mine.owner_id!r} in epoch "
        f"{mine.epoch} (attempt {own.attempt})"
    )
