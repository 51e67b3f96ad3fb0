"""The writer of a stateful stream takes what Spark's takes, and refuses what Spark's refuses."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkAttributeError,
    PySparkValueError,
    StreamingQueryException,
)
from pyspark.sql import Row
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.locations.sequence_entries import committed
from tests.support.spark.processors import INPUT, TOTALS, Totals
from tests.support.spark.streams import BatchSource, configured, in_order, until, wait

from statelog.checkpoint.history import Entries
from statelog.errors import CheckpointError, InvalidOptionsError, UsageError
from statelog.spark import StatefulStreamWriter, transform_with_state
from statelog.spark.jvm.gateway import streaming_class, with_setting
from statelog.spark.jvm.queries import LOCAL_LOGS, LOG_FILES
from statelog.store import open_store

ROWS = [(1, 5), (2, 7), (3, 9)]
DUE = [(1, 5, 1), (2, 7, 1), (3, 9, 1)]


class Rows:
    """A writer of rows that notes its calls in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.seen: list[Any] = ["open", epoch_id]
        self.file = self.folder / f"{partition_id}-{epoch_id}-{os.getpid()}"
        return True

    def process(self, row):
        self.seen.append(row.asDict())

    def close(self, error):
        self.file.write_text(json.dumps([*self.seen, repr(error)]))


@pytest.fixture
def writer_of(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add(ROWS)
    grouped = source.frame().groupBy("key")

    def make(name: str | None = None, **settings: Any) -> StatefulStreamWriter:
        out = transform_with_state(grouped, Totals(), TOTALS, tasks=2, **settings)
        writer = out.writeStream.trigger(availableNow=True)
        if name is not None:
            writer = writer.option("checkpointLocation", str(tmp_path / name))
        assert isinstance(writer, StatefulStreamWriter)
        return writer

    return make


def finished(query: StreamingQuery) -> None:
    wait(query)
    assert query.exception() is None


def log_files_of(query: StreamingQuery) -> str:
    """Return the class with which Spark writes the logs of a query."""
    log = query._jsq.streamingQuery().offsetLog()
    return str(log.fileManager().getClass().getSimpleName())


def test_spark_writes_its_logs_on_local_disk_without_processes(spark, writer_of):
    query = writer_of("a").format("noop").start()
    assert LOCAL_LOGS == log_files_of(query)
    finished(query)
    assert spark.conf.get(LOG_FILES, None) is None

    chosen = "FileContextBasedCheckpointFileManager"
    with with_setting(spark, LOG_FILES, streaming_class(spark, chosen, "checkpointing")._fqn):
        query = writer_of("b").format("noop").start()
        assert chosen == log_files_of(query)
        finished(query)


def test_rows_reach_every_kind_of_sink(spark, tmp_path, writer_of, capsys):
    files = str(tmp_path / "files")
    writer = writer_of("a").partitionBy(["key"]).option("COMPRESSION", "gzip").option("Path", files)
    finished(writer.start(format="json", queryName="files"))
    assert {"key=1", "key=2", "key=3"} <= set(os.listdir(files))
    assert 3 == len(list((tmp_path / "files").glob("*/*.json.gz")))
    assert DUE == in_order(spark.read.json(files).select("key", "total", "rows").collect())

    finished(
        writer_of("c").toTable("written", format="orc", outputMode="append", partitionBy="key")
    )
    table = spark.table("written")
    assert DUE == in_order(table.select("key", "total", "rows").collect())
    detail = {row.col_name: row.data_type for row in spark.sql("DESC EXTENDED written").collect()}
    assert "orc" == detail["Provider"].lower()

    finished(writer_of("d").format("memory").queryName("remembered").start())
    assert DUE == in_order(spark.table("remembered").collect())
    finished(writer_of("e").format("console").option("numRows", 1).start())
    assert "only showing top 1 row" in capsys.readouterr().out

    for delivery in ("staged", "direct"):
        folder = tmp_path / f"rows-{delivery}"
        folder.mkdir()
        finished(writer_of(f"f-{delivery}", delivery=delivery).foreach(Rows(folder)).start())
        calls = [json.loads(path.read_text()) for path in folder.iterdir()]
        assert {("open", 0, "None")} == {(call[0], call[1], call[-1]) for call in calls}
        seen = [tuple(row.values()) for call in calls for row in call[2:-1]]
        assert DUE == sorted(seen)


def test_the_checkpoint_is_found_as_spark_finds_it(spark, tmp_path, writer_of):
    with pytest.raises(UsageError, match=r"needs \.option\('checkpointLocation'"):
        writer_of().format("parquet").start(str(tmp_path / "files"))
    with pytest.raises(UsageError, match=r"needs \.option\('checkpointLocation'"):
        writer_of().toTable("never")
    with configured(spark, {"spark.sql.streaming.checkpointLocation": str(tmp_path / "all")}):
        finished(writer_of().format("noop").queryName("mine").start())
        finished(writer_of().format("noop").start())
    assert committed(tmp_path / "all" / "mine" / "statelog")
    assert 2 == len(list((tmp_path / "all").iterdir()))


def checkpoint_of(query: StreamingQuery) -> Path:
    """The folder of a query, as Spark knows it."""
    root: str = query._jsq.streamingQuery().resolvedCheckpointRoot()
    return Path(root.removeprefix("file:"))


@pytest.mark.parametrize("sink", ["noop", "foreach", "foreachBatch"])
def test_a_query_for_once_gets_a_temporary_checkpoint_as_on_spark(spark, writer_of, tmp_path, sink):
    seen: list[Path] = []

    def look(frame: Any, batch_id: int) -> None:
        seen.extend(checkpoint_of(query) for query in spark.streams.active)
        assert committed(seen[-1] / "statelog")
        assert 3 == frame.count()

    # The setting is for lasting queries.
    with configured(spark, {"spark.statelog.baseLocation": str(tmp_path / "base")}):
        writer = writer_of().queryName(f"once_{sink}")
        if sink == "foreachBatch":
            query = writer.foreachBatch(look).start()
        elif sink == "foreach":
            query = writer.foreach(lambda row: None).start()
        else:
            query = writer.format(sink).start()
    folder = checkpoint_of(query)
    finished(query)
    assert "temporary-" in folder.name
    until(lambda: not folder.exists(), "the end of the temporary folder")
    assert (sink == "foreachBatch") == bool(seen)
    assert not (tmp_path / "base").exists()


@pytest.mark.parametrize("force", ["false", "true"])
def test_a_temporary_checkpoint_outlives_a_failure(spark, writer_of, force):
    def fail(frame: Any, batch_id: int) -> None:
        raise OSError("no room")

    with configured(spark, {"spark.sql.streaming.forceDeleteTempCheckpointLocation": force}):
        query = writer_of().foreachBatch(fail).start()
    folder = checkpoint_of(query)
    with pytest.raises(StreamingQueryException, match="no room"):
        wait(query)
    if force == "true":
        until(lambda: not folder.exists(), "the end of the temporary folder")
    else:
        time.sleep(0.5)
        assert folder.exists()
        shutil.rmtree(folder)


def test_foreign_state_is_refused(spark, tmp_path, writer_of):
    state = {"statelog.stateLocation": str(tmp_path / "state")}
    finished(writer_of("a").options(**state).format("noop").start())
    for other in (writer_of("b"), writer_of()):
        with pytest.raises(CheckpointError, match=r"of query .*, not of this query \(which is new"):
            other.options(**state).format("noop").start()
    assert [] == spark.streams.active
    finished(writer_of("a").options(**state).format("noop").start())  # nothing was taken over


def test_wrong_calls_are_refused_at_once(writer_of, tmp_path):
    def noop(option: str, value: int) -> StreamingQuery:
        return writer_of("m").format("noop").option(option, value).start()

    for wrong, error, message in (
        (lambda: writer_of().outputMode("Complete"), UsageError, "streaming aggregation"),
        (lambda: writer_of().outputMode("some"), UsageError, "append or update; got 'some'"),
        (lambda: writer_of().trigger(), PySparkValueError, "ONLY_ALLOW_SINGLE_TRIGGER"),
        (lambda: writer_of().trigger(once=True, availableNow=True), PySparkValueError, "SINGLE"),
        (lambda: writer_of().trigger(availableNow=False), PySparkValueError, "VALUE_NOT_(ALLO|TR)"),
        (lambda: writer_of().trigger(processingTime="soon"), IllegalArgumentException, "soon"),
        (lambda: writer_of().trigger(processingTime=5), PySparkValueError, "NON_EMPTY_STR"),
        (lambda: writer_of().trigger(continuous="1 s"), UsageError, "does not run micro-batches"),
        (lambda: writer_of().trigger(realTime="1 min"), UsageError, "does not run micro-batches"),
        (lambda: writer_of().trigger(sometimes=True), TypeError, "sometimes"),
        (lambda: writer_of().queryName(" "), PySparkValueError, "NON_EMPTY_STR"),
        (lambda: writer_of().format(""), PySparkValueError, "NON_EMPTY_STR"),
        (lambda: writer_of().foreach(3), PySparkAttributeError, "process"),
        (lambda: writer_of().foreachBatch(3), UsageError, "requires a function"),
        (lambda: writer_of("m").format("memory").start(), UsageError, "requires a queryName"),
        (lambda: writer_of("m").start(), UsageError, "parquet requires a path"),
        (lambda: writer_of("m").format("nonsense").start(), UsageError, "DATA_SOURCE_NOT_FOUND"),
        (lambda: writer_of("m").toTable("x", format="nonsense"), UsageError, "data source: nonsen"),
        (lambda: writer_of("m").format("rate").start(), UsageError, "rate is read-only"),
        (lambda: writer_of("m").format("kafka").start(), AnalysisException, "kafka.*deploy"),
        (lambda: writer_of("m").partitionBy("kay").start("x"), UsageError, "columns are key, to"),
        (lambda: noop("statelog.taks", 2), InvalidOptionsError, "tasks"),
        (lambda: noop("statelog.tasks", 999), InvalidOptionsError, "999"),
    ):
        with pytest.raises(error, match=message):
            wrong()
    assert not (tmp_path / "m" / "statelog").exists()  # nothing was begun


def test_the_key_groups_are_those_of_the_frame_whatever_the_session_says_later(
    spark, tmp_path, writer_of
):
    """Rows with 128 key groups once met tasks for 4, when the session changed before the start."""
    writer = writer_of().option("checkpointLocation", str(tmp_path / "query"))
    with configured(spark, {"spark.statelog.maxParallelism": "4"}):
        wait(writer.foreachBatch(lambda frame, batch: frame.collect()).start())
    store = open_store(str(tmp_path / "query" / "statelog"))
    newest = Entries(store).newest()
    assert newest is not None
    assert 128 == newest.max_parallelism


def test_a_second_start_goes_on_where_the_first_one_was(tmp_path, writer_of):
    batches: list[tuple[int, list[Row]]] = []
    writer = writer_of("job").trigger(processingTime="100 milliseconds")
    writer = writer.foreachBatch(lambda frame, batch: batches.append((batch, frame.collect())))
    first = writer.start()
    first.processAllAvailable()
    second = writer.start()
    second.processAllAvailable()
    assert (False, True) == (first.isActive, second.isActive)
    second.stop()
    assert [0] == [batch for batch, _ in batches]
    assert DUE == in_order(batches[0][1])
