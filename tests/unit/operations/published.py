"""A published table next to the model of its location, read by two engines that share no code."""

from __future__ import annotations

import base64
import json
import os
import re
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyroaring import BitMap64
from tests.unit.state.reader.histories import (
    NAMES,
    History,
    Row,
    Rows,
    group_of,
    key_of,
)
from tests.unit.state.reader.test_location_state import live_names

import statelog
from statelog.errors import ObjectExistsError, StoreError
from statelog.operations.publish import PublishReport, TablePublisher
from statelog.operations.publish_iceberg import IcebergTable
from statelog.operations.publish_table import CHECKPOINT
from statelog.state.kinds import StateKind
from statelog.state.schema.descriptors import TIMERS_NAME
from statelog.store import ObstoreStore, open_location

TABLE = "test.jobs.totals"
FOREIGN = b'{"commitInfo":{"operation":"COMMENT"}}\n'
"""A commit to a Delta table that changes nothing."""
Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


class Published:
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
    broken: Exception
    """What a commit raises if the connection is lost."""
    conflict: Exception
    """What a commit raises if another one was faster."""

    def __init__(self, seed: int | str, root: Path, retained: int = 2) -> None:
        self.root = root
        self.location = str(root / "state")
        store = open_location(self.location, fsync=False)
        self.history = History(seed, store, retained)

    def rewind(self, older: int) -> None:
        """Let the query continue an older checkpoint, with the schema and the state of then."""
        self.history.rewind(older, retained=2)
        self.history.checkpoint_id = older

    def publisher(self, retain: int = 4, variables: Any = None) -> TablePublisher:
        return statelog.publisher(self.location, retain=retain, variables=variables, **self.target)

    def publish(self, **more: Any) -> PublishReport:
        return statelog.publish(self.location, **{**self.target, **more})

    def snapshots(self) -> dict[int, int]:
        """Return the checkpoint of each snapshot of the table; none if it does not exist."""
        raise NotImplementedError

    def tags(self) -> dict[str, int]:
        """Return the checkpoint of each tag of the table."""
        raise NotImplementedError

    def readings(self, snapshot: int) -> tuple[pa.Table, pa.Table]:
        """Return a snapshot as two engines read it."""
        raise NotImplementedError

    def data_files(self) -> set[str]:
        """Return the URLs of the data files of the current snapshot."""
        raise NotImplementedError

    def orphans(self) -> set[str]:
        """Return the files of the table that no snapshot names."""
        raise NotImplementedError

    def around_commits(
        self, patch: pytest.MonkeyPatch, act: Callable[[Callable[[], Any]], Any]
    ) -> None:
        """Let *act* run each commit of rows, which is its argument."""
        raise NotImplementedError

    def interfere(self) -> None:
        """Let another process commit before a commit of rows."""

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
        self.broken, self.conflict = OSError("the line broke"), CommitFailedException("again")

    def table(self) -> Table:
        from pyiceberg.catalog import load_catalog

        return load_catalog("test", **self.options).load_table("jobs.totals")

    def snapshots(self) -> dict[int, int]:
        try:
            snapshots = self.table().metadata.snapshots
        except NoSuchTableError:
            return {}
        return {each.snapshot_id: int(each.summary[CHECKPOINT]) for each in snapshots}

    def tags(self) -> dict[str, int]:
        snapshots, refs = self.snapshots(), self.table().metadata.refs
        return {name: snapshots[ref.snapshot_id] for name, ref in refs.items() if name != "main"}

    def readings(self, snapshot: int) -> tuple[pa.Table, pa.Table]:
        table = self.table()
        return scanned(table, snapshot), by_duckdb(table, snapshot)

    def data_files(self) -> set[str]:
        return {file["file_path"] for file in self.table().inspect.files().to_pylist()}

    def orphans(self) -> set[str]:
        table = IcebergTable(TABLE, self.options)
        table.load()
        files = (self.root / "warehouse").rglob("statelog-*")
        return {path.name for path in files} - table._names()

    def around_commits(
        self, patch: pytest.MonkeyPatch, act: Callable[[Callable[[], Any]], Any]
    ) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        commit = SqlCatalog.commit_table
        patch.setattr(SqlCatalog, "commit_table", lambda *given: act(lambda: commit(*given)))


class DeltaPublished(Published):
    """A table in a folder on disk."""

    def __init__(self, seed: int | str, root: Path, retained: int = 2) -> None:
        super().__init__(seed, root, retained)
        self.folder = root / "delta table"
        self.target = {"delta": self.folder}
        self.arguments = ["--delta", str(self.folder)]
        self.broken = StoreError("the line broke", path="", url="", operation="put")
        self.conflict = ObjectExistsError("again", path="", url="", operation="put")

    def log(self, version: int, kind: str) -> Path:
        return self.folder / "_delta_log" / f"{version:020}.{kind}"

    def log_files(self) -> list[Path]:
        return sorted((self.folder / "_delta_log").glob("*.json"))

    def newest(self) -> int:
        return max(int(path.stem) for path in self.log_files())

    def properties(self) -> dict[str, str]:
        return deltalake.DeltaTable(self.folder).metadata().configuration

    def snapshots(self) -> dict[int, int]:
        if not (self.folder / "_delta_log").exists():
            return {}
        versions = json.loads(self.properties().get("statelog.checkpoints", "{}"))
        return {version: int(checkpoint_id) for checkpoint_id, version in versions.items()}

    def tags(self) -> dict[str, int]:
        snapshots = self.snapshots()
        versions = json.loads(self.properties()["statelog.tags"])
        return {name: snapshots[version] for name, version in versions.items()}

    def readings(self, snapshot: int) -> tuple[pa.Table, pa.Table]:
        table = deltalake.DeltaTable(self.folder, version=snapshot)
        assert self.snapshots()[snapshot] == table.transaction_version("statelog")
        query = deltalake.QueryBuilder().register("t", table)
        rows = pa.table(query.execute("select * from t"))
        (count,) = pa.table(query.execute("select count(*) n from t")).column("n").to_pylist()
        assert rows.num_rows == count
        return rows, self.by_duckdb(snapshot)

    def actions(self, version: int) -> dict[str, list[dict[str, Any]]]:
        """Return the actions of a version's checkpoint by kind, without a library for Delta."""
        rows = pq.read_table(self.log(version, "checkpoint.parquet")).to_pylist()
        kinds = {kind for row in rows for kind in row}
        return {kind: [row[kind] for row in rows if row[kind]] for kind in kinds}

    def by_duckdb(self, version: int) -> pa.Table:
        """Read the files of a version by DuckDB, without the rows in their deletion vectors."""
        actions = self.actions(version)
        schema = json.loads(actions["metaData"][0]["schemaString"])
        columns = ", ".join(f'"{field["name"]}"' for field in schema["fields"])
        deleted = pa.table({"path": pa.array([], pa.string()), "row": pa.array([], pa.int64())})
        paths = []
        for add in actions["add"]:
            paths.append(str(self.path(add)))
            if add["deletionVector"]:
                rows = self.vector(add["deletionVector"])
                part = pa.table(
                    {"path": [paths[-1]] * len(rows), "row": pa.array(rows, pa.int64())}
                )
                deleted = pa.concat_tables([deleted, part])
        statement = (
            f"select {columns} from read_parquet(?, union_by_name=true, filename=true, "
            "file_row_number=true) f anti join deleted d on d.path = f.filename and d.row = f.file_row_number"
        )
        with duckdb.connect() as connection:
            connection.register("deleted", deleted)
            if not paths:
                schema = deltalake.DeltaTable(self.folder, version=version).schema()
                return pa.schema(schema.to_arrow()).empty_table()
            return connection.sql(statement, params=[paths]).to_arrow_table()

    def path(self, add: dict[str, Any]) -> Path:
        """Return the file of an action, which is relative to the table."""
        return Path(os.path.normpath(self.folder / unquote(add["path"])))

    def vector_file(self, stored: dict[str, Any]) -> Path:
        """Return the file of a deletion vector."""
        folder, encoded = stored["pathOrInlineDv"][:-20], stored["pathOrInlineDv"][-20:]
        number = base64.b85decode(encoded.encode().translate(bytes.maketrans(Z85, B85)))
        return self.folder / folder / f"deletion_vector_{uuid.UUID(bytes=number)}.bin"

    def vector(self, stored: dict[str, Any]) -> list[int]:
        """Return the rows in a deletion vector."""
        data = self.vector_file(stored).read_bytes()[stored["offset"] :]
        size = int.from_bytes(data[:4], "big")
        assert size == stored["sizeInBytes"]
        assert int.from_bytes(data[4 + size : 8 + size], "big") == zlib.crc32(data[4 : 4 + size])
        rows = list(BitMap64.deserialize(data[8 : 4 + size]))
        assert stored["cardinality"] == len(rows)
        return rows

    def data_files(self) -> set[str]:
        return {f"file://{self.path(add)}" for add in self.actions(self.newest())["add"]}

    def orphans(self) -> set[str]:
        named = {self.log(self.newest() - 1, "json")}
        for version in {*self.snapshots(), self.newest()}:
            named |= {self.log(version, kind) for kind in ("json", "checkpoint.parquet")}
            for add in self.actions(version)["add"]:
                named.add(self.path(add))
                if add["deletionVector"]:
                    named.add(self.vector_file(add["deletionVector"]))
        files = {path for path in self.folder.rglob("*") if path.is_file()}
        return {path.name for path in files - named}

    def around_commits(
        self, patch: pytest.MonkeyPatch, act: Callable[[Callable[[], Any]], Any]
    ) -> None:
        put = ObstoreStore.put_if_absent

        def counted(store: ObstoreStore, path: str, data: Any) -> Any:
            if re.fullmatch(r"_delta_log/\d*[1-9]\d*\.json", path) and bytes(data) != FOREIGN:
                return act(lambda: put(store, path, data))
            return put(store, path, data)

        patch.setattr(ObstoreStore, "put_if_absent", counted)

    def interfere(self) -> None:
        self.log(self.newest() + 1, "json").write_bytes(FOREIGN)


KINDS = {"iceberg": IcebergPublished, "delta": DeltaPublished}


def scanned(table: Table, snapshot_id: int) -> pa.Table:
    return table.scan(snapshot_id=snapshot_id).to_arrow()


def by_duckdb(table: Table, snapshot_id: int) -> pa.Table:
    """Read the files that the metadata names by DuckDB, without the positions that are deleted."""
    snapshot = table.snapshot_by_id(snapshot_id)
    data, deletes = [], []
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            is_data = entry.data_file.content == DataFileContent.DATA
            (data if is_data else deletes).append(urlparse(entry.data_file.file_path).path)
    columns = ", ".join(f'"{field.name}"' for field in table.schemas()[snapshot.schema_id].fields)
    if not data:
        return table.schemas()[snapshot.schema_id].as_arrow().empty_table()
    statement = f"select {columns} from read_parquet(?, union_by_name=true, filename=true, file_row_number=true) f"
    arguments: list[Any] = [data]
    if deletes:
        statement += (
            " anti join read_parquet(?) d on d.file_path = 'file://' || f.filename"
            " and d.pos = f.file_row_number"
        )
        arguments.append(deletes)
    with duckdb.connect() as connection:
        return connection.sql(statement, params=arguments).to_arrow_table()


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
