"""A published table next to the model of its location, read by two engines that share no code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import duckdb
import pyarrow as pa
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
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
from statelog.operations.publish import PublishReport, TablePublisher
from statelog.operations.publish_commit import CHECKPOINT
from statelog.state.kinds import StateKind
from statelog.state.schema.descriptors import TIMERS_NAME
from statelog.store import open_location

TABLE = "test.jobs.totals"


class Published:
    """
    A history on disk, and a table of it in a catalog on disk.

    Args:
        seed: As for `History`.
        root: An empty folder.
        retained: Checkpoints that the query retains.
    """

    def __init__(self, seed: int | str, root: Path, retained: int = 2) -> None:
        self.root = root
        self.location = str(root / "state")
        store = open_location(self.location, fsync=False)
        self.history = History(seed, store, retained)
        self.options = {
            "type": "sql",
            "uri": f"sqlite:///{root}/catalog.db",
            "warehouse": f"file://{root}/warehouse",
        }

    def rewind(self, older: int) -> None:
        """Let the query continue an older checkpoint, with the schema and the state of then."""
        self.history.rewind(older, retained=2)
        self.history.checkpoint_id = older

    def publisher(self, retain: int = 4, variables: Any = None) -> TablePublisher:
        return statelog.publisher(
            self.location,
            iceberg=TABLE,
            retain=retain,
            variables=variables,
            catalog_options=self.options,
        )

    def publish(self, **more: Any) -> PublishReport:
        return statelog.publish(self.location, iceberg=TABLE, catalog_options=self.options, **more)

    def table(self) -> Table:
        from pyiceberg.catalog import load_catalog

        return load_catalog("test", **self.options).load_table("jobs.totals")

    def check(self, variables: list[str] | None = None) -> int:
        """Compare every snapshot of the table with the model; return how many rows there are."""
        table = self.table()
        count = 0
        for snapshot in table.metadata.snapshots:
            checkpoint_id = int(snapshot.summary.additional_properties[CHECKPOINT])
            expected = self.expected(checkpoint_id, variables)
            for rows in (
                scanned(table, snapshot.snapshot_id),
                by_duckdb(table, snapshot.snapshot_id),
            ):
                assert expected == rows_of_table(rows, expected)
            count += sum(len(rows) for rows in expected.values())
        return count

    def expected(self, checkpoint_id: int, variables: list[str] | None) -> dict[str, Rows]:
        model = self.history.expected[checkpoint_id]
        now_ms = self.history.taken_at_ms[checkpoint_id]
        names = [name for name in live_names(model) if variables is None or name in variables]
        return {name: model.rows(name, now_ms) for name in names}


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
