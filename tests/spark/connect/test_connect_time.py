"""Time on a Connect session: event time against Spark's own operator, and timers without data."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.connect.jobs import ConnectJob, Deliveries
from tests.spark.event_times import (
    KEYS,
    OUTPUT,
    SCHEMA,
    SEED,
    EventTimes,
    Timekeeper,
    at,
    batch_of,
    ms,
)
from tests.spark.idle_alarms import INPUT, Alarm
from tests.spark.idle_alarms import OUTPUT as ALARMS
from tests.spark.streams import ROCKSDB, TIMEOUT_SECONDS, BatchSource, until, workers_get_by_value
from tests.spark.versions import row_operator

workers_get_by_value(__name__)

IN_PARTS = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class FailsOnce:
    """A sink that fails at one micro-batch, before its rows are written, and once only."""

    def __init__(self, sink: Deliveries, batch_id: int, mark: Path) -> None:
        self.sink = sink
        self.batch_id = batch_id
        self.mark = str(mark)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id == self.batch_id and not Path(self.mark).exists():
            Path(self.mark).touch()
            raise OSError("the sink is gone")
        self.sink(frame, batch_id)


def test_event_time_is_sparks_after_a_failure(remote: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    source = EventTimes(remote, tmp_path / "in", SCHEMA)
    options = {"timeMode": "EventTime", "noDataBatches": False}
    job = ConnectJob(source, tmp_path, ["key"], Timekeeper(), OUTPUT, options)
    for batch in range(4):
        source.add(batch_of(rng, 30 * batch))
    with pytest.raises(Exception, match="the sink is gone"):
        job.run(sink=FailsOnce(job.sink, 2, tmp_path / "mark"), tasks=2)
    job.run(tasks=3)
    for batch in range(4, 7):
        source.add(batch_of(rng, 30 * batch))
    job.run(tasks=1)
    assert job.sink.batches() == on_spark(remote, source, tmp_path / "spark")


def on_spark(spark: SparkSession, source: BatchSource, folder: Path) -> list[list[Any]]:
    """Run Spark's own operator on the same Connect session."""
    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        sink = Deliveries(folder / "out")
        operator = row_operator(source.frame().groupBy("key"))
        frame = operator(Timekeeper(), OUTPUT, "Update", "EventTime")
        query = (
            frame.writeStream.outputMode("Update")
            .option("checkpointLocation", str(folder / "query"))
            .foreachBatch(sink)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_SECONDS)
    finally:
        for name in settings:
            spark.conf.unset(name)
    return sink.batches()


def test_event_time_timers_fire_without_data(remote: SparkSession, tmp_path: Path) -> None:
    source = EventTimes(remote, tmp_path / "in", SCHEMA)
    options = {"timeMode": "EventTime", "tasks": 2}
    job = ConnectJob(source, tmp_path, ["key"], Timekeeper(), OUTPUT, options)
    source.add([(key, at(key)) for key in range(KEYS)])
    source.add([(1, at(1_000))])
    job.run()
    assert not late_timers(job)  # the watermark of the second batch comes after the last of the run
    query = job.start(trigger={"processingTime": "200 milliseconds"})
    try:
        fired = until(lambda: late_timers(job), "a timer")
    finally:
        query.stop()
    assert fired == set(range(KEYS))


def late_timers(job: ConnectJob) -> set[int]:
    """Return the keys whose timers at the times of rows have fired."""
    rows = [row for batch in job.sink.batches() for row in batch]
    kinds = [(row["key"], row["kind"].partition("timer ")[2]) for row in rows]
    return {key for key, due in kinds if due and int(due) >= ms(at(0))}


def test_processing_time_timers_fire_without_data_and_idle_batches_leave_no_trace(
    remote: SparkSession, tmp_path: Path
) -> None:
    source = BatchSource(remote, tmp_path / "in", INPUT)
    options = {"timeMode": "ProcessingTime", "tasks": 2}
    job = ConnectJob(source, tmp_path, ["key"], Alarm(), ALARMS, options)
    source.add([(1, 1_500), (2, 10**9)])
    query = job.start(trigger={"processingTime": "200 milliseconds"})
    try:
        until(lambda: len(job.sink.batches()) == 2, "the timer")
        rows, rang = job.sink.batches()
        assert {row["kind"] for row in rows} == {"set"}
        assert [(row["key"], row["kind"], row["kept"]) for row in rang] == [(1, "rang", "None")]
        checkpoints = set((tmp_path / "state").glob("chk-*"))
        planned = len(list((tmp_path / "query" / "offsets").glob("[0-9]*")))
        until(
            lambda: len(list((tmp_path / "query" / "offsets").glob("[0-9]*"))) > planned + 2,
            "an idle batch",
        )
        assert checkpoints == set((tmp_path / "state").glob("chk-*"))
    finally:
        query.stop()
    source.add([(1, 0)])
    job.run()  # only ends the micro-batch that was stopped, if there is one
    job.run()
    assert [row["kind"] for rows in job.sink.batches() for row in rows].count("set") == 3


def test_available_now_takes_all_rows_after_a_stop_in_mid_batch_with_sparks_setting(
    remote: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = BatchSource(remote, tmp_path / "in", INPUT)
    options = {"timeMode": "ProcessingTime", "tasks": 2}
    job = ConnectJob(source, tmp_path, ["key"], Alarm(), ALARMS, options)
    source.add([(1, 10**9)])
    job.run()
    assert IN_PARTS in caplog.text
    checkpoint = tmp_path / "query"
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    source.add([(2, 10**9)])
    source.add([(3, 10**9)])
    caplog.clear()
    remote.conf.set(IN_PARTS, "true")
    try:
        job.run()
    finally:
        remote.conf.unset(IN_PARTS)
    assert [[row["key"] for row in rows] for rows in job.sink.batches()] == [[1], [2], [3]]
    assert IN_PARTS not in caplog.text
