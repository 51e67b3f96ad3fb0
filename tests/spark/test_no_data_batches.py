"""Micro-batches without data: when there are some, what fires in them, and restarts after them; as on Spark."""

import itertools
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.locations.sequence_entries import committed, objects
from tests.support.spark.checkpoint_files import planned
from tests.support.spark.event_times import Failing, at, batch_of, event_job, seen_by_key
from tests.support.spark.idle_alarms import OUTPUT, Alarm, alarm_job, told
from tests.support.spark.streams import (
    ON_ROCKSDB,
    WITHOUT_NO_DATA,
    BatchSource,
    Job,
    configured,
    until,
    wait,
)
from tests.support.spark.versions import row_operator

from statelog.errors import CheckpointError, ProcessorError, UsageError
from statelog.spark import StatefulProcessor, transform_with_state

PATIENCE_SECONDS = 40
IDLE_SECONDS = 1.5
QUICKLY = {"processingTime": "100 milliseconds"}


@dataclass
class OnSpark:
    job: Job
    time_mode: str
    delivered: list[tuple[int, list[Any]]] = field(default_factory=list)

    def start(self, **trigger: Any) -> StreamingQuery:
        with configured(self.job.source.spark, ON_ROCKSDB):
            grouped = self.job.source.frame().groupBy(*self.job.keys)
            frame = row_operator(grouped)(
                self.job.processor, self.job.output, "Update", self.time_mode
            )
            writer = frame.writeStream.outputMode("Update").foreachBatch(self.collect)
            writer = writer.option("checkpointLocation", str(self.job.folder / "spark"))
            return writer.trigger(**(trigger or {"availableNow": True})).start()

    def collect(self, frame: DataFrame, batch_id: int) -> None:
        self.delivered.append((batch_id, frame.collect()))


def process_all(*queries: StreamingQuery) -> None:
    """Call `processAllAvailable`, with an end to patience."""
    for query in queries:
        thread = threading.Thread(target=query.processAllAvailable, daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "processAllAvailable does not return"


def stop(queries: Sequence[StreamingQuery]) -> None:
    for query in queries:
        query.stop()


def files(job: Job) -> list[Path]:
    """Return everything that Spark and statelog keep of the job."""
    return [*sorted(job.query.rglob("*")), *sorted(job.state.rglob("*"))]


def with_rows(delivered: list[tuple[int, list[Any]]]) -> list[tuple[int, Any]]:
    return [(batch_id, seen_by_key(rows)) for batch_id, rows in delivered if rows]


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_event_time_has_sparks_batches(spark, tmp_path, enabled):
    rng = random.Random(7)
    job = event_job(spark, tmp_path)
    theirs = OnSpark(job, "EventTime")
    counts = []
    with configured(spark, dict.fromkeys(WITHOUT_NO_DATA, enabled)):
        for times in ((0, 25), (28, 98), (), (60,)):  # the last two move no watermark
            job.source.add_all(batch_of(rng, now) for now in times)
            job.run()
            wait(theirs.start())
            counts.append((planned(job.query), planned(tmp_path / "spark")))
    assert [spark_has for _, spark_has in counts] == [we_have for we_have, _ in counts]
    assert with_rows(theirs.delivered) == with_rows(job.delivered)
    fired = [row for _, rows in job.delivered for row in rows if row.kind.startswith("timer")]
    assert len(fired) > 20


def test_process_all_available_ends_with_event_time(spark, tmp_path):
    job = event_job(spark, tmp_path)
    theirs = OnSpark(job, "EventTime")
    rng = random.Random(8)
    job.source.add(batch_of(rng, 0))
    queries = job.start(trigger=QUICKLY), theirs.start(**QUICKLY)
    try:
        for now in (40, 90):
            process_all(*queries)
            job.source.add(batch_of(rng, now))
        process_all(*queries)
        assert with_rows(theirs.delivered) == with_rows(job.delivered)
        count = planned(job.query)
        assert planned(tmp_path / "spark") == count
        before = files(job)
        progress = [len(query.recentProgress) for query in queries]
        time.sleep(IDLE_SECONDS)
        assert before == files(job)
        assert progress == [len(query.recentProgress) for query in queries]
        ours, of_spark = (
            [(batch["batchId"], batch["numInputRows"]) for batch in query.recentProgress]
            for query in queries
        )
        assert of_spark == ours
    finally:
        stop(queries)


def test_a_processing_time_timer_waits_for_data_where_batches_without_data_are_switched_off(
    spark, tmp_path
):
    job = alarm_job(spark, tmp_path)
    theirs = OnSpark(job, "ProcessingTime")
    job.source.add([(1, 100)])
    with configured(spark, WITHOUT_NO_DATA):
        queries = job.start(trigger=QUICKLY), theirs.start(**QUICKLY)
        try:
            process_all(*queries)
            time.sleep(IDLE_SECONDS)
            for delivered in (job.delivered, theirs.delivered):
                assert [(0, "set")] == [(b, row.kind) for b, rows in delivered for row in rows]
            job.source.add([(2, 10**9)])
            process_all(*queries)
            for delivered in (job.delivered, theirs.delivered):
                assert [(1, "set", 2), (1, "rang", 1)] == [
                    (b, row.kind, row.key) for b, rows in delivered[1:] for row in rows
                ]
        finally:
            stop(queries)


class Insistent(Alarm):
    """An `Alarm` whose timers are due again at once."""

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)


def test_available_now_ends_with_a_timer_always_due(spark, tmp_path):
    job = alarm_job(spark, tmp_path, Insistent())
    job.source.add([(1, 0)])
    for run in (1, 2, 3):  # the rows, then a batch for the timer that is due from the run before
        job.run()
        assert run == planned(job.query)
        assert run <= len(told(job, "rang"))


def test_late_rows_are_sparks_after_an_empty_batch(spark, tmp_path):
    job = event_job(spark, tmp_path)
    theirs = OnSpark(job, "EventTime")
    for rows in [[(1, at(0)), (1, at(100))], [(2, at(70)), (2, at(90))], [(3, at(85))]]:
        job.source.add(rows)
        job.run()
        wait(theirs.start())
    assert with_rows(theirs.delivered) == with_rows(job.delivered)
    kinds = [(batch_id, row.kind, row.key) for batch_id, rows in job.delivered for row in rows]
    assert (2, "rows", 2) in kinds


def test_due_timers_fire_at_the_start_of_the_next_run(spark, tmp_path):
    job = event_job(spark, tmp_path)
    job.source.add_all([[(1, at(0))], [(1, at(100))]])
    with configured(spark, WITHOUT_NO_DATA):
        job.run()
    assert [0, 1] == [batch_id for batch_id, _ in job.delivered]
    with pytest.raises(Exception, match="no timers"):
        job.run(processor=Failing(2))
    assert 3 == planned(job.query)

    def refuse(frame: DataFrame, batch_id: int) -> None:
        raise ConnectionError("no room")

    with pytest.raises(Exception, match="no room"):
        job.run(sink=refuse, tasks=2)  # the batch is committed, but not delivered
    job.take()
    job.run()
    ((batch_id, rows),) = job.delivered
    assert 2 == batch_id
    assert {"timer 1767225600000", "timer 1767225670000"} <= {row.kind for row in rows}
    assert job.progress[-1].replayed
    job.take()
    job.run()
    assert [] == job.take()
    assert 3 == planned(job.query)


def test_a_run_fires_what_is_due_and_ends(spark, tmp_path):
    job = alarm_job(spark, tmp_path)
    job.run()  # nothing was ever read
    assert 0 == planned(job.query)
    job.source.add([(1, 2_000), (2, 10**9)])
    job.run()
    assert 1 == planned(job.query)
    until(lambda: time.time() * 1000 > job.delivered[0][1][0].due, "the time of the timer")
    job.run()
    assert [("rang", 1)] == [(row.kind, row.key) for row in job.delivered[-1][1]]
    before = files(job)
    job.run()
    assert 2 == planned(job.query)
    assert before == files(job)  # not even a claim of the state location


@pytest.fixture
def job(spark, tmp_path):
    return alarm_job(spark, tmp_path)


def test_a_timer_fires_without_data_and_ticks_with_nothing_due_leave_no_trace(job):
    every = {"processingTime": "500 milliseconds"}
    job.source.add([(1, 2_000), (2, 10**9)])
    query = job.start(trigger=every, tasks=2)
    until(lambda: told(job, "rang"), "the timer")
    (rang,) = told(job, "rang")
    assert 1 == rang.key
    assert "None" == rang.kept  # its time to live ended before the timer
    query.processAllAvailable()
    before = objects(job.state)
    assert 2 == planned(job.query)  # the row's batch, the timer's batch
    time.sleep(IDLE_SECONDS)
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
    with pytest.raises(Exception, match="the two do not match"):
        job.run()


def test_each_timer_rings_once_over_failures_idle_runs_and_numbers_of_tasks(job):
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

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.handle.registerTimer(int(row.at.timestamp() * 1000))
        yield Row(key=key[0], due=-1, watermark=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
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
    spark, tmp_path
):
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


def test_an_earlier_operator_advances_when_idle(spark, tmp_path):
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


def test_what_event_time_needs_is_said_before_the_query_starts(job):
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
