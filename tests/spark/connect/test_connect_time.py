"""Time on a Connect session: event time against Spark's own operator, and timers without data."""

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from tests.support.spark.checkpoint_files import planned, remove
from tests.support.spark.connect.jobs import ConnectJob, Deliveries, deliver
from tests.support.spark.event_times import (
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
from tests.support.spark.idle_alarms import INPUT, Alarm
from tests.support.spark.idle_alarms import OUTPUT as ALARMS
from tests.support.spark.streams import ON_ROCKSDB, WITHOUT_NO_DATA, BatchSource, configured, until
from tests.support.spark.versions import row_operator

IN_PARTS = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
OFTEN = {"processingTime": "200 milliseconds"}
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


@pytest.fixture
def event_job(remote, tmp_path):
    source = EventTimes(remote, tmp_path / "in", SCHEMA)
    options = {"timeMode": "EventTime", "tasks": 2}
    return ConnectJob(source, tmp_path, ["key"], Timekeeper(), OUTPUT, options)


@pytest.fixture
def alarm_job(remote, tmp_path):
    source = BatchSource(remote, tmp_path / "in", INPUT)
    options = {"timeMode": "ProcessingTime", "tasks": 2}
    return ConnectJob(source, tmp_path, ["key"], Alarm(), ALARMS, options)


def test_event_time_is_sparks_after_a_failure(event_job, tmp_path):
    rng, source = random.Random(SEED), event_job.source
    event_job.options["noDataBatches"] = False
    source.add_all(batch_of(rng, 30 * batch) for batch in range(4))
    with pytest.raises(Exception, match="the sink is gone"):
        event_job.run(FailsOnce(event_job.sink, 2, tmp_path / "mark"))
    event_job.run(tasks=3)
    source.add_all(batch_of(rng, 30 * batch) for batch in range(4, 7))
    event_job.run(tasks=1)
    with configured(source.spark, ON_ROCKSDB | WITHOUT_NO_DATA):
        operator = row_operator(source.frame().groupBy("key"))
        of_spark = deliver(
            operator(Timekeeper(), OUTPUT, "Update", "EventTime"), tmp_path / "spark"
        )
    assert event_job.sink.batches() == of_spark.batches()


def test_event_time_timers_fire_without_data(event_job):
    event_job.source.add([(key, at(key)) for key in range(KEYS)])
    event_job.source.add([(1, at(1_000))])
    event_job.run()
    # The watermark of the second batch comes after the last of the run.
    assert not late_timers(event_job)
    query = event_job.start(trigger=OFTEN)
    try:
        fired = until(lambda: late_timers(event_job), "a timer")
    finally:
        query.stop()
    assert fired == set(range(KEYS))


def late_timers(job: ConnectJob) -> set[int]:
    """Return the keys whose timers at the times of rows have fired."""
    rows = [row for batch in job.sink.batches() for row in batch]
    kinds = [(row["key"], row["kind"].partition("timer ")[2]) for row in rows]
    return {key for key, due in kinds if due and int(due) >= ms(at(0))}


def test_processing_time_timers_fire_without_data_and_idle_batches_leave_no_trace(alarm_job):
    sink = alarm_job.sink
    alarm_job.source.add([(1, 1_500), (2, 10**9)])
    query = alarm_job.start(trigger=OFTEN)
    try:
        until(lambda: len(sink.batches()) == 2, "the timer")
        rows, rang = sink.batches()
        assert {row["kind"] for row in rows} == {"set"}
        assert [(row["key"], row["kind"], row["kept"]) for row in rang] == [(1, "rang", "None")]
        checkpoints = set(alarm_job.state.glob("chk-*"))
        before = planned(alarm_job.query)
        until(lambda: planned(alarm_job.query) > before + 2, "an idle batch")
        assert checkpoints == set(alarm_job.state.glob("chk-*"))
    finally:
        query.stop()
    alarm_job.source.add([(1, 0)])
    alarm_job.run()  # only ends the micro-batch that was stopped, if there is one
    alarm_job.run()
    assert [row["kind"] for rows in sink.batches() for row in rows].count("set") == 3


def test_available_now_takes_all_rows_after_a_stop_in_mid_batch_with_sparks_setting(
    remote, alarm_job, caplog
):
    alarm_job.source.add([(1, 10**9)])
    alarm_job.run()
    assert IN_PARTS in caplog.text
    remove(alarm_job.query / "commits", 0)
    alarm_job.source.add_all([[(2, 10**9)], [(3, 10**9)]])
    caplog.clear()
    with configured(remote, {IN_PARTS: "true"}):
        alarm_job.run()
    assert [[row["key"] for row in rows] for rows in alarm_job.sink.batches()] == [[1], [2], [3]]
    assert IN_PARTS not in caplog.text
