"""Provide a micro-batch's broadcast tables to a worker, and cache the newest versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from statelog.checkpoint.attachments import Attachment
from statelog.errors import InvariantError
from statelog.extensions.broadcasts.stored import read_broadcast, stored_version
from statelog.extensions.broadcasts.tables import BroadcastTable, BroadcastTables, broadcast_in
from statelog.spark.worker.extension import TaskExtension, TaskTools
from statelog.store import ObjectStore

_KEPT: Final = 16
"""Maximum number of versions that a worker caches."""

_lock: Final = threading.Lock()
_versions: Final[dict[tuple[str, str, int | None], BroadcastTable]] = {}
"""By location, object and checksum; the last one used is at the end."""


def broadcast_tables(
    store: ObjectStore, entries: Sequence[Attachment]
) -> dict[str, BroadcastTable]:
    """Return the broadcast tables of a micro-batch."""
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


class TaskBroadcasts(TaskExtension):
    """The broadcast tables of a task."""

    def __init__(self, part: object | None, tools: TaskTools | None) -> None:
        self._tables = _tables_of(part, tools)

    def calls(self) -> Mapping[str, Callable[..., object]]:
        """Return the method `broadcast`."""
        return {"broadcast": self._broadcast}

    def _broadcast(self, name: str) -> BroadcastTable:
        """Return the broadcast table *name* in the version of the micro-batch."""
        return broadcast_in(self._tables, name)


def _tables_of(part: object | None, tools: TaskTools | None) -> BroadcastTables:
    if part is None:
        return {}
    if isinstance(part, Mapping):
        return part
    if isinstance(part, tuple) and tools is not None:
        return broadcast_tables(tools.store, part)
    raise InvariantError(f"the broadcast tables of a task were sent as a {type(part).__name__}")
