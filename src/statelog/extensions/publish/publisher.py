"""
Publish the state of a location as a table that any engine can read.

A checkpoint is a version of the table.  A publication replaces the rows of the key groups that
changed since the version before; all rows where that cannot be told.  A call that ends anywhere
leaves a table at one checkpoint or the next: a next call compares the table with the location and
continues.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from statelog.arguments import text, whole_number
from statelog.checkpoint.history import StoredCheckpoint, open_state, readable
from statelog.checkpoint.listing import CheckpointName, given_checkpoint_id
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.retained import Tag, TagKind, delete_tag, list_tags
from statelog.checkpoint.tags import put_tag
from statelog.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    StatelogError,
    StoreError,
    UnavailableError,
    UsageError,
)
from statelog.extensions.publish.delta import DeltaTable
from statelog.extensions.publish.iceberg import IcebergTable
from statelog.extensions.publish.table import (
    CHECKPOINT,
    POSITION,
    CommitConflictError,
    PublishableTable,
    PublishedTable,
    Replacement,
)
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.runtime.clock import wall_clock_ms
from statelog.runtime.fail_points import fail_point
from statelog.state.reader import StateReader
from statelog.state.reader.checkpoint_chain import newest_after
from statelog.store import LocationStore, open_store

_ATTEMPTS: Final = 10
"""How often to retry if the query or a different process was faster."""
_ATTEMPT: Final = "statelog.attempt"
_SCHEMA: Final = "statelog.schema"
RETAIN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """
    The result of a publication.

    Args:
        table: Name of the table.
        checkpoint_id: The checkpoint that is the table's newest version.
        published: Checkpoints that this call made versions of the table, ascending.
        checkpoints: All checkpoints that are retained versions of the table, ascending.
        versions: By these checkpoints, the id of the Iceberg snapshot, or the version of the Delta
            table.
        tags: Checkpoints by the tags of the location that have a version.
        row_count: Rows of the table.
        written_rows: Rows that this call wrote.
    """

    table: str
    checkpoint_id: int
    published: tuple[int, ...]
    checkpoints: tuple[int, ...]
    versions: Mapping[int, int]
    tags: Mapping[str, int]
    row_count: int
    written_rows: int


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
    Make a checkpoint of a location the newest version of an Iceberg or Delta table.

    The table contains one row per key and one column per state variable.  A call for a checkpoint
    that is a version of the table already changes nothing.

    Example:
        statelog.publish("s3://bucket/jobs/totals", iceberg="prod.jobs.totals")

    Args:
        location: Path or URL of the state location.
        iceberg: `CATALOG.NAMESPACE.TABLE`; the catalog is part of pyiceberg's configuration.  A
            missing table is created.
        delta: Instead of *iceberg*: path or URL of the folder of a Delta table; a missing one is
            created.
        checkpoint: As for `LocationState.reader`; None for the newest one.
        variables: State variables that are columns; None for all.
        operator: Name of the operator, where the query has several.
        retain: Versions of the table to retain besides those with a tag; >= 1.
        catalog_options: Properties of the catalog, for Iceberg.
        storage_options: Options of the store's client, as for `open_store`; also of the Delta
            table's store, if its URL has the scheme of the location's.

    Raises:
        CheckpointError: The checkpoint does not exist, is damaged, or is older than the published
            one.
        UsageError: The table belongs to a different location, or its format does not support a
            column; or *iceberg* and *delta* are both given, or neither.
        RequirementError: pyiceberg or deltalake is not installed: `pip install 'statelog[iceberg]'`
            or `'statelog[delta]'`.
        UnavailableError: Other processes changed the table during each attempt.
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
    Return a publisher, which publishes one checkpoint after another.

    Arguments and errors as `publish`.

    Example:
        with publisher("s3://bucket/jobs/totals", iceberg="prod.jobs.totals") as publisher:
            while True:
                publisher.refresh()
                time.sleep(1)
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
    """Return the specified table, which may not exist yet."""
    if (iceberg is None) == (delta is None):
        raise UsageError(
            "pass one table to publish to: iceberg (--iceberg CATALOG.NAMESPACE.TABLE) or delta "
            "(--delta, a folder)"
        )
    if delta is None:
        return IcebergTable(iceberg or "", catalog_options)
    if catalog_options:
        raise UsageError(
            "catalog options apply only to Iceberg tables; omit them, because a Delta table is a folder"
        )
    return DeltaTable(delta, storage_options)


class TablePublisher:
    """
    Publishes the checkpoints of a location, one after another.

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
        if f"{store.url}/".startswith(f"{table.name}/"):
            raise UsageError(
                f"the folder {table.name} contains the location {store.url}, whose files a VACUUM of the "
                "table would delete; publish to a different folder"
            )
        self._store = store
        self._table = table
        self._operator = None if operator is None else text(operator, "operator")
        self._retain = whole_number(retain, "retain", low=1)
        self._variables = None if variables is None else list(variables)
        self._published: CompletedCheckpoint | None = None
        self._base: CompletedCheckpoint | None = None
        """The newest checkpoint of the table, if the location still contains it."""
        self._written_rows = 0
        self._failure: StatelogError | None = None
        name = re.sub(r"[^A-Za-z0-9._-]", "-", table.name)[-60:]
        self._pin = f"{table.kind}.{hashlib.sha256(table.name.encode()).hexdigest()[:8]}.{name}"

    def __enter__(self) -> TablePublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the table. Further calls do nothing."""
        self._table.close()

    def publish(self, checkpoint: CheckpointName | None = None) -> PublishReport:
        """Publish a checkpoint, after any tagged checkpoints that precede it."""
        return self._attempted(given_checkpoint_id(self._store, checkpoint), None)

    def refresh(self) -> PublishReport | None:
        """
        Publish the newest checkpoint, or return None if it is already published.

        Without a newer one, two requests are made, at once.
        """
        newest = newest_after(self._store, self._published)
        return None if newest is None else self._attempted(None, newest)

    def _attempted(self, asked_id: int | None, newest: CompletedCheckpoint | None) -> PublishReport:
        """Publish the checkpoint *given*, or *newest* if it was read, or the newest checkpoint."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._publish(asked_id, newest if attempt == 0 else None)
            except CommitConflictError as error:
                if attempt == _ATTEMPTS - 1:
                    raise UnavailableError(
                        f"{error}; other processes publish to the table {self._table.name} at the same "
                        "time: let only one process publish"
                    ) from error
            except CheckpointNotFoundError:
                if asked_id is not None or attempt == _ATTEMPTS - 1:
                    raise  # else the query went on meanwhile, and has a newer checkpoint
        raise AssertionError("the last attempt must return or raise an error")

    def _publish(self, asked_id: int | None, newest: CompletedCheckpoint | None) -> PublishReport:
        target = find_checkpoint(self._store, asked_id) if newest is None else newest
        reader = StateReader(self._store, target, operator=self._operator)
        published = self._table.load()
        self._base = None
        if published is not None:
            self._check_source(published, reader)
            self._check_history(published)
            if asked_id is None:
                self._check_ahead(published, target)
        tags = {
            tag.name: tag.checkpoint_id for tag in list_tags(self._store) if tag.kind is TagKind.TAG
        }
        due = self._due(published, target.checkpoint_id, tags)
        self._written_rows = 0
        for checkpoint_id in due:
            due_reader = reader
            if checkpoint_id != reader.checkpoint_id:
                tagged = find_checkpoint(self._store, checkpoint_id)
                due_reader = StateReader(self._store, tagged, operator=self._operator)
            published = self._commit(due_reader, published, tags)
            self._base = due_reader.checkpoint
        published = self._table.tidy(tags, self._retain)
        published_id = published.newest
        if published_id is not None:
            self._hold(published_id)
        self._published = target if published_id == target.checkpoint_id else None
        return self._report(published, due, tags)

    def _source(self, reader: StateReader) -> dict[str, str]:
        """Return the facts in a version that identify the state."""
        for name in self._variables or ():
            reader.arrow_schema(name)  # raises: it names the variables
        return {
            "statelog.location": self._store.url,
            "statelog.location-id": reader.checkpoint.timeline.location_id,
            "statelog.operator": reader.schema.operator_id,
            "statelog.variables": "all" if self._variables is None else json.dumps(self._variables),
        }

    def _check_source(self, published: PublishedTable, reader: StateReader) -> None:
        """Check that the table was created from this state."""
        for key, expected in self._source(reader).items():
            if published.facts.get(key) != expected:
                raise UsageError(
                    f"the table {self._table.name} records {key} {published.facts.get(key)!r}, not "
                    f"{expected!r}: publish to a different table, or drop this one"
                )

    def _check_history(self, published: PublishedTable) -> None:
        """
        Check that the table's checkpoint number refers to the same checkpoint in the location.

        It may have none: then what changed after the published checkpoint cannot be told.
        """
        entry = None if published.newest is None else readable(self._store, published.newest)
        if entry is None:
            return
        checkpoint = entry.checkpoint if isinstance(entry, StoredCheckpoint) else None
        if checkpoint is None or checkpoint.position.to_text() != published.facts[POSITION]:
            raise self._restored(published)
        self._base = checkpoint

    def _check_ahead(self, published: PublishedTable, target: CompletedCheckpoint) -> None:
        """Check that the table is not ahead of the location's newest checkpoint."""
        if published.newest is None or target.checkpoint_id >= published.newest:
            return
        newest = find_checkpoint(self._store)
        if newest.checkpoint_id < published.newest:
            raise self._restored(published)
        raise CommitConflictError(f"the table {self._table.name} now contains a newer checkpoint")

    def _restored(self, published: PublishedTable) -> CheckpointError:
        return CheckpointError(
            f"the table {self._table.name} contains checkpoint {published.newest} of a different history "
            f"({published.facts[POSITION]}) than {self._store.url}: the location was restored from a "
            "backup. Its checkpoints cannot follow the checkpoints of the table; publish to a different table",
            reason="not_newer",
            checkpoint_id=published.newest,
        )

    def _due(
        self, published: PublishedTable | None, target: int, tags: Mapping[str, int]
    ) -> tuple[int, ...]:
        """Return the checkpoints to publish, in ascending order."""
        present = set() if published is None else set(published.checkpoints.values())
        newest = -1 if published is None or published.newest is None else published.newest
        if target <= newest:
            if target in present:
                return ()
            raise CheckpointError(
                f"the table {self._table.name} already contains checkpoint {newest}, and the older "
                f"checkpoint {target} cannot follow it; publish it to a different table",
                reason="not_newer",
                checkpoint_id=target,
            )
        between = {tagged_id for tagged_id in tags.values() if newest < tagged_id < target}
        return (*sorted(between), target)

    def _commit(
        self, reader: StateReader, published: PublishedTable | None, tags: Mapping[str, int]
    ) -> PublishedTable:
        """Publish one checkpoint; after an error, determine whether the commit succeeded."""
        rows = self._replacement(reader, published)
        self._failure = None
        try:
            self._table.replace(rows, tags, self._retain)
        except (CommitConflictError, StoreError) as error:
            if self._failure is not None:
                raise self._failure from None  # deltalake reports an error of the rows as a text
            after = self._table.load()
            if after is None or after == published:
                raise
            if after.facts.get(_ATTEMPT) != rows.facts[_ATTEMPT]:
                raise CommitConflictError(str(error)) from error
        fail_point("publish-committed")
        committed = self._table.load()
        if committed is None:
            raise CommitConflictError(f"the table {self._table.name} was deleted in the meantime")
        return committed

    def _replacement(self, reader: StateReader, published: PublishedTable | None) -> Replacement:
        """Return the rows of a checkpoint, and which rows of the table they replace."""
        variables = {variable.name: variable for variable in reader.variables()}
        left_out = set() if self._variables is None else variables.keys() - set(self._variables)
        names = [name for name in variables if name not in left_out]
        fields = [field for field in reader.keys_schema() if field.name not in left_out]
        schema = pa.schema([pa.field(field.name, _nullable(field.type)) for field in fields])
        source = self._source(reader)
        described = json.dumps(reader.schema.to_json(), sort_keys=True)
        facts = {
            **source,
            CHECKPOINT: str(reader.checkpoint_id),
            POSITION: reader.checkpoint.position.to_text(),
            "statelog.as-of-ms": str(reader.as_of_ms),
            _ATTEMPT: os.urandom(16).hex(),
            _SCHEMA: hashlib.sha256(described.encode()).hexdigest(),
        }
        is_new_schema = published is None or published.facts.get(_SCHEMA) != facts[_SCHEMA]
        expires = any(variables[name].ttl_ms is not None for name in names)
        groups = None
        base = self._base
        is_current = published is not None and published.is_current
        if base is not None and is_current and not (is_new_schema or expires):
            continues = reader.checkpoint.continues(base.position)
            groups = reader.changed_groups(base) if continues else None
        return Replacement(
            schema=schema,
            is_new_schema=is_new_schema,
            key_groups=groups,
            rows=lambda: self._rows(reader, schema, names, groups),
            source=source,
            facts=facts,
        )

    def _rows(
        self,
        reader: StateReader,
        schema: pa.Schema,
        variables: Sequence[str],
        key_groups: Sequence[KeyGroupRange] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some key groups, omitting keys without state in the variables."""
        try:
            for key_range in [reader.key_groups] if key_groups is None else key_groups:
                for batch in reader.keys(key_groups=key_range):
                    rows = batch.select(schema.names)
                    has_state = [rows.column(name).is_valid() for name in variables]
                    rows = rows.filter(reduce(pc.or_, has_state)) if has_state else rows.slice(0, 0)
                    self._written_rows += rows.num_rows
                    yield rows.cast(schema)
        except StatelogError as error:
            self._failure = error
            raise

    def _hold(self, checkpoint_id: int) -> None:
        """Retain the published checkpoint, so that the next call can find what changed since."""
        pins = [
            tag
            for tag in list_tags(self._store)
            if tag.kind is TagKind.READER and tag.name == self._pin
        ]
        try:
            if all(pin.checkpoint_id != checkpoint_id for pin in pins):
                pin = Tag(kind=TagKind.READER, name=self._pin, checkpoint_id=checkpoint_id)
                put_tag(self._store, pin, clock_ms=wall_clock_ms)
        except CheckpointNotFoundError:
            pass  # the next call replaces all rows
        for pin in pins:
            if pin.checkpoint_id < checkpoint_id:
                delete_tag(self._store, pin)

    def _report(
        self, published: PublishedTable, due: tuple[int, ...], tags: Mapping[str, int]
    ) -> PublishReport:
        versions = {
            checkpoint_id: version
            for version, checkpoint_id in sorted(published.checkpoints.items())
        }
        return PublishReport(
            table=self._table.name,
            checkpoint_id=-1 if published.newest is None else published.newest,
            published=due,
            checkpoints=tuple(sorted(versions)),
            versions=versions,
            tags={name: tagged_id for name, tagged_id in tags.items() if tagged_id in versions},
            row_count=published.row_count,
            written_rows=self._written_rows,
        )


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with nullable fields, because the columns of a table are optional."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    return kind


def _scheme(url: str) -> str:
    return url.partition(":")[0]
