"""
`IcebergSink`: writes rows and the record of their micro-batch in one Iceberg commit.

A commit adds one snapshot, whose summary names the micro-batch, and sets the table property
`statelog.batch.<writer>` to its record.  The property is what counts: it is still there when
snapshots have expired, and when other writers and compactions have added theirs.

PyIceberg repeats a commit on the newest table after another one came in between.  That other one
may be of another driver of the query, so the sink compares the record before each attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from statelog import arguments
from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import UnavailableError, UsageError
from statelog.extensions.iceberg_commits import keep_files_of_failed_commits
from statelog.extensions.sinks.database import may_pass
from statelog.extras import require
from statelog.runtime.fail_points import fail_point
from statelog.spark.stream.sinks.exactly_once_sink import SinkBatch

require("IcebergSink", "iceberg", "pyiceberg")

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
    WaitingForLockException,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata

_PROPERTY: Final = "statelog.batch."
_WRITER: Final = "statelog.writer"
_BATCH: Final = "statelog.batch-id"
_TRANSIENT: Final = (
    CommitFailedException,
    CommitStateUnknownException,
    WaitingForLockException,
    OSError,
)
_TRANSIENT_STATUSES: Final = (408, 419, 425, 429)
"""Transient responses besides 5xx: time-outs of a request or a login, too early, too many."""


class IcebergSink:
    """
    Appends to an Iceberg table through PyIceberg, with one snapshot per micro-batch.

    A missing table is created with the columns of the rows, without partitions.  The files of an
    attempt that was killed are in no snapshot; Iceberg's removal of orphan files deletes them.

    Example:
        options = {"uri": "sqlite:////tmp/catalog.db", "warehouse": "file:///tmp/warehouse"}
        sink = IcebergSink("sales.totals", catalog="local", catalog_options=options)

    Args:
        table: Namespace and name of the table.
        catalog: Name of the catalog, as PyIceberg's configuration has it.
        catalog_options: Properties of the catalog; PyIceberg's configuration has the defaults.

    Raises:
        UsageError: The name of the table lacks a namespace.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        catalog_options: Mapping[str, str] | None = None,
    ) -> None:
        if "." not in arguments.text(table, "table"):
            raise UsageError(
                f"pass the table name with its namespace: 'sales.{table}', not {table!r}"
            )
        self._table = table
        self._catalog_name = catalog
        self._catalog_options = dict(catalog_options or {})
        self._catalog: Catalog | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_catalog": None}

    def last_committed(self, writer: str) -> DeliveredBatch | None:
        """Read the newest micro-batch of *writer* from the table."""
        with self._explained("cannot read"):
            try:
                table = self._open().load_table(self._table)
            except NoSuchTableError:
                return None
        return newest_batch(table.metadata, writer)

    def write(self, batch: SinkBatch) -> None:
        """Append the rows and the record in one commit, unless a different driver has written."""
        with self._explained(f"cannot write batch {batch.batch_id} to"):
            table = self._load_or_create(batch.rows.schema)
            _check_next(table.metadata, batch, self._table)
            commit = _Append(table, batch, self._table)
            keep_files_of_failed_commits(commit)
            commit.append(
                self._as_stored(table, batch.rows),
                snapshot_properties={_WRITER: batch.writer, _BATCH: str(batch.batch_id)},
            )
            commit.set_properties({_PROPERTY + batch.writer: batch.record})
            fail_point("before-sink-commit")
            commit.commit_transaction()

    def close(self) -> None:
        """Close the catalog."""
        catalog = self._catalog
        self._catalog = None
        if catalog is not None:
            catalog.close()

    def _open(self) -> Catalog:
        if self._catalog is None:
            self._catalog = load_catalog(self._catalog_name, **self._catalog_options)
        return self._catalog

    def _load_or_create(self, schema: pa.Schema) -> Table:
        catalog = self._open()
        try:
            return catalog.load_table(self._table)
        except NoSuchTableError:
            nullable = pa.schema([column.with_nullable(True) for column in schema])
            return catalog.create_table_if_not_exists(self._table, schema=nullable)

    def _as_stored(self, table: Table, rows: pa.Table) -> pa.Table:
        """Convert rows to the types that the table stores, such as 32-bit integers and UTC."""
        stored = table.schema().as_arrow()
        unknown = [name for name in rows.column_names if stored.get_field_index(name) < 0]
        if unknown:
            raise UsageError(
                f"the table {self._table} has the columns {', '.join(stored.names)}, but the output also "
                f"has {', '.join(unknown)}: select only the table's columns, or add the new ones to the table"
            )
        return rows.cast(pa.schema([stored.field(name) for name in rows.column_names]))

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Convert a transient error to an `UnavailableError`."""
        try:
            yield
        except UnavailableError:
            raise
        except Exception as error:
            if not _may_pass(error):
                raise
            raise UnavailableError(
                f"{what} the Iceberg table {self._table}: {type(error).__name__}: {error}"
            ) from error


def _may_pass(error: Exception) -> bool:
    """Return whether a later call to the catalog may succeed."""
    if isinstance(error, RESTError):
        status = getattr(getattr(error.__cause__, "response", None), "status_code", 500)
        return status >= 500 or status in _TRANSIENT_STATUSES
    return isinstance(error, _TRANSIENT) or may_pass(error)


def newest_batch(metadata: TableMetadata, writer: str) -> DeliveredBatch | None:
    """Return the newest micro-batch of *writer* that a table contains."""
    text = metadata.properties.get(_PROPERTY + writer)
    where = f"the table property {_PROPERTY}{writer}"
    return None if text is None else DeliveredBatch.from_text(text, where=where)


def _check_next(metadata: TableMetadata, batch: SinkBatch, table: str) -> None:
    last = newest_batch(metadata, batch.writer)
    batch.check_next(last, target=f"the Iceberg table {table}")


class _Append(Transaction):
    """A commit that is retried only while the table has the record that the driver expects."""

    def __init__(self, table: Table, batch: SinkBatch, name: str) -> None:
        super().__init__(table)
        self._batch = batch
        self._name = name

    def _rebuild_snapshot_updates(self) -> None:
        """Check the newest version of the table, on which PyIceberg bases its next attempt."""
        _check_next(self._table.metadata, self._batch, self._name)
        super()._rebuild_snapshot_updates()
