"""
The commit of a checkpoint: one metadata object, created by put-if-absent.

Whether the object exists, and which owner wrote it, is found out here.  The coordinator decides what
follows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from statelog.checkpoint.history import StoredCheckpoint, read_entry
from statelog.checkpoint.ownership import describe_claim
from statelog.errors import CorruptionError, FencedError, IncompatibleFormatError
from statelog.format.checkpoint_metadata import CheckpointRecord, MetadataFile, write_metadata
from statelog.format.claim_record import ClaimRecord
from statelog.model import CompletedCheckpoint
from statelog.store import PATHS, ObjectStore
from statelog.store.conditional_put import put_or_find


def prepare_commit(
    checkpoint: CompletedCheckpoint, sections: Mapping[bytes, bytes], *, compress: bool
) -> MetadataFile:
    """
    Build the metadata object of a checkpoint.

    Args:
        checkpoint: The checkpoint; its properties are JSON.
        sections: Opaque bytes by four-byte tag.
        compress: Snappy-frame the change sets.

    Raises:
        UsageError: A property is not JSON, or a tag is reserved.
    """
    record = CheckpointRecord(checkpoint, os.urandom(8).hex())
    path = PATHS.metadata(checkpoint.checkpoint_id)
    return write_metadata(record, path, compress=compress, sections=sections)


def put_commit(store: ObjectStore, prepared: MetadataFile, pause: Callable[[float], None]) -> None:
    """
    Put the metadata object of a checkpoint; it exists afterwards, and this owner wrote it.

    Raises:
        FencedError: Another owner's entry has the number.
        StoreError: The store failed; the object may exist or not.

    Blocks: On the store.
    """
    record, mine = prepared.record, prepared.record.checkpoint
    path = PATHS.metadata(mine.checkpoint_id)
    # A lost answer looks like a fault, or (repeated by the client) like a conflict.
    try:
        entry = put_or_find(
            store, path, prepared.buffers, lambda: read_entry(store, mine.checkpoint_id), pause
        )
    except (CorruptionError, IncompatibleFormatError) as error:
        raise FencedError(f"{path} exists and this owner did not write it: {error}") from error
    if isinstance(entry, ClaimRecord):
        raise FencedError(f"another owner has the location: {describe_claim(entry)}")
    if isinstance(entry, StoredCheckpoint) and entry.record.attempt != record.attempt:
        other = entry.checkpoint
        raise FencedError(
            f"checkpoint {mine.checkpoint_id} was committed by {other.owner_id!r} in epoch "
            f"{other.epoch} (attempt {entry.record.attempt}), not by {mine.owner_id!r} in epoch "
            f"{mine.epoch} (attempt {record.attempt})"
        )
