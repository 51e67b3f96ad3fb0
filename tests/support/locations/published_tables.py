"""A published table next to the model of its location, read by two engines that share no code."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import deltalake
import duckdb
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table import Table
from tests.support.locations.histories import (
    NAMES,
    History,
    Row,
    Rows,
    group_of,
    key_of,
    live_names,
)

import statelog
from statelog.checkpoint.retained import TagKind, list_tags
from statelog.extensions.publish.publisher import PublishReport, TablePublisher, publisher
from statelog.extensions.publish.table import CHECKPOINT
from statelog.state.kinds import StateKind
from statelog.state.schema import TIMERS_NAME
from statelog.store import open_location

TABLE = "test.jobs.totals"
Act = Callable[[Callable[[], Any]], Any]
"""Runs a commit."""


class Published(ABC):
    """
    A history on disk, and a table of it; one class for each kind of table.

    Args:
        seed: As for `History`.
        root: An empty folder.
        retained: Checkpoints that the query retains.
    """

    target: dict[str, Any]
    """Arguments of `statelog.publish`."""
    arguments: list[str]
    """Options of `statelog publish`."""
    broken: Exception = OSError("the line broke")
    """What a commit raises if the connection is lost."""
    conflict: Exception
    """What a commit raises if another one was faster."""

    def __init__(self, seed: int | str, root: Path, retained: int = 2) -> None:
        self.root = root
        self.location = str(root / "state")
        store = open_location(self.location, options={"fsync": False})
        self.history = History(seed, store, retained)

    def rewind(self, older: int) -> None:
        """Let the query continue an older checkpoint, with the schema and the state of then."""
        self.history.rewind(older, retained=2)
        self.history.checkpoint_id = older

    def publisher(self, retain: int = 4, variables: Any = None) -> TablePublisher:
        return publisher(self.location, retain=retain, variables=variables, **self.target)

    def publish(self, **more: Any) -> PublishReport:
        return statelog.publish(self.location, **{**self.target, **more})

    @abstractmethod
    def snapshots(self) -> dict[int, int]:
        """Return the checkpoint of each snapshot of the table; none if it does not exist."""

    @abstractmethod
    def readings(self, snapshot: int) -> tuple[pa.Table, pa.Table]:
        """Return a snapshot as two engines read it."""

    @abstractmethod
    def orphans(self) -> set[str]:
        """Return the files of the table that no snapshot names."""

    @abstractmethod
    def around_commits(self, patch: pytest.MonkeyPatch, act: Act) -> None:
        """Let *act* run each commit of rows, which is its argument."""

    @abstractmethod
    def interfere(self) -> None:
        """Commit a row that is in the table already, as another process may."""

    def check(self, variables: list[str] | None = None) -> int:
        """Compare every snapshot of the table with the model; return how many rows there are."""
        count = 0
        for snapshot, checkpoint_id in self.snapshots().items():
            expected = self.expected(checkpoint_id, variables)
            for rows in self.readings(snapshot):
                assert expected == rows_of_table(rows, expected)
            count += sum(len(rows) for rows in expected.values())
        return count

    def expected(self, checkpoint_id: int, variables: list[str] | None) -> dict[str, Rows]:
        model = self.history.expected[checkpoint_id]
        now_ms = self.history.taken_at_ms[checkpoint_id]
        names = [name for name in live_names(model) if variables is None or name in variables]
        return {name: model.rows(name, now_ms) for name in names}


class IcebergPublished(Published):
    """A table in a catalog on disk."""

    def __init__(self, seed: int | str, root: Path, retained: int = 2) -> None:
        from pyiceberg.exceptions import CommitFailedException

        super().__init__(seed, root, retained)
        self.options = {
            "type": "sql",
            "uri": f"sqlite:///{root.parent}/{root.name.encode().hex()}.db",
            "warehouse": f"file://{root}/warehouse",
        }
        self.target = {"iceberg": TABLE, "catalog_options": self.options}
        options = [f"--catalog-option={key}={value}" for key, value in self.options.items()]
        self.arguments = ["--iceberg", TABLE, *options]
        self.conflict = CommitFailedException("again")

    def table(self) -> Table:
        from pyiceberg.catalog import load_catalog

        return load_catalog("test", **self.options).load_table("jobs.totals")

    def snapshots(self) -> dict[int, int]:
        try:
            snapshots = self.table().metadata.snapshots
        except NoSuchTableError:
            return {}
        facts = {
            snapshot.snapshot_id: snapshot.summary.additional_properties for snapshot in snapshots
        }
        return {
            snapshot_id: int(properties[CHECKPOINT])
            for snapshot_id, properties in facts.items()
            if CHECKPOINT in properties
        }

    def readings(self, snapshot: int) -> tuple[pa.Table, pa.Table]:
        table = self.table()
        return scanned(table, snapshot), by_duckdb(table, snapshot)

    def orphans(self) -> set[str]:
        files = (self.root / "warehouse").rglob("*.parquet")
        named = {row["file_path"] for row in self.table().inspect.all_files().to_pylist()}
        return {path.name for path in files if f"file://{path}" not in named}

    def around_commits(self, patch: pytest.MonkeyPatch, act: Act) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        commit = SqlCatalog.commit_table

        def counted(catalog: Any, table: Any, requirements: Any, updates: Any) -> Any:
            if not any(update.action == "add-snapshot" for update in updates):
                return commit(catalog, table, requirements, updates)
            return act(lambda: commit(catalog, table, requirements, updates))

        patch.setattr(SqlCatalog, "commit_table", counted)

    def interfere(self) -> None:
        table = self.table()
        table.append(table.scan(limit=1).to_arrow())


class DeltaPublished(Published):
    """A table in a folder on disk."""

    def __init__(self, seed: int | str, root: Path, retained: int = 2) -> None:
        super().__init__(seed, root, retained)
        self.folder = root / "delta table"
        self.target = {"delta": self.folder}
        self.arguments = ["--delta", str(self.folder)]
        self.conflict = CommitFailedError("again")

    def table(self, version: int | None = None) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.folder, version=version)

    def snapshots(self) -> dict[int, int]:
        if not (self.folder / "_delta_log").exists():
            return {}
        versions = (version.get("statelog.versions") for version in self.table().history())
        newest = json.loads(next((version for version in versions if version), "{}"))
        return {int(version): checkpoint_id for version, checkpoint_id in newest.items()}

    def readings(self, snapshot: int) -> tuple[pa.Table, pa.Table]:
        table = self.table(snapshot)
        query = deltalake.QueryBuilder().register("t", table)
        rows = pa.table(query.execute("select * from t"))
        paths = [urlparse(unquote(uri)).path for uri in table.file_uris()]
        if not paths:
            return rows, rows
        with duckdb.connect() as connection:
            statement = "select * from read_parquet(?, union_by_name=true)"
            return rows, connection.sql(statement, params=[paths]).to_arrow_table()

    def orphans(self) -> set[str]:
        named = {
            Path(urlparse(unquote(uri)).path).name
            for version in self.snapshots()
            for uri in self.table(version).file_uris()
        }
        return {path.name for path in self.folder.rglob("*.parquet")} - named

    def around_commits(self, patch: pytest.MonkeyPatch, act: Act) -> None:
        commit = deltalake.write_deltalake
        patch.setattr(
            deltalake, "write_deltalake", lambda *given, **more: act(lambda: commit(*given, **more))
        )

    def interfere(self) -> None:
        rows = pa.table(self.table().to_pyarrow_table()).slice(0, 1)
        deltalake.write_deltalake(self.folder, rows, mode="append")


KINDS = {"iceberg": IcebergPublished, "delta": DeltaPublished}


def scanned(table: Table, snapshot_id: int) -> pa.Table:
    return table.scan(snapshot_id=snapshot_id).to_arrow()


def by_duckdb(table: Table, snapshot_id: int) -> pa.Table:
    """Read the files that the metadata names by DuckDB."""
    snapshot = table.snapshot_by_id(snapshot_id)
    data = []
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            assert entry.data_file.content == DataFileContent.DATA
            data.append(urlparse(entry.data_file.file_path).path)
    if not data:
        return table.schemas()[snapshot.schema_id].as_arrow().empty_table()
    with duckdb.connect() as connection:
        schema = table.schemas()[snapshot.schema_id]
        stored = sanitize_column_names(schema)  # engines find a column by its field id
        columns = ", ".join(
            f'"{there.name}" as "{here.name}"'
            for there, here in zip(stored.fields, schema.fields, strict=True)
        )
        statement = f"select {columns} from read_parquet(?, union_by_name=true)"
        return connection.sql(statement, params=[[unquote(path) for path in data]]).to_arrow_table()


def rows_of_table(table: pa.Table, names: Mapping[str, object]) -> dict[str, Rows]:
    """Return the rows of a table in the form of the model; every key has state and one row."""
    assert [*table.column_names] == ["key_group", "key.k", "key.name", *names]
    rows: dict[str, Rows] = {name: {} for name in names}
    numbers = table.column("key.k").to_pylist()
    assert len(numbers) == len(set(numbers)), "a key has one row"
    for row in table.to_pylist():
        number = row["key.k"]
        assert (number, row["key.name"]) == key_of(number)
        assert row["key_group"] == group_of(number)
        assert any(row[name] for name in names), "a key in the table has state"
        for name in names:
            cells = cell_rows(name, row[name])
            if cells:
                rows[name][number] = cells
    return rows


def cell_rows(name: str, cell: Any) -> list[Row]:
    """Return the rows of one cell."""
    if not cell:  # pyiceberg reads a null list as an empty one
        return []
    if name == TIMERS_NAME:
        return [(time, None, None) for time in cell]
    kind = NAMES[name]
    if kind is StateKind.VALUE:
        return [entry_row(None, cell)]
    if kind is StateKind.LIST:
        return [entry_row(at, entry) for at, entry in enumerate(cell)]
    return [entry_row(entry["key"]["u"], entry["value"]) for entry in cell]


def entry_row(place: Any, entry: dict[str, Any]) -> Row:
    value = {name: part for name, part in entry.items() if name != "expires_at_ms"}
    return place, value, entry.get("expires_at_ms")


def pins(published: Published) -> set[int]:
    tags = list_tags(published.history.store)
    return {tag.checkpoint_id for tag in tags if tag.kind is TagKind.READER}


def checkpoints(published: Published) -> set[int]:
    return set(published.snapshots().values())
