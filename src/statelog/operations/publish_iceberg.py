"""
An Iceberg table whose snapshots are checkpoints of a location.

The table has one writer, statelog.  A commit writes what the table is after it, as two manifests: its data
files, among them the snapshots of the location as they are, and its files of deleted positions.  It is
compared with what the table has, file by file, so that it does not matter how an earlier attempt ended.
The summary of each table snapshot names its checkpoint.

Columns are identified by their path.  A path keeps its field id as long as the table exists, and the
table's name mapping has the ids of all paths, because the snapshots of a location lack field ids.
Source: the table specification of Apache Iceberg, version 2.
"""

from __future__ import annotations

import datetime as dt
import os
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.fs as pafs

from statelog.errors import StatelogError, StoreError, UsageError
from statelog.extras import load, require
from statelog.operations.publish_commit import (
    MAIN,
    PREFIX,
    Entry,
    PositionDeletes,
    fact,
    new_name,
    new_snapshot,
    ref_updates,
    stored_entries,
    stored_tags,
)
from statelog.operations.publish_rows import TableRows
from statelog.operations.publish_schema import iceberg_schema
from statelog.operations.publish_table import (
    CHECKPOINT,
    POSITION,
    CommitConflictError,
    PublishedTable,
    check_properties,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableRequirement, TableUpdate

_ATTEMPT: Final = "statelog.attempt"


class IcebergTable:
    """
    A table in a catalog of pyiceberg; see `publish_table.PublishableTable`.

    Args:
        name: `CATALOG.NAMESPACE.TABLE`; the catalog is one of pyiceberg's configuration.
        options: Properties of the catalog, which count before its configuration.

    Raises:
        RequirementError: pyiceberg is not installed.
        UsageError: The name or the configuration of the catalog is not valid.

    Thread: one at a time.
    """

    def __init__(self, name: str, options: Mapping[str, str] | None = None) -> None:
        require("publishing to Iceberg", "iceberg", "pyiceberg")
        catalogs = load("publishing to Iceberg", "iceberg", "pyiceberg.catalog")
        self.kind, self.name, self.label = "iceberg", name, name
        self.deletes = PositionDeletes()
        catalog, _, self._identifier = name.partition(".")
        if not catalog or "." not in self._identifier:
            raise UsageError(f"{name!r} is not the name of a table: write CATALOG.NAMESPACE.TABLE")
        with _explained(f"the catalog {catalog!r} of pyiceberg cannot be opened", UsageError):
            self._catalog = catalogs.load_catalog(catalog, **dict(options or {}))
        self._table: Table | None = None
        self._held: tuple[int, Mapping[str, Entry]] | None = None

    def close(self) -> None:
        """Close the catalog; further calls do nothing."""
        self._catalog.close()

    def load(self) -> PublishedTable | None:
        """Read what the table has; None if it does not exist."""
        from pyiceberg.exceptions import NoSuchTableError

        with _explained(f"the table {self.name} cannot be loaded"):
            try:
                self._table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                self._table = None
        return None if self._table is None else self._published(self._table)

    def create(self, schema: pa.Schema, source: Mapping[str, str]) -> PublishedTable:
        """Make the table, without rows."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        new, _ = iceberg_schema(schema, schema, {}, 0)
        properties = {
            "format-version": "2",
            # The files of the location belong to its checkpoints: no engine may delete them.
            "gc.enabled": "false",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "20",
            **source,
        }
        with _explained(f"the table {self.name} cannot be made"):
            self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
            try:
                self._table = self._catalog.create_table(
                    self._identifier, schema=new, properties=properties
                )
            except TableAlreadyExistsError as error:
                raise CommitConflictError(f"the table {self.name} exists meanwhile") from error
        return self._published(self._table)

    def check_source(self, source: Mapping[str, str]) -> None:
        """Check that the table was made for the same state."""
        check_properties(self.name, self._loaded().properties, source)

    def _loaded(self) -> Table:
        if self._table is None:
            raise UsageError(f"the table {self.name} does not exist")
        return self._table

    def _published(self, table: Table) -> PublishedTable:
        checkpoints = {}
        for snapshot in table.metadata.snapshots:
            number = fact(snapshot, CHECKPOINT)
            if number.isdecimal():
                checkpoints[snapshot.snapshot_id] = int(number)
        current = table.metadata.current_snapshot_id
        refs = table.metadata.refs
        return PublishedTable(
            uuid=str(table.metadata.table_uuid),
            newest=None if current is None else checkpoints.get(current),
            position="" if (newest := table.current_snapshot()) is None else fact(newest, POSITION),
            checkpoints=checkpoints,
            tags={
                name: checkpoints[refs[name].snapshot_id]
                for name in stored_tags(table)
                if name in refs and refs[name].snapshot_id in checkpoints
            },
        )

    # --- files ------------------------------------------------------------------------------------

    def can_name(self, url: str) -> bool:
        """Return True: readers follow any URL."""
        return True

    def write(self, kind: str, data: pa.Buffer) -> str:
        """Write a file of the table; return its URL."""
        table = self._loaded()
        url = f"{table.location().rstrip('/')}/data/{new_name()}-{kind}.parquet"
        with _explained(f"{url} cannot be written"), table.io.new_output(url).create() as file:
            file.write(data.to_pybytes())
        return url

    def clean_up(self, older_than: dt.datetime) -> int:
        """
        Delete files that statelog wrote and no snapshot of the table names; return how many.

        Only where the files of the table are reached through PyArrow, which lists them.
        """
        from pyiceberg.io.pyarrow import PyArrowFileIO

        table = self._loaded()
        if not isinstance(table.io, PyArrowFileIO):
            return 0
        with _explained(f"the files of the table {self.name} cannot be listed"):
            scheme, netloc, path = PyArrowFileIO.parse_location(table.location())
            files = table.io.fs_by_scheme(scheme, netloc)
            listed: list[pafs.FileInfo] = []
            for folder in ("data", "metadata"):
                selector = pafs.FileSelector(f"{path.rstrip('/')}/{folder}", allow_not_found=True)
                listed += files.get_file_info(selector)
            old = [
                info
                for info in listed
                if info.base_name.startswith(PREFIX) and info.mtime and info.mtime < older_than
            ]
            named = self._names() if old else set()
            doomed = [info.path for info in old if info.base_name not in named]
            for name in doomed:
                files.delete_file(name)
        return len(doomed)

    def _names(self) -> set[str]:
        """Return the names of all files that the snapshots of the table need."""
        table = self._loaded()
        urls = set()
        for snapshot in table.metadata.snapshots:
            urls.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                urls.add(manifest.manifest_path)
            urls.update(stored_entries(table, snapshot))
        return {posixpath.basename(url) for url in urls}

    def _stored_entries(self, table: Table) -> Mapping[str, Entry]:
        """Return the files of the current snapshot by URL."""
        current = table.current_snapshot()
        if current is None:
            return {}
        if self._held is None or self._held[0] != current.snapshot_id:
            self._held = current.snapshot_id, stored_entries(table, current)
        return self._held[1]

    # --- commits ----------------------------------------------------------------------------------

    def commit(
        self,
        rows: TableRows | None,
        facts: Mapping[str, str],
        tags: Mapping[str, int],
        *,
        retain: int,
    ) -> PublishedTable:
        """Make rows the table; without a change of the table nothing is written."""
        from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

        table = self._loaded()
        attempt = os.urandom(16).hex()
        facts = {**facts, _ATTEMPT: attempt}
        with _explained(f"the metadata of the table {self.name} cannot be written"):
            added = None
            if rows is not None:
                before = self._stored_entries(table)
                added = new_snapshot(table, rows, self.deletes.files, facts, before)
            refs = ref_updates(table, added, tags, retain)
            updates = (*(() if added is None else added.updates), *refs)
        if not updates:
            return self._published(table)
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId.model_validate(
                {"ref": MAIN, "snapshot-id": table.metadata.current_snapshot_id}
            ),
        )
        self._commit(table, requirements, updates, attempt)
        if added is not None:
            self._held = added.snapshot_id, added.entries
        return self._published(self._loaded())

    def _commit(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
        attempt: str,
    ) -> None:
        """Commit, and find out after an error whether the commit succeeded."""
        from pyiceberg.exceptions import CommitFailedException

        conflict, text = False, f"the commit to the table {self.name} failed"
        failure: Exception | None = None
        try:
            self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            conflict, failure = True, error
        except Exception as error:  # of the catalog's client, which may be any
            failure = error
        self.load()
        current = self._loaded().current_snapshot()
        if failure is None or (current and fact(current, _ATTEMPT) == attempt):
            return
        kind = CommitConflictError if conflict else StoreError
        raise kind(f"{text}: {failure}") from failure


@contextmanager
def _explained(text: str, kind: type[StatelogError] = StoreError) -> Iterator[None]:
    """Raise errors of pyiceberg and of its clients, which may be any, as one of ours."""
    try:
        yield
    except StatelogError:
        raise
    except Exception as error:
        raise kind(f"{text}: {error}") from error
