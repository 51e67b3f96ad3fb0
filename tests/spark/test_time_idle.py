"""Timers when no data comes: batches without data, what they leave out, restarts after them."""

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.locations.sequence_entries import committed, objects
from tests.support.spark.checkpoint_files import planned
from tests.support.spark.idle_alarms import OUTPUT, Alarm, alarm_job, told
from tests.support.spark.streams import BatchSource, Job, until

from statelog.errors import CheckpointError, ProcessorError, UsageError
from statelog.spark import StatefulProcessor, StatefulProcessorHandle, transform_with_state

TRIGGER_MS = 500


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return alarm_job(spark, tmp_path)


def test_a_timer_fires_without_data_and_ticks_with_nothing_due_leave_no_trace(job: Job) -> None:
    every = {"processingTime": f"{TRIGGER_MS} milliseconds"}
    job.source.add([(1, 2_000), (2, 10**9)])
    query = job.start(trigger=every, tasks=2)
    until(lambda: told(job, "rang"), "the timer")
    (rang,) = told(job, "rang")
    assert 1 == rang.key
    assert "None" == rang.kept  # its time to live ended before the timer
    query.processAllAvailable()
    before = objects(job.state)
    assert 2 == planned(job.query)  # the row's batch, the timer's batch
    time.sleep(3 * TRIGGER_MS / 1000)
    query.stop()
    assert before == objects(job.state)
    assert 2 == planned(job.query) == len(job.progress)
    job.source.add([(1, 0)])
    job.run(tasks=3)
    assert 2 == len(told(job, "rang"))
    assert 2 == job.progress[-1].batch_id
    with pytest.raises(UsageError, match=r"noDataBatches=False, but .* started with them"):
        job.start(noDataBatches=False)
    # State that misses a batch with data is still refused.
    job.source.add([(5, 10**9)])
    job.run()
    job.source.add([(6, 10**9)])
    shutil.rmtree(job.state / f"chk-{committed(job.state)[-1]}")
    with pytest.raises(Exception, match="they do not belong together"):
        job.run()


def test_each_timer_rings_once_over_failures_idle_runs_and_numbers_of_tasks(job: Job) -> None:
    calls = itertools.count(1)

    def sink(frame: DataFrame, batch_id: int) -> None:
        if next(calls) in (2, 5):  # committed, and to be delivered again
            raise ConnectionError("no room")
        job.collect(frame, batch_id)

    for run, tasks in enumerate((2, 3, 1)):
        job.source.add([(key, wait) for key in range(6) for wait in (0, 200 * key, 10**9)])
        job.source.add([(key, wait) for key in range(3, 9) for wait in (1, 100 * run)])
        for _ in range(3):  # the last one has no data
            try:
                job.run(sink=sink, tasks=tasks)
            except Exception as error:
                assert "no room" in str(error)
    assert 2 == sum(progress.replayed for progress in job.progress)
    ids = [batch_id for batch_id, _ in job.delivered]
    assert sorted(set(ids)) == ids
    assert 6 == len({row.now for row in told(job, "set")})
    last = max(row.now for row in told(job, "rang"))
    due = {(row.key, row.due) for row in told(job, "set") if row.due <= last}
    rang = Counter((row.key, row.due) for row in told(job, "rang"))
    assert Counter(due) == rang
    assert all(row.due <= row.now for row in told(job, "rang"))


class Watch(StatefulProcessor):
    """Sets an event-time timer at each row's time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(int(row.at.timestamp() * 1000))
        yield Row(key=key[0], due=-1, watermark=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(
            key=key[0],
            due=expiredTimerInfo.getExpiryTimeInMs(),
            watermark=timerValues.getCurrentWatermarkInMs(),
        )


START = 1_700_000_000


def rows_at(*rows: tuple[int, int]) -> list[dict[str, int]]:
    """Return rows of keys and seconds after `START`."""
    return [{"key": key, "at": (START + seconds) * 1_000_000} for key, seconds in rows]


def watch_job(kind: type[BatchSource], spark: SparkSession, folder: Path) -> Job:
    source = kind(spark, folder / "in", "key bigint, at timestamp")
    output = "key bigint, due bigint, watermark bigint"
    return Job(source, folder, ["key"], Watch(), output, {"timeMode": "EventTime"})


class TwoWatermarks(BatchSource):
    """A stream beside a slower one, each with its own watermark."""

    def frame(self) -> DataFrame:
        fast = super().frame().withWatermark("at", "5 seconds")
        slow = super().frame().where("key > 0").withWatermark("at", "100 seconds")
        return fast.unionAll(slow)


def test_event_time_timers_fire_in_a_batch_without_data_by_the_policy_of_several_watermarks(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = watch_job(TwoWatermarks, spark, tmp_path)

    def take() -> list[set[tuple[Any, ...]]]:
        return [set(map(tuple, rows)) for rows in job.take()]

    job.source.add(rows_at(*((key, seconds) for key in (1, 2) for seconds in (0, 50, 150))))
    job.run()  # a batch without data follows: the watermark is the slower one's, 100 s behind
    watermark = (START + 50) * 1000
    fired = {(key, (START + at) * 1000, watermark) for key in (1, 2) for at in (0, 50)}
    assert [{(1, -1, 0), (2, -1, 0)}, fired] == take()
    job.run()
    assert [] == take()  # the watermark has not moved
    # A new query that adopts the state begins with its watermark: what is older is late for it.
    for file in job.source.folder.glob("*.parquet"):
        file.unlink()
    job.source.add(rows_at((1, 40), (1, 90)))
    job.run(adopt=True, checkpointLocation=str(tmp_path / "other"))
    assert [{(1, -1, watermark)}] == take()
    assert 2 == job.progress[-1].rows  # of four: each row comes by both streams
    with pytest.raises(CheckpointError, match="timers of the time mode eventtime"):
        job.start(timeMode="ProcessingTime", adopt=True, checkpointLocation=str(tmp_path / "third"))
    with pytest.raises(UsageError, match="'nope' is not a timestamp column of the output"):
        job.start(eventTimeColumnName="nope")


class Distinct(BatchSource):
    """A stream without duplicates, of which Spark keeps state of its own."""

    def frame(self) -> DataFrame:
        distinct = super().frame().withWatermark("at", "5 seconds")
        return distinct.dropDuplicatesWithinWatermark(["key", "at"])


def test_an_earlier_operator_advances_when_idle(spark: SparkSession, tmp_path: Path) -> None:
    job = watch_job(Distinct, spark, tmp_path)

    def refuse(frame: DataFrame, batch_id: int) -> None:
        raise ConnectionError("no room")

    job.source.add(rows_at((1, 0), (1, 0), (2, 10)))
    job.run(tasks=3)  # in a batch without data the watermark comes to 5 s
    first = {row.due - START * 1000 for rows in job.take() for row in rows if row.due > 0}
    assert {0} == first
    before = objects(job.state)
    job.run()
    assert [] == job.take()
    assert before == objects(job.state)  # nothing was committed
    job.source.add(rows_at((2, 10), (3, 9), (3, 90)))
    with pytest.raises(Exception, match="no room"):
        job.run(sink=refuse, tasks=1)
    job.source.add(rows_at((3, 90), (4, 91)))
    job.run(tasks=2)
    assert 1 == [progress.rows for progress in job.progress if progress.rows][-1]
    delivered = Counter((row.key, row.due) for rows in job.take() for row in rows)
    assert 1 == delivered[3, -1] == delivered[4, -1] == delivered[3, (START + 9) * 1000]


def test_what_event_time_needs_is_said_before_the_query_starts(job: Job) -> None:
    with pytest.raises(UsageError, match="EventTime requires a watermark; call withWatermark"):
        job.start(timeMode="EventTime")
    with pytest.raises(UsageError, match="the input does not have a watermark"):
        job.start(eventTimeColumnName="due")
    late = job.source.frame().selectExpr("key", "timestamp_millis(wait_ms) AS at")
    with pytest.raises(ProcessorError, match=r"'value': a time to live requires .*ProcessingTime"):
        transform_with_state(
            late.withWatermark("at", "1 second").groupBy("key"),
            Alarm(),
            OUTPUT,
            timeMode="EventTime",
        )
