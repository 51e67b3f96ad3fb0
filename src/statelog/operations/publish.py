"""
Publish the state of a location as a table that any engine reads.

A checkpoint is a snapshot of the table.  The order of a publication is

    fold      the state in memory comes to the checkpoint
    pin       a tag of the location keeps the checkpoint, so that no clean-up deletes its files
    write     the rows that changed after the location's snapshots, and the positions they replace
    commit    a new snapshot of the table, under the condition that the table is as it was read
    release   the tags of checkpoints that no snapshot of the table names any longer

A call that ends anywhere leaves a table that is whole, and a next call compares the table with the
location and goes on: nothing but the two of them says what was published.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from statelog.arguments import text, whole_number
from statelog.checkpoint.at_time import CheckpointName, given_checkpoint_id
from statelog.checkpoint.history import StoredCheckpoint, readable
from statelog.checkpoint.open_state import open_state
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.tags import Tag, TagKind, delete_tag, list_tags, put_tag
from statelog.errors import CheckpointError, UnavailableError, UsageError
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.operations.publish_delta import DeltaTable
from statelog.operations.publish_iceberg import IcebergTable
from statelog.operations.publish_rows import TableRows
from statelog.operations.publish_table import (
    CHECKPOINT,
    LOCATION,
    POSITION,
    CommitConflictError,
    PublishableTable,
    PublishedTable,
)
from statelog.runtime.clock import wall_clock_ms, wall_clock_seconds
from statelog.runtime.fail_points import fail_point
from statelog.state.reader import StateReader
from statelog.state.reader.chain import as_of_ms
from statelog.state.reader.replica import newest_after
from statelog.store import LocationStore, open_store
from statelog.store.location_store import parse_parent_path

_ATTEMPTS: Final = 10
"""How often a publication begins again because the query or another process was faster."""
_CLEAN_UP_AGE: Final = dt.timedelta(hours=1)
_CLEAN_UP_EVERY: Final = 100
"""Publications of one publisher between two clean-ups of the table's files."""
RETAIN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """
    What a publication did.

    Args:
        table: Name of the table.
        checkpoint_id: The checkpoint that is the table's current snapshot.
        published: Checkpoints that this call made snapshots of the table, ascending.
        checkpoints: All checkpoints that are snapshots of the table, ascending.
        versions: By these checkpoints, the id of the Iceberg snapshot, or the version of the Delta table.
        tags: Checkpoints by the tags of the table.
        row_count: Rows of the table; None if nothing was published.
        snapshot_files: Snapshots of the location among the table's files.
        written_bytes: Bytes of rows and deleted positions that this call wrote.
    """

    table: str
    checkpoint_id: int
    published: tuple[int, ...]
    checkpoints: tuple[int, ...]
    versions: Mapping[int, int]
    tags: Mapping[str, int]
    row_count: int | None
    snapshot_files: int
    written_bytes: int


def publish(
    location: str | os.PathLike[str],
    *,
    iceberg: str | None = None,
    delta: str | os.PathLike[str] | None = None,
    checkpoint: CheckpointName | None = None,
    variables: Sequence[str] | None = None,
    operator: str | None = None,
    retain: int = RETAIN,
    catalog_options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> PublishReport:
    """
    Make a checkpoint of a location the current snapshot of an Iceberg or a Delta table.

    The table has one row per key and one column per state variable.  Its data files are the snapshots of
    the location, as they are, and small files with what changed after them.  A call for a checkpoint that
    the table has changes nothing.

    Example:
        statelog.publish("s3://bucket/jobs/totals", iceberg="prod.jobs.totals")

    Args:
        location: Path or URL of the state location.
        iceberg: `CATALOG.NAMESPACE.TABLE`; the catalog is one of pyiceberg's configuration.  The table is
            made if it does not exist.
        delta: Instead of *iceberg*: path or URL of the folder of a Delta table, which is made if it does
            not exist.
        checkpoint: As for `LocationState.reader`; None for the newest one.
        variables: State variables that are columns; None for all.
        operator: Name of the operator, where the query has several.
        retain: Snapshots of the table to keep besides those with a tag; >= 1.
        catalog_options: Properties of the catalog, for Iceberg.
        storage_options: Options of the store's client, as for `open_store`; also of the Delta table's
            store, if its URL has the scheme of the location's.

    Raises:
        CheckpointError: The checkpoint does not exist, is damaged, or is older than the published one.
        UsageError: The table belongs to another location, or cannot have these columns; or *iceberg* and
            *delta* are both given, or neither.
        RequirementError: pyiceberg is not installed: `pip install 'statelog[iceberg]'`.
        UnavailableError: Other processes changed the table again and again.
        StoreError: The store or the catalog failed; repeat the call.

    Blocks: On the store and the catalog.
    """
    with publisher(
        location,
        iceberg=iceberg,
        delta=delta,
        variables=variables,
        operator=operator,
        retain=retain,
        catalog_options=catalog_options,
        storage_options=storage_options,
    ) as once:
        return once.publish(checkpoint)


def publisher(
    location: str | os.PathLike[str],
    *,
    iceberg: str | None = None,
    delta: str | os.PathLike[str] | None = None,
    variables: Sequence[str] | None = None,
    operator: str | None = None,
    retain: int = RETAIN,
    catalog_options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> TablePublisher:
    """
    Return a publisher, which publishes one checkpoint after the other; arguments and errors as `publish`.

    Example:
        with statelog.publisher("s3://bucket/jobs/totals", iceberg="prod.jobs.totals") as publisher:
            while True:
                publisher.refresh()
                time.sleep(1)

    Blocks: On the store.
    """
    store = open_state(location, options=storage_options)
    options = storage_options
    if delta is not None and _scheme(open_store(delta).url) != _scheme(store.url):
        options = None
    return TablePublisher(
        store,
        open_table(iceberg, delta, catalog_options=catalog_options, storage_options=options),
        variables=variables,
        operator=operator,
        retain=retain,
    )


def open_table(
    iceberg: str | None,
    delta: str | os.PathLike[str] | None,
    *,
    catalog_options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> PublishableTable:
    """
    Return the table that is named, which may not exist yet.

    Args:
        iceberg: As for `publish`.
        delta: As for `publish`.
        catalog_options: Properties of the catalog.
        storage_options: Options of the Delta table's store.

    Raises:
        UsageError: Both tables are named, or neither, or a name is not valid.
        RequirementError: pyiceberg is not installed.
    """
    if (iceberg is None) == (delta is None):
        raise UsageError(
            "name one table to publish to: iceberg (CATALOG.NAMESPACE.TABLE) or delta (a folder)"
        )
    if delta is None:
        return IcebergTable(iceberg or "", catalog_options)
    if catalog_options:
        raise UsageError("options of a catalog are for an Iceberg table; a Delta table is a folder")
    return DeltaTable(delta, storage_options)


class TablePublisher:
    """
    Publishes checkpoints of one location, one after the other.

    It holds the state of the last one in memory, so that the next one costs what it changed.

    Args:
        store: The store of the location.
        table: The table.
        variables: As for `publish`.
        operator: As for `publish`.
        retain: As for `publish`.

    Thread: one at a time.
    """

    def __init__(
        self,
        store: LocationStore,
        table: PublishableTable,
        *,
        variables: Sequence[str] | None = None,
        operator: str | None = None,
        retain: int = RETAIN,
    ) -> None:
        self._store = store
        self._table = table
        self._operator = None if operator is None else text(operator, "operator")
        self._retain = whole_number(retain, "retain", low=1)
        self._variables = None if variables is None else list(variables)
        self._rows = TableRows(variables, self._url_of, table.deletes)
        self._published: CompletedCheckpoint | None = None
        self._written_bytes = 0
        self._until_clean_up = 0

    def __enter__(self) -> TablePublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the table; further calls do nothing."""
        self._table.close()

    def publish(self, checkpoint: CheckpointName | None = None) -> PublishReport:
        """
        Publish a checkpoint, and before it the tagged ones that are newer than the published one.

        Args:
            checkpoint: As for `publish`.

        Raises:
            Exception: As `publish`.

        Blocks: On the store and the catalog.
        """
        return self._attempted(given_checkpoint_id(self._store, checkpoint), None)

    def refresh(self) -> PublishReport | None:
        """
        Publish the newest checkpoint; return None if it is the one published last.

        Without a newer one, two requests are made, at once.

        Raises:
            Exception: As `publish`.

        Blocks: On the store and the catalog.
        """
        newest = newest_after(self._store, self._published)
        return None if newest is None else self._attempted(None, newest)

    def _attempted(self, given: int | None, newest: CompletedCheckpoint | None) -> PublishReport:
        """Publish the checkpoint *given*, or *newest* if it was read; else the newest one."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._publish(given, newest if attempt == 0 else None)
            except CommitConflictError as error:
                if attempt == _ATTEMPTS - 1:
                    raise UnavailableError(
                        f"{error}; other processes publish to the table {self._table.name} at the same "
                        "time: let one do it"
                    ) from error
            except CheckpointError as error:
                is_gone = error.reason in ("subsumed", "not_found")
                if given is not None or not is_gone or attempt == _ATTEMPTS - 1:
                    raise  # else the query went on meanwhile, and has a newer checkpoint
        raise AssertionError("the last attempt returns or raises")

    def _publish(self, given: int | None, newest: CompletedCheckpoint | None) -> PublishReport:
        target = find_checkpoint(self._store, given) if newest is None else newest
        reader = StateReader(self._store, target, operator=self._operator)
        published = self._table.load()
        source = self._source(reader)
        if published is not None:
            self._table.check_source(source)
            self._check_history(published)
            if given is None:
                self._check_ahead(published, target)
        all_tags = list_tags(self._store)
        tags = {tag.name: tag.checkpoint_id for tag in all_tags if tag.kind is TagKind.TAG}
        due = self._due(published, target.checkpoint_id, tags)
        pins = [tag for tag in all_tags if tag.kind is TagKind.READER]
        self._written_bytes = 0
        for checkpoint_id in due:
            base = reader
            if checkpoint_id != reader.checkpoint_id:
                tagged = find_checkpoint(self._store, checkpoint_id)
                base = StateReader(self._store, tagged, operator=self._operator)
            published = self._commit(base, published, tags, pins)
        if published is None or not due:
            published = self._table.commit(None, {}, tags, retain=self._retain)
        self._release(published, pins)
        self._published = target if published.newest == target.checkpoint_id else None
        return self._report(published, due)

    def _source(self, reader: StateReader) -> dict[str, str]:
        """Return what identifies the state, as properties of the table."""
        for name in self._variables or ():
            reader.arrow_schema(name)  # raises: it names the variables
        return {
            LOCATION: self._store.url,
            "statelog.location-id": reader.checkpoint.timeline.location_id,
            "statelog.operator": reader.schema.operator_id,
            "statelog.variables": "all" if self._variables is None else json.dumps(self._variables),
        }

    def _check_history(self, published: PublishedTable) -> None:
        """
        Check that the newest checkpoint of the table is what the location has under its number.

        The table keeps that checkpoint, so that it is missing only if its tag was deleted.
        """
        if published.newest is None:
            return
        entry = readable(self._store, published.newest)
        position = None
        if isinstance(entry, StoredCheckpoint):
            position = entry.checkpoint.position.to_text()
        if entry is not None and position != published.position:
            raise self._restored(published)

    def _check_ahead(self, published: PublishedTable, target: CompletedCheckpoint) -> None:
        """Check that the table is not ahead of the newest checkpoint of the location."""
        if published.newest is None or target.checkpoint_id >= published.newest:
            return
        newest = find_checkpoint(self._store)
        if newest.checkpoint_id < published.newest:
            raise self._restored(published)
        raise CommitConflictError(f"the table {self._table.name} has a newer checkpoint meanwhile")

    def _restored(self, published: PublishedTable) -> CheckpointError:
        return CheckpointError(
            f"the table {self._table.name} has checkpoint {published.newest} of another history "
            f"({published.position}) than {self._store.url}: the location was restored from a backup. Its "
            "checkpoints cannot follow the checkpoints of the table; publish to another table",
            reason="not_newer",
            checkpoint_id=published.newest,
        )

    def _due(
        self, published: PublishedTable | None, target: int, tags: Mapping[str, int]
    ) -> tuple[int, ...]:
        """Return the checkpoints to publish, ascending."""
        present = set() if published is None else set(published.checkpoints.values())
        newest = -1 if published is None or published.newest is None else published.newest
        if target <= newest:
            if target in present:
                return ()
            raise CheckpointError(
                f"the table {self._table.name} has checkpoint {newest} already, and a snapshot of the "
                f"older checkpoint {target} cannot follow it; publish it to another table",
                reason="not_newer",
                checkpoint_id=target,
            )
        between = {each for each in tags.values() if newest < each < target}
        return (*sorted(between - present), target)

    def _commit(
        self,
        reader: StateReader,
        published: PublishedTable | None,
        tags: Mapping[str, int],
        pins: list[Tag],
    ) -> PublishedTable:
        """Publish one checkpoint; its pin is added to *pins*."""
        if self._rows.position != reader.checkpoint.position:
            self._rows.advance(reader)
        if published is None:
            published = self._table.create(self._rows.schema, self._source(reader))
        self._pin(published, reader.checkpoint_id, pins)
        fail_point("publish-pinned")
        self._rows.settle(self._write)
        fail_point("publish-written")
        facts = {
            CHECKPOINT: str(reader.checkpoint_id),
            POSITION: reader.checkpoint.position.to_text(),
            "statelog.as-of-ms": str(as_of_ms(reader.checkpoint)),
            "statelog.row-count": str(self._rows.row_count),
        }
        after = self._table.commit(self._rows, facts, tags, retain=self._retain)
        fail_point("publish-committed")
        return after

    def _url_of(self, path: str) -> str | None:
        url = readable_url(self._store, path)
        return url if url is not None and self._table.can_name(url) else None

    def _write(self, kind: str, data: pa.Buffer) -> str:
        self._written_bytes += data.size
        return self._table.write(kind, data)

    # --- pins -------------------------------------------------------------------------------------

    def _pin(self, published: PublishedTable, checkpoint_id: int, pins: list[Tag]) -> None:
        """Keep a checkpoint, and with it the files that a snapshot of the table is about to name."""
        name = pin_name(self._table, published.uuid)
        if all((pin.name, pin.checkpoint_id) != (name, checkpoint_id) for pin in pins):
            pin = Tag(kind=TagKind.READER, name=name, checkpoint_id=checkpoint_id)
            facts = {"table": self._table.name}
            pins.append(put_tag(self._store, pin, clock_ms=wall_clock_ms, facts=facts))

    def _release(self, published: PublishedTable, pins: Sequence[Tag]) -> None:
        """Release the checkpoints that no snapshot of the table names, and clean up its files."""
        named = set(published.checkpoints.values())
        newest = -1 if published.newest is None else published.newest
        name = pin_name(self._table, published.uuid)
        for pin in pins:
            # A newer one may be pinned by a process that is about to commit it.
            if pin.name == name and pin.checkpoint_id not in named and pin.checkpoint_id < newest:
                delete_tag(self._store, pin)
        if self._until_clean_up <= 0:
            now = dt.datetime.fromtimestamp(wall_clock_seconds(), dt.UTC)
            self._table.clean_up(now - _CLEAN_UP_AGE)
            self._until_clean_up = _CLEAN_UP_EVERY
        self._until_clean_up -= 1

    def _report(self, published: PublishedTable, due: tuple[int, ...]) -> PublishReport:
        files = self._rows.files.values() if self._rows.checkpoint_id == published.newest else ()
        return PublishReport(
            table=self._table.name,
            checkpoint_id=-1 if published.newest is None else published.newest,
            published=due,
            checkpoints=tuple(sorted(set(published.checkpoints.values()))),
            versions={each: at for at, each in sorted(published.checkpoints.items())},
            tags=published.tags,
            row_count=self._rows.row_count if due else None,
            snapshot_files=sum(bool(file.snapshot) for file in files),
            written_bytes=self._written_bytes,
        )


def pin_name(table: PublishableTable, uuid: str) -> str:
    """Return the name of the tags that keep the checkpoints of a table."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", table.label)
    return f"{table.kind}.{safe[:60]}.{uuid[:8]}"


def readable_url(store: LocationStore, path: str) -> str | None:
    """Return the URL of an object that any reader can open; None if it is encrypted."""
    parsed = parse_parent_path(path)
    if parsed is not None:
        return readable_url(store.parent(parsed[0]), parsed[1])
    if store.is_encrypted:
        return None
    root = store.local_root
    return f"{store.url if root is None else f'file://{root}'}/{path}"


def _scheme(url: str) -> str:
    return url.partition(":")[0]
