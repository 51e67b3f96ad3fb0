"""The versions of broadcast tables that a checkpoint names: which its micro-batch saw, and their rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from statelog.checkpoint.batch_record import BatchRecord, BroadcastEntry
from statelog.checkpoint.state_stream import check_stream
from statelog.errors import CheckpointError, CorruptionError, ObjectNotFoundError, UsageError
from statelog.format.arrow_data import read_stream_table
from statelog.format.buffers import Buffer
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.store import ObjectStore, read_verified


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastVersion:
    """
    The version of a broadcast table that a micro-batch saw.

    Args:
        checkpoint: The checkpoint of the micro-batch.
        name: The table.
        version: A digest of its content.
        since: The first checkpoint whose micro-batch saw this version.
        rows: Number of its rows.
        size_bytes: Bytes of its object.
    """

    checkpoint: int
    name: str
    version: str
    since: int
    rows: int
    size_bytes: int


def in_force(
    entries: Iterable[BroadcastEntry], checkpoint_id: int | None = None
) -> dict[str, BroadcastEntry]:
    """
    Return the version of each table that a micro-batch saw.

    Args:
        entries: The versions that a checkpoint names.
        checkpoint_id: The checkpoint of the micro-batch; None for the checkpoint with the entries.
    """
    versions: dict[str, BroadcastEntry] = {}
    for entry in sorted(entries, key=lambda each: each.checkpoint):
        if checkpoint_id is None or entry.checkpoint <= checkpoint_id:
            versions[entry.name] = entry
    return versions


def broadcast_versions(checkpoint: CompletedCheckpoint) -> tuple[BroadcastVersion, ...]:
    """Return the versions that the micro-batch of a checkpoint saw, by name."""
    entries = in_force(BatchRecord.of(checkpoint).broadcasts)
    return tuple(
        BroadcastVersion(
            checkpoint=checkpoint.checkpoint_id,
            name=name,
            version=entry.version,
            since=entry.checkpoint,
            rows=entry.rows,
            size_bytes=entry.size,
        )
        for name, entry in sorted(entries.items())
    )


def broadcast_table(store: ObjectStore, checkpoint: CompletedCheckpoint, name: str) -> pa.Table:
    """
    Return the rows of a broadcast table that the micro-batch of a checkpoint saw.

    Raises:
        UsageError: It saw no table of this name.
        CorruptionError: The object is damaged.
        CheckpointError: The query deleted it meanwhile (`reason` "subsumed").

    Blocks: On the store.
    """
    entries = in_force(BatchRecord.of(checkpoint).broadcasts)
    if name not in entries:
        names = ", ".join(sorted(entries)) or "none"
        raise UsageError(
            f"checkpoint {checkpoint.checkpoint_id} of {store.url} does not have the broadcast table "
            f"{name!r}; it has {names}"
        )
    return read_broadcast(store, entries[name])


def read_broadcast(store: ObjectStore, entry: BroadcastEntry) -> pa.Table:
    """
    Return the rows of a version.

    Raises:
        CorruptionError: The object is damaged.
        CheckpointError: It no longer exists (`reason` "subsumed").

    Blocks: On the store.
    """
    path = entry.path

    def decoded(data: memoryview) -> pa.Table:
        check_stream(entry.handle, data, f"broadcast table {path} in {store.url}")
        return decode_broadcast(data, path)

    try:
        return read_verified(store, path, decoded)
    except ObjectNotFoundError as error:
        raise CheckpointError(
            f"version {entry.version} of the broadcast table {entry.name} no longer exists in {store.url}: "
            f"{path}. It was deleted with the last checkpoint that named it",
            reason="subsumed",
        ) from error


def decode_broadcast(data: Buffer, path: str) -> pa.Table:
    """Return the rows in an object; raises `CorruptionError` if it cannot be read."""
    try:
        return read_stream_table(data)
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(
            f"the broadcast table {path} cannot be read: {error}", path=path
        ) from error
