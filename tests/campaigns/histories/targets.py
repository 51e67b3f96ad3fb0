"""Sinks of random courses: what a driver delivers to, and which rows are stored there."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import pyarrow as pa
from tests.support.servers.kafka_stand_in import Broker, Consumer, Producer

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError
from statelog.extensions.sinks import kafka
from statelog.spark import DatabaseSink, KafkaSink
from statelog.spark.stream.sinks import delta, file_sink
from statelog.spark.stream.sinks.delta import DeltaSink, Transaction
from statelog.spark.stream.sinks.exactly_once_sink import ExactlyOnce, ExactlyOnceSink, SinkBatch
from statelog.spark.stream.sinks.file_sink import LOG, FileEntries, FilePlace, FileSink
from statelog.spark.stream.sinks.simple import Target as Place

ROWS = 3
COLUMNS = pa.schema([("key", pa.string()), ("value", pa.string())])


def keys_of(plan: str) -> list[str]:
    """Return the keys of the rows of a micro-batch, which its input decides."""
    return [f"{plan}-{number}" for number in range(ROWS)]


def rows_of_plan(plan: str, place: str) -> pa.Table:
    """Return the rows of a micro-batch; *place* says which query and number wrote them."""
    return pa.table({"key": keys_of(plan), "value": [place] * ROWS}, schema=COLUMNS)


class Writer(Protocol):
    """A target as one driver writes to it."""

    def deliver(self, writer: str, batch: DeliveredBatch) -> None:
        """Write the rows of a micro-batch, unless the target has it."""

    def close(self) -> None: ...


class Target:
    """A target of a course."""

    def __init__(
        self, open_writer: Callable[[str, int], Writer], stored: Callable[[], list[str]]
    ) -> None:
        self.open_writer, self.stored = open_writer, stored
        self.delivered: set[str] = set()
        """Plans whose delivery was answered with success."""
        self.timelines: dict[tuple[str, str], int] = {}
        """The latest timeline of a driver whose micro-batch was written, by query and location."""

    def counts(self, opened: Writer) -> bool:
        """Return whether what a driver writes is in the target, and not in one that the operator left."""
        return True

    def answered(self, writer: str, batch: DeliveredBatch) -> bool:
        """
        Note a delivery without an error; return False if the target skipped a micro-batch that was given up.

        No driver of a later timeline has written before.  A sink may leave unchanged what it has, without
        an error.
        """
        timeline = batch.recorded.timeline
        key = writer, batch.location_id
        latest = self.timelines.get(key, -1)
        is_stored = keys_of(batch.plan)[0] in self.stored()
        is_new = batch.plan not in self.delivered and is_stored
        assert not is_new or timeline >= latest, "a micro-batch that was given up was written"
        self.timelines[key] = max(latest, timeline)
        if timeline < latest and not is_stored:
            return False
        self.delivered.add(batch.plan)
        return True

    def refused(self, writer: str, error: CheckpointError) -> None:
        """Let the operator act on a refusal of the newest driver."""


class ExactlyOnceWriter:
    """A sink of `exactly_once`, without a frame."""

    def __init__(self, sink: ExactlyOnceSink) -> None:
        self._function = ExactlyOnce(sink)

    def deliver(self, writer: str, batch: DeliveredBatch) -> None:
        if not self._function.has(writer, batch):
            rows = rows_of_plan(batch.plan, f"{writer} {batch.batch_id}")
            self._function.write(SinkBatch(writer, batch, rows))

    def close(self) -> None:
        self._function.close()


def _exactly_once(make: Callable[[], ExactlyOnceSink], stored: Callable[[], list[str]]) -> Target:
    return Target(lambda writer, planned: ExactlyOnceWriter(make()), stored)


def sqlite_target(folder: Path) -> Target:
    path = folder / "rows.db"
    with sqlite3.connect(path) as database:
        database.execute("create table rows (key text, value text)")
    connect = functools.partial(sqlite3.connect, path, check_same_thread=False)

    def stored() -> list[str]:
        with sqlite3.connect(path) as reader:
            return [key for (key,) in reader.execute("select key from rows")]

    return _exactly_once(lambda: DatabaseSink(connect, "rows"), stored)


def iceberg_target(folder: Path) -> Target:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    from statelog.extensions.sinks.iceberg import IcebergSink

    properties = {
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    catalog = load_catalog("courses", **properties)
    catalog.create_namespace("rows")

    def stored() -> list[str]:
        try:
            table = catalog.load_table("rows.rows")
        except NoSuchTableError:
            return []
        return table.scan(selected_fields=("key",)).to_arrow().column("key").to_pylist()

    return _exactly_once(
        lambda: IcebergSink("rows.rows", catalog="courses", catalog_options=properties), stored
    )


def kafka_target() -> Target:
    broker = Broker.newest = Broker()

    def stored() -> list[str]:
        return [key for key, _ in broker.records]

    return _exactly_once(lambda: KafkaSink("rows", {"bootstrap.servers": "broker"}), stored)


# --- sinks that are called with a frame -----------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """Stands for a frame of Spark: the rows of a micro-batch and the properties of its thread."""

    writer: str
    batch: DeliveredBatch
    sparkSession: Any = None

    @property
    def rows(self) -> pa.Table:
        return rows_of_plan(self.batch.plan, f"{self.writer} {self.batch.batch_id}")


MakeFrame = Callable[[str, DeliveredBatch], Any]
Sink = Callable[[Any, int], object]


class FrameWriter:
    """A sink that is called with a frame, as `foreachBatch` calls it."""

    def __init__(self, make_frame: MakeFrame, sink: Sink, place: str = "") -> None:
        self._make_frame, self._sink, self.place = make_frame, sink, place

    def deliver(self, writer: str, batch: DeliveredBatch) -> None:
        self._sink(self._make_frame(writer, batch), batch.batch_id)

    def close(self) -> None: ...


class RefusingWriter:
    """A sink that was refused when the query started."""

    def __init__(self, error: CheckpointError) -> None:
        self._error = error

    def deliver(self, writer: str, batch: DeliveredBatch) -> None:
        raise self._error

    def close(self) -> None: ...


class FilesTarget(Target):
    """
    Folders of Spark's streaming file sink.

    After a refusal because of a gap the operator acts every other time as the error says: the query writes
    to a new folder, and the rows before the gap are taken from the old one.
    """

    def __init__(
        self,
        folder: Path,
        make_frame: MakeFrame = Frame,
        session: Any = None,
        read: Callable[[Path], list[tuple[str, str]]] | None = None,
    ) -> None:
        super().__init__(self._open, self._keys)
        self._root, self._make_frame, self._session = folder, make_frame, session
        self._read = rows_in_log if read is None else read
        self._ended: list[tuple[Path, str, int]] = []
        """Folders before, each with the query that met a gap there, and the number of the gap."""
        self._gaps = 0

    @property
    def _folder(self) -> Path:
        return self._root / f"folder {len(self._ended)}"

    def counts(self, opened: Writer) -> bool:
        return isinstance(opened, FrameWriter) and opened.place == str(self._folder)

    def _open(self, writer: str, planned: int) -> Writer:
        from pyspark.sql.types import StringType, StructField, StructType

        path = str(self._folder)
        entries = FileEntries(self._session, path, planned)
        try:
            entries.check(writer)
        except CheckpointError as error:
            return RefusingWriter(error)
        schema = StructType([StructField(name, StringType()) for name in COLUMNS.names])
        place = FilePlace(path=path, source="parquet", schema=schema, options={})
        return FrameWriter(self._make_frame, FileSink(self._session, place, entries), path)

    def _keys(self) -> list[str]:
        rows: list[str] = []
        for folder, writer, gap in self._ended:
            for key, value in self._read(folder):
                query, _, batch_id = value.partition(" ")
                if query != writer or int(batch_id) < gap:
                    rows.append(key)
        return rows + [key for key, _ in self._read(self._folder)]

    def answered(self, writer: str, batch: DeliveredBatch) -> bool:
        """Note a delivery; a query that went back further begins the rows of its folder earlier."""
        if any(writer == query and batch.batch_id < gap for _, query, gap in self._ended):
            self._ended = [
                (folder, query, min(gap, batch.batch_id) if query == writer else gap)
                for folder, query, gap in self._ended
            ]
            self.delivered &= {key.rpartition("-")[0] for key in self._keys()}
        return super().answered(writer, batch)

    def refused(self, writer: str, error: CheckpointError) -> None:
        if error.reason != "gap" or error.batch_id is None:
            return
        self._gaps += 1
        if self._gaps % 2:
            self._ended.append((self._folder, writer, error.batch_id))
            self.timelines.clear()  # the new folder is empty
            self.delivered &= {key.rpartition("-")[0] for key in self._keys()}


class LocalFolder:
    """Stands for `HadoopFolder` and the files of a folder as Spark sees them."""

    def __init__(self, session: object, location: str) -> None:
        self._root = Path(location)
        self.url = location

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        path = self._root / name
        return path.read_bytes() if path.exists() else None

    def names(self, folder: str = "") -> Sequence[str]:
        path = self._root / folder
        return [child.name for child in path.iterdir()] if path.exists() else []

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def put(self, folder: str, name: str, text: str, *, overwrite: bool) -> None:
        path = self._root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not overwrite:
            raise FileExistsError(path)
        path.write_text(text)


class LoggedFiles:
    """Stands for Spark's `FileStreamSink`: an entry of the log has its rows, and a repeated entry is skipped."""

    def __init__(
        self, session: object, source: str, schema: object, partitions: object, options: Any
    ) -> None:
        self._log = Path(options["path"]) / LOG

    def add(self, entry: int, frame: Frame) -> None:
        self._log.mkdir(parents=True, exist_ok=True)
        if entry > max((int(path.name) for path in self._log.iterdir()), default=-1):
            (self._log / str(entry)).write_text(json.dumps(frame.rows.to_pylist()))


def rows_in_log(folder: Path) -> list[tuple[str, str]]:
    """Return keys and values of the entries of a folder; Spark's readers fail if an entry is missing."""
    log = folder / LOG
    numbers = sorted(int(path.name) for path in log.iterdir()) if log.exists() else []
    assert numbers == [*range(len(numbers))], f"the log of {folder} has gaps: {numbers}"
    rows = [row for number in numbers for row in json.loads((log / str(number)).read_text())]
    return [(row["key"], row["value"]) for row in rows]


def delta_target(
    folder: Path, make_frame: MakeFrame = Frame, stored: Callable[[Path], list[str]] | None = None
) -> Target:
    """Return a Delta table, or a stand-in: a folder with a log of commits in JSON."""
    place = Place(source="delta").with_option("path", str(folder))
    read = DeltaLog.keys if stored is None else stored
    return Target(
        lambda writer, planned: FrameWriter(make_frame, DeltaSink(place)), lambda: read(folder)
    )


class DeltaLog:
    """A table that is a log of commits; each has its rows, and the transaction as Delta stores it."""

    @staticmethod
    def commits(folder: Path) -> list[dict[str, Any]]:
        log = folder / "_delta_log"
        paths = sorted(log.iterdir()) if log.exists() else []
        return [json.loads(path.read_text()) for path in paths]

    @classmethod
    def keys(cls, folder: Path) -> list[str]:
        return [row["key"] for commit in cls.commits(folder) for row in commit["rows"]]

    @classmethod
    def transactions(cls, session: object, folder: str) -> Iterable[Transaction]:
        newest = {commit["application"]: commit for commit in cls.commits(Path(folder))}
        return tuple(
            Transaction(name, commit["version"], commit["text"]) for name, commit in newest.items()
        )

    @classmethod
    def append(cls, frame: Frame, place: Place, options: Mapping[str, Any]) -> None:
        """Append rows; skip, as Delta does, a transaction that is not newer than that of its application."""
        folder = Path(options["path"])
        commits = cls.commits(folder)
        name, version = options["txnAppId"], options["txnVersion"]
        if any(
            commit["application"] == name and commit["version"] >= version for commit in commits
        ):
            return
        commit = {
            "application": name,
            "version": version,
            "text": options["userMetadata"],
            "rows": frame.rows.to_pylist(),
        }
        log = folder / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        (log / f"{len(commits):020}.json").write_text(json.dumps(commit))


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Let the sinks use the stand-ins of Kafka, Spark's files and Delta."""
    frames: dict[str, Any] = {
        "delivered_batch": lambda frame, batch_id: frame.batch,
        "query_name": lambda frame: frame.writer,
    }
    with (
        mock.patch.multiple(kafka, Producer=Producer, Consumer=Consumer),
        mock.patch.multiple(
            file_sink,
            HadoopFolder=LocalFolder,
            checkpoint_files=LocalFolder,
            FileStreamSink=LoggedFiles,
            **frames,
        ),
        mock.patch.multiple(
            delta, append=DeltaLog.append, transactions=DeltaLog.transactions, **frames
        ),
    ):
        yield
