"""
A published table in a PyIceberg catalog.

A version is a snapshot whose summary records the facts of its checkpoint.  A commit deletes the
rows of the key groups that changed and appends the new ones, in one transaction.  pyiceberg makes a
snapshot of each step: those without facts are removed after the commit.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from statelog.errors import UsageError
from statelog.extensions.iceberg_commits import keep_files_of_failed_commits
from statelog.extensions.publish.table import (
    CHECKPOINT,
    FILE_BYTES,
    CommitConflictError,
    PublishedTable,
    Replacement,
    explained,
    retained_versions,
)
from statelog.extras import load, require
from statelog.runtime.fail_points import fail_point

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction

_TAGS: Final = "statelog.tags"
"""Property of a table with the names of the tags that statelog created."""
_PROPERTIES: Final = {
    "format-version": "2",
    # A conflict is resolved by the publisher, which loads the table again.
    "commit.retry.num-retries": "0",
    "write.target-file-size-bytes": str(FILE_BYTES),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class IcebergTable:
    """
    A table in a PyIceberg catalog; see `PublishableTable`.

    Thread: one at a time.
    """

    kind = "iceberg"

    def __init__(self, name: str, options: Mapping[str, str] | None = None) -> None:
        require("publishing to Iceberg", "iceberg", "pyiceberg")
        catalogs = load("publishing to Iceberg", "iceberg", "pyiceberg.catalog")
        self.name = name
        catalog, _, self._identifier = name.partition(".")
        if not catalog or "." not in self._identifier:
            raise UsageError(f"{name!r} is not a table name: use CATALOG.NAMESPACE.TABLE")
        try:
            self._catalog = catalogs.load_catalog(catalog, **dict(options or {}))
        except Exception as error:
            raise UsageError(f"cannot open the PyIceberg catalog {catalog!r}: {error}") from error
        self._table: Table | None = None

    def close(self) -> None:
        """Close the catalog. Further calls do nothing."""
        self._catalog.close()

    def load(self) -> PublishedTable | None:
        """Read what the table contains, or return None if it does not exist."""
        from pyiceberg.exceptions import NoSuchTableError

        with explained(f"cannot load the table {self.name}"):
            try:
                self._table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                self._table = None
                return None
        return _contents(self._table)

    def replace(self, rows: Replacement, tags: Mapping[str, int], retain: int) -> None:
        """Commit a new version of the loaded table, creating the table if it is missing."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        conflicts = (CommitFailedException, ValidationException)
        with explained(f"cannot commit to the table {self.name}", *conflicts):
            table = self._table if self._table is not None else self._create(rows)
            commit = table.transaction()
            keep_files_of_failed_commits(commit)
            if rows.is_new_schema and self._table is not None:
                with _supported():
                    _replace_columns(commit, rows.schema)
            if table.current_snapshot() is not None:
                _delete(commit, rows)
            commit.append(rows.reader(), snapshot_properties=dict(rows.facts))
            fail_point("publish-written")
            commit.commit_transaction()

    def _create(self, rows: Replacement) -> Table:
        from pyiceberg.exceptions import TableAlreadyExistsError

        self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        try:
            with _supported():
                table: Table = self._catalog.create_table(
                    self._identifier, schema=rows.schema, properties={**_PROPERTIES, **rows.source}
                )
                return table
        except TableAlreadyExistsError as error:
            raise CommitConflictError(
                f"a different process created the table {self.name}"
            ) from error

    def tidy(self, tags: Mapping[str, int], retain: int) -> PublishedTable:
        """Copy the location's tags to the table, and remove snapshots that are not retained."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots

        with explained(f"cannot tidy the table {self.name}", CommitFailedException):
            table = self._loaded()
            refs = table.metadata.refs
            checkpoints = _checkpoints(table)
            versions = {checkpoint: snapshot_id for snapshot_id, checkpoint in checkpoints.items()}
            created = set(json.loads(table.properties.get(_TAGS, "[]")))
            assigned = {
                name: versions[checkpoint]
                for name, checkpoint in tags.items()
                if checkpoint in versions and (name in created or name not in refs)
            }
            commit = table.transaction()
            with ManageSnapshots(commit) as changes:
                for name in (created - assigned.keys()) & refs.keys():
                    changes.remove_tag(name)
                for name, snapshot_id in assigned.items():
                    if name not in refs or refs[name].snapshot_id != snapshot_id:
                        changes.create_tag(snapshot_id, name)
            if created != assigned.keys():
                commit.set_properties({_TAGS: json.dumps(sorted(assigned))})
            named = {ref.snapshot_id for ref in commit.table_metadata.refs.values()}
            retained = {*retained_versions(checkpoints, tags, retain), *named}
            expired = [
                snapshot_id for snapshot_id in _snapshot_ids(table) if snapshot_id not in retained
            ]
            before = _files(table) if expired else set()
            if expired:
                ExpireSnapshots(commit).by_ids(expired).commit()
            commit.commit_transaction()
            for url in before - _files(table) if expired else ():
                table.io.delete(url)
        return _contents(table)

    def _loaded(self) -> Table:
        if self._table is None:
            raise CommitConflictError(f"the table {self.name} was deleted in the meantime")
        return self._table


def _contents(table: Table) -> PublishedTable:
    """Return what a table contains; facts about its source are among its properties."""
    checkpoints = _checkpoints(table)
    current = table.current_snapshot()
    newest = table.snapshot_by_id(max(checkpoints, key=checkpoints.__getitem__, default=-1))
    totals = {} if current is None else _facts(current)
    return PublishedTable(
        facts={**table.properties, **({} if newest is None else _facts(newest))},
        is_current=newest is not None and newest == current,
        checkpoints=checkpoints,
        row_count=int(totals.get("total-records", 0)),
    )


def _facts(snapshot: object) -> dict[str, str]:
    summary = getattr(snapshot, "summary", None)
    return {} if summary is None else dict(summary.additional_properties)


def _snapshot_ids(table: Table) -> list[int]:
    """Return the ids of the snapshots, the oldest first."""
    ordered = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    return [snapshot.snapshot_id for snapshot in ordered]


def _checkpoints(table: Table) -> dict[int, int]:
    """Return the checkpoint of each published snapshot, the oldest first."""
    facts = {snapshot.snapshot_id: _facts(snapshot) for snapshot in table.metadata.snapshots}
    return {
        snapshot_id: int(facts[snapshot_id][CHECKPOINT])
        for snapshot_id in _snapshot_ids(table)
        if CHECKPOINT in facts[snapshot_id]
    }


def _files(table: Table) -> set[str]:
    """Return the URLs of all files that a table's snapshots reference."""
    urls = set()
    manifests = {}
    for snapshot in table.metadata.snapshots:
        urls.add(snapshot.manifest_list)
        manifests.update(
            {manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)}
        )
    for manifest in manifests.values():
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        urls.update(entry.data_file.file_path for entry in entries)
    return urls | manifests.keys()


def _delete(commit: Transaction, rows: Replacement) -> None:
    """Delete the rows that the new version replaces."""
    from pyiceberg.expressions import AlwaysTrue

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        commit.delete(AlwaysTrue() if rows.predicate is None else rows.predicate)


def _replace_columns(commit: Transaction, schema: pa.Schema) -> None:
    """Replace the columns of a table; all rows are replaced too, so any type can change."""
    with commit.update_schema(allow_incompatible_changes=True) as update:
        for field in commit.table_metadata.schema().fields:
            update.delete_column((field.name,))
    with commit.update_schema() as update:
        update.union_by_name(schema)


@contextmanager
def _supported() -> Iterator[None]:
    """Raise `UsageError` for a type that Iceberg does not have."""
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    try:
        yield
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        raise UsageError(
            f"the state cannot be stored as an Iceberg table: {error}; select variables with --variable"
        ) from error
