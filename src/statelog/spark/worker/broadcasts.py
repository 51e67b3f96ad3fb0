"""The broadcast tables of a micro-batch in a worker, which keeps the newest versions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from statelog.checkpoint.attachments import Attachment
from statelog.spark.query.broadcast import BroadcastTable
from statelog.spark.worker.protocol import TaskSpec, part_of
from statelog.state.reader.broadcasts import read_broadcast, stored_version
from statelog.store import ObjectStore

BROADCASTS: Final = "broadcasts"
"""The name under which a task gets the versions of broadcast tables."""
_KEPT: Final = 16
"""Most versions that a worker keeps."""

_lock: Final = threading.Lock()
_versions: Final[dict[tuple[str, str, int | None], BroadcastTable]] = {}
"""By location, object and checksum; the last one used is at the end."""


def broadcasts_of(spec: TaskSpec) -> tuple[Attachment, ...]:
    """Return the versions of broadcast tables that a task sees."""
    return part_of(spec.extras, BROADCASTS, tuple) or ()


def broadcast_tables(
    store: ObjectStore, entries: Sequence[Attachment]
) -> dict[str, BroadcastTable]:
    """
    Return the broadcast tables of a micro-batch.

    Raises:
        CorruptionError: An object is damaged.
        CheckpointError: It no longer exists.
        StoreError: The store failed.

    Blocks: On the store, for a version that the worker has not read.
    """
    tables: dict[str, BroadcastTable] = {}
    for entry in entries:
        key = (store.url, entry.path, entry.crc)
        with _lock:
            table = _versions.pop(key, None)
        if table is None:
            table = BroadcastTable(read_broadcast(store, entry), stored_version(entry))
        with _lock:
            _versions[key] = table
            while len(_versions) > _KEPT:
                del _versions[next(iter(_versions))]
        tables[entry.name] = table
    return tables
