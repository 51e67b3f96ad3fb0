"""
The versions of broadcast tables that a checkpoint references.

Which its micro-batch saw, and their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from statelog.checkpoint.attachments import Attachment, in_force, of_kinds, read_attachment
from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import CorruptionError, UsageError
from statelog.format.arrow_data import read_stream_table
from statelog.format.buffers import Buffer
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.store import ObjectStore

BROADCAST: Final = "broadcast"
"""
The kind of the attachments.

`newest` of one is the first checkpoint whose micro-batch saw the version.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastVersion:
    """
    The version of a broadcast table that a micro-batch read.

    Args:
        checkpoint_id: The checkpoint of the micro-batch.
        name: The table.
        version: A digest of its content.
        since: The first checkpoint whose micro-batch saw this version.
        rows: Number of its rows.
        size_bytes: Bytes of its object.
    """

    checkpoint_id: int
    name: str
    version: str
    since: int
    rows: int
    size_bytes: int


def stored_version(entry: Attachment) -> str:
    """Return the digest of a version's content."""
    return str(entry.info.get("version", ""))


def _seen(checkpoint: CompletedCheckpoint) -> dict[str, Attachment]:
    """Return the version of each table that a checkpoint's micro-batch read."""
    return in_force(of_kinds(BatchRecord.of(checkpoint).attachments, BROADCAST))


def broadcast_versions(checkpoint: CompletedCheckpoint) -> tuple[BroadcastVersion, ...]:
    """Return the versions that a checkpoint's micro-batch read, by name."""
    entries = _seen(checkpoint)
    return tuple(
        BroadcastVersion(
            checkpoint_id=checkpoint.checkpoint_id,
            name=name,
            version=stored_version(entry),
            since=entry.newest,
            rows=entry.count,
            size_bytes=entry.size,
        )
        for name, entry in sorted(entries.items())
    )


def broadcast_table(store: ObjectStore, checkpoint: CompletedCheckpoint, name: str) -> pa.Table:
    """Return the rows of a broadcast table that a checkpoint's micro-batch read."""
    entries = _seen(checkpoint)
    if name not in entries:
        names = ", ".join(sorted(entries)) or "none"
        raise UsageError(
            f"checkpoint {checkpoint.checkpoint_id} of {store.url} does not have the broadcast table "
            f"{name!r}; its broadcast tables are {names}"
        )
    return read_broadcast(store, entries[name])


def read_broadcast(store: ObjectStore, entry: Attachment) -> pa.Table:
    """Return the rows in one version of a table."""
    return read_attachment(
        store,
        entry,
        lambda data: decode_broadcast(data, entry.path),
        f"broadcast table {entry.name}",
    )


def decode_broadcast(data: Buffer, path: str) -> pa.Table:
    """Decode the rows in an object; raise `CorruptionError` if that fails."""
    try:
        return read_stream_table(data)
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(
            f"the broadcast table {path} cannot be read: {error}", path=path
        ) from error
