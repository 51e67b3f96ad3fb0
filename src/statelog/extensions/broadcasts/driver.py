"""
Choose which versions of broadcast tables a micro-batch reads, and store new ones first.

The object of a new version is named after the micro-batch that sees it first, and after the
checkpoint that the micro-batch continues.  So a micro-batch that a restart repeats finds the
version that it saw: the object of its name, else the version of the checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pyspark.sql.types import StructType

from statelog.checkpoint.attachments import Attachment, in_force, of_kinds
from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import ObjectNotFoundError
from statelog.extensions.broadcasts.stored import BROADCAST, decode_broadcast, stored_version
from statelog.extensions.broadcasts.tables import (
    Broadcast,
    BroadcastTable,
    BroadcastTables,
    Repeated,
    read_source,
    sources_of,
    unknown_broadcast,
    version_of,
)
from statelog.extensions.recordings.format import DEAD_LETTERS, RECORDING
from statelog.format.arrow_data import write_stream
from statelog.format.buffers import checksum
from statelog.runtime.clock import RandomIds, pause, wall_clock_ms
from statelog.spark.driver.extension import Answers, BatchStart, DriverContext, DriverExtension
from statelog.spark.query.settings import QuerySettings
from statelog.spark.query.state_variables import SchemaLike, Unusable
from statelog.store import PATHS, ObjectStore, read_verified
from statelog.store.verified import put_or_find

_log = logging.getLogger("statelog.spark")
_NO_CHECKPOINT: Final = "none"


class Broadcasts(DriverExtension):
    """The broadcast tables of a query."""

    name = "broadcasts"

    def __init__(self, context: DriverContext) -> None:
        settings = context.query.settings
        # It takes requests, so a query without such tables does not ask for it.
        repeated = context.repeated() if sources_of(settings) else None
        self._versions = BroadcastVersions(settings, context.store, repeated)
        self._chosen: tuple[Attachment, ...] = ()

    def begin(self, start: BatchStart) -> None:
        """
        Choose the versions that a micro-batch reads.

        For errors see `BroadcastVersions.choose`.
        """
        self._chosen = self._versions.choose(
            start.batch_id, start.base_id, start.record, start.checkpoint_id
        )

    def task_part(self, operator: int, tasks: int) -> tuple[Attachment, ...] | None:
        """Return the versions that the tasks read."""
        return self._chosen or None

    def attachments(
        self, start: BatchStart, answers: Answers, attached: Sequence[Attachment], now_ms: int
    ) -> Sequence[Attachment]:
        """Return the versions that the micro-batch or a retained recording references."""
        before = of_kinds(start.attachments, BROADCAST)
        return kept_broadcasts(before, self._chosen, of_kinds(attached, RECORDING, DEAD_LETTERS))


class BroadcastVersions:
    """
    The broadcast tables of one run of a query.

    Thread: Spark's thread of the query.
    """

    def __init__(
        self,
        settings: QuerySettings,
        store: ObjectStore,
        repeated: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources_of(settings)
        self._store = store
        self._repeated = repeated
        self._clock = clock
        self._tables: dict[str, BroadcastTable] = {}
        self._read_s: dict[str, float] = {}

    def choose(
        self, batch_id: int, base_id: int | None, record: BatchRecord | None, checkpoint_id: int
    ) -> tuple[Attachment, ...]:
        """Choose the version of each table for a micro-batch, storing new versions."""
        current = {} if record is None else in_force(of_kinds(record.attachments, BROADCAST))
        base = _NO_CHECKPOINT if base_id is None else base_id
        chosen: list[Attachment] = []
        for name, source in self._sources.items():
            path = PATHS.broadcast(f"{name}-{base}-{batch_id}")
            entry = current.get(name)
            if batch_id == self._repeated and source.on_repeat is Repeated.SAME:
                entry = self._stored(name, path, checkpoint_id) or entry
                if entry is not None:
                    _log.info(
                        "Spark repeats batch %d with version %s of %s",
                        batch_id,
                        stored_version(entry),
                        name,
                    )
                    chosen.append(entry)
                    continue
            table = self._newest(name, source)
            if entry is None or stored_version(entry) != table.version:
                if source.on_repeat is Repeated.NEWEST:
                    path += f"-{RandomIds().new_id()}"
                entry = self._put(name, path, table, checkpoint_id)
            chosen.append(entry)
        return tuple(chosen)

    def _newest(self, name: str, source: Broadcast) -> BroadcastTable:
        """Return the table from a source, reading the source again if that is due."""
        now = self._clock()
        before = self._tables.get(name)
        if before is not None and now < self._read_s[name] + source.interval_s:
            return before
        table = read_source(name, source)
        self._read_s[name] = now
        if before is not None and before.table.equals(table.table):
            return before
        self._tables[name] = table
        return table

    def _stored(self, name: str, path: str, checkpoint_id: int) -> Attachment | None:
        """Return the version that an earlier attempt at the micro-batch stored, or None."""
        try:
            data = self._store.get(path)
        except ObjectNotFoundError:
            return None
        table = read_verified(self._store, path, lambda read: decode_broadcast(read, path))
        return _entry(name, path, data, version_of(name, table), checkpoint_id)

    def _put(self, name: str, path: str, table: BroadcastTable, checkpoint_id: int) -> Attachment:
        """Store a version, unless an earlier run stored it under the same name."""
        data: bytes | memoryview = write_stream(table.table.to_batches(), table.table.schema)
        there = put_or_find(self._store, path, data, lambda: self._store.get(path), pause)
        if there is not None and bytes(there) != data:
            path += f"-{RandomIds().new_id()}"
            self._store.put(path, data)
        _log.info("version %s of the broadcast table %s: %s", table.version, name, path)
        return _entry(name, path, data, table, checkpoint_id)


def _entry(
    name: str, path: str, data: bytes | memoryview, table: BroadcastTable, checkpoint_id: int
) -> Attachment:
    return Attachment(
        kind=BROADCAST,
        name=name,
        oldest=checkpoint_id,
        newest=checkpoint_id,
        path=path,
        size=len(data),
        crc=checksum([data]),
        count=len(table),
        at_ms=wall_clock_ms(),
        is_required=True,
        info={"version": table.version},
    )


def kept_broadcasts(
    before: Sequence[Attachment],
    chosen: Sequence[Attachment],
    replayed: Sequence[Attachment],
) -> tuple[Attachment, ...]:
    """
    Return the versions that a checkpoint references.

    Those that its micro-batch and kept recordings saw.
    """
    older = [version for version in before if version not in chosen]
    every = [*older, *chosen]
    needed = {
        version.path for recording in replayed if older for version in _seen_by(recording, every)
    }
    return (*(version for version in older if version.path in needed), *chosen)


def _seen_by(recording: Attachment, versions: Sequence[Attachment]) -> Iterator[Attachment]:
    """Yield the versions that were read by the micro-batches in a recording object."""
    yield from in_force(versions, recording.oldest).values()
    for version in versions:
        if recording.oldest < version.newest <= recording.newest:
            yield version


class DeclaredBroadcasts:
    """The broadcast tables that a processor requests."""

    def __init__(self, struct: Callable[[SchemaLike, str], StructType]) -> None:
        self._names: list[str] = []

    def calls(self) -> Mapping[str, Callable[..., object]]:
        """Return the method `broadcast`."""
        return {"broadcast": self._broadcast}

    def _broadcast(self, name: str) -> Unusable:
        """Declare a broadcast table, which cannot be read during `init`."""
        self._names.append(name)
        return Unusable(
            f"broadcast table {name!r}: read it while rows or timers are handled, not in init()"
        )

    def declared(self) -> tuple[str, ...]:
        """Return the names of the tables."""
        return tuple(self._names)

    @staticmethod
    def check(
        declared: Sequence[str], before: Sequence[Sequence[str]], settings: QuerySettings
    ) -> None:
        """Raise `UsageError` if `init` declares a broadcast table that the query does not have."""
        for name in declared:
            if name not in settings.broadcast:
                raise unknown_broadcast(name, settings.broadcast)

    @staticmethod
    def batch_part(declared: Sequence[str] | None, settings: QuerySettings) -> BroadcastTables:
        """Return the current version of the tables."""
        return {name: read_source(name, source) for name, source in sources_of(settings).items()}
