"""The essentials on a Connect session: rows and steps, a restart, errors, and what is refused."""

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, window
from pyspark.sql.functions import sum as total_of
from tests.support.spark.connect.jobs import deliver
from tests.support.spark.connect.sessions import connected
from tests.support.spark.processors import INPUT, TOTALS, Totals, totals_of
from tests.support.spark.streams import BatchSource, enabled, in_order

from statelog.errors import UsageError
from statelog.extensions.connect.client import ConnectStream
from statelog.extensions.connect.worker import SparkFiles
from statelog.metrics import Metrics
from statelog.spark import Record, aggregate, replay, transform_with_state
from statelog.spark import functions as F
from statelog.spark.jvm.files import LocalFiles
from statelog.state.reader import StateReader

BATCHES = [[(1, 1), (2, 2), (1, 3)], [(2, 5)], [(3, 7), (1, -4)], [(1, 1)]]


def test_a_client_without_a_token_is_rejected(server, remote):
    address = f"sc://localhost:{server.port}"
    for url in (address, f"{address}/;token=guessed", f"sc://127.0.0.1:{server.port}"):
        with (
            pytest.raises(SparkConnectGrpcException, match=r"(?i)unauthenticated|authentication"),
            connected(url) as session,
        ):
            session.range(1).collect()
    assert remote.range(1).count() == 1
    token = server.url.partition("token=")[2]
    assert len(token) > 30
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            assert token.encode() not in process.read_bytes()


def test_rows_and_steps_are_exact_over_a_restart(job, remote):
    names = remote.createDataFrame(
        [(1, "one"), (2, "two"), (3, "three")], "key bigint, name string"
    )

    def steps(out: DataFrame) -> DataFrame:
        doubled = out.withColumn("twice", out.total * 2).where(out["rows"] > 0)
        named = doubled.join(names, doubled.key == names.key)
        chosen = named.select(
            doubled.key, names["name"], "total", doubled.rows, out.total.alias("t")
        )
        return chosen.observe("seen", total_of("total").alias("sum"))

    job.steps = steps
    job.source.add_all(BATCHES[:2])
    first = job.run()
    job.source.add_all(BATCHES[2:])
    second = job.run()
    texts = {1: "one", 2: "two", 3: "three"}
    assert [
        sorted((key, texts[key], total, rows, total) for key, total, rows in batch)
        for batch in totals_of(BATCHES)
    ] == job.sink.in_order()
    assert second.id == first.id
    assert [(batch.batch_id, batch.rows, batch.tasks) for batch in second.recentBatches] == [
        (batch, len(rows), 2) for batch, rows in enumerate(BATCHES)
    ]
    assert second.lastBatch.batch_id == 3
    recent = second.recentProgress
    assert [[progress["observedMetrics"]["seen"]["sum"]] for progress in recent] == [
        [sum(total for _, total, _ in batch)] for batch in totals_of(BATCHES)[2:]
    ]
    assert [progress.stateOperators[0].customMetrics["rows"] for progress in recent] == [2, 1]
    assert second.lastProgress == recent[-1]
    through_spark = SparkFiles(remote, str(job.query))
    local = LocalFiles(f"file:{job.query}")
    for name in ("metadata", "offsets/1", "offsets/99", "sources/0/0"):
        assert through_spark.read(name) == local.read(name)
        assert through_spark.read(name, 7) == local.read(name, 7)
    for folder in ("offsets", "sources", "sources/0", "nothing"):
        visible = {name for name in local.names(folder) if not name.startswith(".")}
        assert set(through_spark.names(folder)) == visible
    assert through_spark.qualified() == local.url


def test_an_error_of_the_processor_begins_with_its_own_sentence(job):
    job.source.add_all(BATCHES[:3])
    query = job.start(processor=Totals(poison=7))
    with pytest.raises(StreamingQueryException) as failure:
        query.awaitTermination(120)
    for error in (failure.value, query.exception()):
        assert str(error).startswith("ProcessorError: Totals"), str(error)[:500]
        assert "cannot take 7" in str(error).split("\n\n")[0]
    job.run()  # the batch that failed is repeated
    assert job.sink.in_order() == totals_of(BATCHES[:3])


def test_another_version_is_rejected(job, monkeypatch):
    job.source.add(BATCHES[0])
    monkeypatch.setattr("statelog.extensions.connect.worker.__version__", "0.0.1")
    with pytest.raises(UsageError, match=r"the client runs statelog 0\.0\.1"):
        job.start()


def test_a_batch_frame_and_an_enabled_session_work_on_connect(remote):
    frame = remote.createDataFrame([(1, 1), (2, 2), (1, 3)], INPUT)
    rows = transform_with_state(frame.groupBy("key"), Totals(), TOTALS).orderBy("key").collect()
    assert [tuple(row) for row in rows] == [(1, 4, 2), (2, 2, 1)]
    with enabled(remote):
        stream = remote.readStream.format("rate").load().withColumnRenamed("value", "key")
        operator = stream.groupBy("key").transformWithState
        assert isinstance(operator(Totals(), TOTALS, "Update", "None"), ConnectStream)
    kind = type(stream.groupBy("key"))
    assert not hasattr(getattr(kind, "transformWithState", None), "__wrapped__")


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        raise AssertionError("never called")


STEPS: dict[str, tuple[Callable[[DataFrame], object], str]] = {
    "an aggregation in select": (
        lambda out: out.select(total_of("total")),
        "needs Spark's own state",
    ),
    "agg": (lambda out: out.agg(total_of("total")), "agg cannot follow"),
    "groupBy": (lambda out: out.groupBy("key").count(), "cannot be grouped for a Spark operator"),
    "limit": (lambda out: out.limit(1), "limit cannot follow"),
    "union": (lambda out: out.union(out), "union cannot follow"),
    "a stream in a join": (lambda out: out.join(out, "key"), "with a second stream"),
    "an action": (lambda out: out.collect(), "a stream has rows only while"),
}


def test_steps_that_cannot_work_are_refused(job):
    for step, reason in STEPS.values():
        with pytest.raises(UsageError, match=reason):
            step(job.stream())
    with pytest.raises(AnalysisException):  # by Spark, when it is typed
        job.stream().where("missing > 1")


def test_settings_sinks_and_writers_that_cannot_work_are_refused(job, tmp_path):
    for arguments, reason in (
        ({"delivery": "direct"}, "use.*staged"),
        ({"on_progress": print}, "query.lastBatch"),
        ({"metrics": Metrics()}, "query.lastBatch"),
        ({"stateLocation": "state"}, "absolute path"),
    ):
        with pytest.raises(UsageError, match=f"(?i){reason}"):
            job.start(**arguments)
    writer = job.stream().writeStream.option("checkpointLocation", str(tmp_path / "query"))
    with pytest.raises(UsageError, match="cannot be written exactly once"):
        writer.format("parquet").start(str(tmp_path / "files"))
    log = tmp_path / "logged" / "_spark_metadata" / "0"
    log.parent.mkdir(parents=True)
    log.write_text("v1\n")
    appending = job.stream().writeStream.option("checkpointLocation", str(tmp_path / "query"))
    with pytest.raises(UsageError, match="contains a log of streaming output"):
        appending.option("statelog.fileSink", "append").start(str(tmp_path / "logged"))
    with pytest.raises(UsageError, match="requires a queryName"):
        writer.format("memory").start()
    with pytest.raises(UsageError, match="which is the default"):
        writer.option("statelog.delivery", "direct").format("noop").start()
    with pytest.raises(UsageError, match="checkpointLocation"):
        job.stream().writeStream.format("noop").start()
    with pytest.raises(UsageError, match="does not run micro-batches"):
        job.stream().writeStream.trigger(continuous="1 second")
    with pytest.raises(UsageError, match="cannot be pickled"):
        job.start(sink=Locked())
    with pytest.raises(UsageError, match="plain grouping keys"):
        transform_with_state(job.source.frame().rollup("key"), Totals(), TOTALS)


def test_keys_are_recorded(job):
    job.options["record"] = Record(keys=[1])
    job.source.add_all(BATCHES)
    job.run()
    steps = replay(str(job.state), 1, processor=Totals())
    assert [] == [step for step in steps if step.differences]
    assert [[1, 3], [-4], [1]] == [[row.amount for row in step.input] for step in steps]


def test_state_and_checkpoints_are_frames(job, remote):
    job.source.add([(key, key) for key in range(20)])
    job.source.add([(3, 4)])
    job.run()
    location = str(job.state)
    with StateReader.open(location) as reader:
        expected = reader.table("total").to_pylist()
    state = remote.read.format("statelog").load(location)
    rows = state.select("key_group", "key.key", "value.total", "value.rows").collect()
    assert in_order(rows) == in_order(row.values() for row in expected)
    assert len(rows) == 20
    listed = remote.read.format("statelog").option("view", "checkpoints").load(location)
    assert [row.rows for row in listed.orderBy("batch_id").collect()] == [20, 1]


def test_windows_are_aggregated_and_dropped(remote, tmp_path):
    noon = datetime(2024, 3, 1, 12, tzinfo=UTC)
    source = BatchSource(remote, tmp_path / "in", "name string, at timestamp, value int")
    source.add([("a", noon, 1), ("a", noon, 2), ("b", noon, 3)])
    source.add([("a", noon + timedelta(minutes=1), 4), ("b", noon + timedelta(hours=1), 5)])
    windows = aggregate(
        source.frame().withWatermark("at", "1 minute").groupBy(window("at", "10 minutes"), "name"),
        F.count().alias("n"),
        F.sum(col("value") * 2).alias("total"),
        F.top_k("value", 2).alias("top"),
        outputMode="append",
        tasks=2,
        stateLocation=str(tmp_path / "state"),
    )
    # A run is one micro-batch.  Its watermark ends windows in the next, and makes rows late in the one after.
    for hours, late in ((2, 6), (3, 8), (None, 0)):
        sink = deliver(windows.drop("window"), tmp_path, "append")
        if hours is not None:
            source.add([("a", noon, late), ("b", noon + timedelta(hours=hours), 7)])
    rows = [row for batch in sink.batches() for row in batch]
    assert sorted(rows, key=repr) == [
        {"name": "a", "n": 4, "total": 26, "top": [6, 4]},
        {"name": "b", "n": 1, "total": 10, "top": [5]},
        {"name": "b", "n": 1, "total": 6, "top": [3]},
    ]
