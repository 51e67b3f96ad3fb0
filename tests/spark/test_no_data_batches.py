"""Micro-batches without data: which there are, beside those of Spark's own transformWithState."""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.spark.checkpoint_files import planned
from tests.support.spark.event_times import Failing, at, batch_of, event_job, seen_by_key
from tests.support.spark.idle_alarms import Alarm, alarm_job, told
from tests.support.spark.streams import (
    ON_ROCKSDB,
    WITHOUT_NO_DATA,
    Job,
    configured,
    until,
    wait,
)
from tests.support.spark.versions import row_operator

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
def test_event_time_has_sparks_batches(spark: SparkSession, tmp_path: Path, enabled: str) -> None:
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


def test_process_all_available_ends_with_event_time(spark: SparkSession, tmp_path: Path) -> None:
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
    spark: SparkSession, tmp_path: Path
) -> None:
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

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)


def test_available_now_ends_with_a_timer_always_due(spark: SparkSession, tmp_path: Path) -> None:
    job = alarm_job(spark, tmp_path, Insistent())
    job.source.add([(1, 0)])
    for run in (1, 2, 3):  # the rows, then a batch for the timer that is due from the run before
        job.run()
        assert run == planned(job.query)
        assert run <= len(told(job, "rang"))


def test_late_rows_are_sparks_after_an_empty_batch(spark: SparkSession, tmp_path: Path) -> None:
    job = event_job(spark, tmp_path)
    theirs = OnSpark(job, "EventTime")
    for rows in [[(1, at(0)), (1, at(100))], [(2, at(70)), (2, at(90))], [(3, at(85))]]:
        job.source.add(rows)
        job.run()
        wait(theirs.start())
    assert with_rows(theirs.delivered) == with_rows(job.delivered)
    kinds = [(batch_id, row.kind, row.key) for batch_id, rows in job.delivered for row in rows]
    assert (2, "rows", 2) in kinds


def test_due_timers_fire_at_the_start_of_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
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


def test_a_run_fires_what_is_due_and_ends(spark: SparkSession, tmp_path: Path) -> None:
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
