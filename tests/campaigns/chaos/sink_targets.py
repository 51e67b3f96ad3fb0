"""
What the target of each sink has, read without statelog and, but for the last check, without Spark.

Files are those that the log of Spark's streaming file sink names: the reader here follows the rules
of `_spark_metadata` by itself, so that it and Spark's own reader check one another.
"""

import contextlib
import csv
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
from tests.campaigns.chaos.sink_places import BATCHES, catalog_of, connection_of, table_of, topic_of
from tests.support.servers.kafka_reader import committed_records

Rows = Counter[tuple[int, int, int]]
"""Key, total and rows of each output row, and how often the target has it."""

COLUMNS = ("key", "total", "rows")


def numbers(folder: Path) -> list[int]:
    """Return the numbers that name the files of a log of Spark, without leftovers of its writers."""
    names = (path.name.removesuffix(".compact") for path in folder.glob("[0-9]*"))
    return sorted(int(name) for name in names)


@dataclass(frozen=True)
class Target:
    """
    The target of one query.

    Args:
        sink: Name of the sink: a format of files, "table", "delta", or one of `TRANSACTIONAL`.
        query: The query's checkpointLocation.
        place: The folder, or file, that has the rows.
        servers: Addresses by sink.
    """

    sink: str
    query: Path
    place: Path
    servers: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.query.parent.name

    def planned(self) -> int:
        """Return the newest micro-batch that Spark planned; -1 without one."""
        return max(numbers(self.query / "offsets"), default=-1)

    def files_read(self) -> dict[int, int]:
        """Return the newest input file of each micro-batch that Spark's log of offsets still has."""
        newest_files = {}
        for batch in numbers(self.query / "offsets"):
            lines = (self.query / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
            newest_files[batch] = int(json.loads(lines[-1])["logOffset"])
        return newest_files

    def newest_file(self) -> int:
        """Return the newest input file that Spark's source of files took; -1 without one."""
        return max(numbers(self.query / "sources" / "0"), default=-1)

    def finished(self) -> int:
        """Return the newest micro-batch whose end Spark recorded; -1 without one."""
        return max(numbers(self.query / "commits"), default=-1)

    def delivered(self) -> int:
        """Return the newest micro-batch that the target has by its own record; -1 without one."""
        metadata = self.query / "metadata"
        if not metadata.exists():
            return -1
        query_id = json.loads(metadata.read_text(encoding="utf-8"))["id"]
        record = self._record(query_id)
        return -1 if record is None else int(record.split("/")[2])

    def _record(self, query_id: str) -> str | None:
        """Return the target's record of a query: `location/timeline/batch/plan`."""
        if self.sink in ("sqlite", "postgres"):
            records = self._select(f"select batch from {BATCHES} where writer = '{query_id}'")
            return records[0][0] if records else None
        if self.sink == "iceberg":
            table = self._iceberg()
            return None if table is None else table.properties[f"statelog.batch.{query_id}"]
        if self.sink == "kafka":  # Tansu does not store the metadata of offsets
            offset = self._committed_offset(f"statelog-{query_id}")
            return None if offset is None else f"/{offset >> 32}/{offset & 0xFFFFFFFF}/"
        if self.sink == "delta":
            table = self._delta()
            return None if table is None else table.history(1)[0]["userMetadata"]
        entry = max(numbers(self.place / "_spark_metadata"), default=None)
        if entry is None:
            return None
        record = json.loads((self.place / "_statelog" / str(entry)).read_text(encoding="utf-8"))
        assert record["writer"] == query_id
        return str(record["batch"])

    def rows(self) -> Rows:
        if self.sink in ("sqlite", "postgres"):
            table = table_of(self.name, self.sink)
            return Counter(self._select(f"select key, total, rows from {table}"))
        if self.sink == "kafka":
            records = committed_records(self.servers["kafka"], topic_of(self.name))
            rows = (json.loads(value) for _, value in records)
            return Counter(tuple(row[name] for name in COLUMNS) for row in rows)
        if self.sink in ("delta", "iceberg"):
            table = self._delta() if self.sink == "delta" else self._iceberg()
            read = [] if table is None else self._arrow(table).to_pylist()
            return Counter(tuple(row[name] for name in COLUMNS) for row in read)
        return Counter(row for path in self._logged_files() for row in self._rows_of(path))

    def leftovers(self) -> int:
        """Return how many files of rows a target of files has in no entry of its log."""
        logged = set(self._logged_files())
        written = (path for path in self.place.rglob("part-*") if path.is_file())
        return len([path for path in written if path not in logged])

    def _logged_files(self) -> list[Path]:
        log = self.place / "_spark_metadata"
        entries = numbers(log)
        compact = max((n for n in entries if (log / f"{n}.compact").exists()), default=None)
        first = 0 if compact is None else compact + 1
        names = [] if compact is None else [f"{compact}.compact"]
        if entries:  # without a gap, or Spark's readers would fail
            names += [str(n) for n in range(first, entries[-1] + 1)]
        files = []
        for name in names:
            version, *lines = (log / name).read_text(encoding="utf-8").splitlines()
            assert version == "v1"
            for line in lines:
                status = json.loads(line)
                assert (status["action"], status["isDir"]) == ("add", False)
                path = Path(unquote(urlparse(status["path"]).path))
                assert path.stat().st_size == status["size"], f"{path} is cut short"
                files.append(path)
        assert len(files) == len(set(files)), "the log has a file twice"
        return files

    def _rows_of(self, path: Path) -> Iterator[tuple[int, int, int]]:
        rows: list[dict[str, Any]]
        if path.name.endswith(".parquet"):
            rows = pq.ParquetFile(path).read().to_pylist()
        elif path.suffix == ".json":
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        else:
            with open(path, newline="", encoding="utf-8") as file:
                rows = [dict(zip(COLUMNS[1:], line, strict=True)) for line in csv.reader(file)]
        name, _, value = path.parent.name.partition("=")
        for row in rows:
            whole = {**row, name: value} if value else row
            key, total, count = (int(whole[column]) for column in COLUMNS)
            yield key, total, count

    def _select(self, query: str) -> list[Any]:
        if self.sink == "sqlite" and not self.place.exists():
            return []
        connect = connection_of(self.sink, self.place, self.servers)
        with contextlib.closing(connect()) as database:
            try:
                cursor = database.cursor()
                cursor.execute(query)
                return list(cursor.fetchall())
            except Exception as error:  # killed before it was made
                assert "no such table" in str(error) or "does not exist" in str(error)
                return []

    def _iceberg(self) -> Any:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        with load_catalog("chaos", **catalog_of(self.query.parents[1])) as catalog:
            try:
                table = catalog.load_table(table_of(self.name))
            except NoSuchTableError:
                return None
        return table if table.metadata.snapshots else None

    def _arrow(self, table: Any) -> Any:
        return table.to_pyarrow_table() if self.sink == "delta" else table.scan().to_arrow()

    def _committed_offset(self, group: str) -> int | None:
        from confluent_kafka import Consumer, TopicPartition

        config = {"bootstrap.servers": self.servers["kafka"], "group.id": group}
        consumer = Consumer(config)
        try:
            (place,) = consumer.committed([TopicPartition(topic_of(self.name), 0)], 30)
            assert place.error is None, place.error
            return int(place.offset) if place.offset >= 0 else None
        finally:
            consumer.close()

    def _delta(self) -> Any:
        from deltalake import DeltaTable

        place = str(self.place)
        return DeltaTable(place) if DeltaTable.is_deltatable(place) else None
