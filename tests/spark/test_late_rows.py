"""Rows that come later than the watermark are dropped and counted, in the job that runs the tasks."""

import datetime as dt
import itertools
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import window
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark.streams import ON_ROCKSDB, WITHOUT_NO_DATA, BatchSource, configured, wait
from tests.support.spark.versions import row_operator

from statelog.metrics import Metrics
from statelog.spark import BatchProgress, transform_with_state

SCHEMA = "key bigint, at timestamp"
BATCHES: list[list[int | None]] = [[10, 20], [5, 30], [10, None, 21, 35], [1, 2, 3, 60], [55, 4]]


class Counting(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key, rows, timerValues):
        (n,) = self.count.get() or (0,)
        n += sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(n=n)


@pytest.fixture
def source(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", SCHEMA)
    epoch = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for seconds in BATCHES:
        source.add([(1, None if s is None else epoch + dt.timedelta(seconds=s)) for s in seconds])
    return source


def watermarked(source: BatchSource) -> DataFrame:
    return source.frame().withWatermark("at", "10 seconds")


def dropped_on_spark(source: BatchSource, folder: Path) -> list[int]:
    with configured(source.spark, ON_ROCKSDB | WITHOUT_NO_DATA):
        grouped = watermarked(source).groupBy("key")
        frame = row_operator(grouped)(Counting(), "n bigint", "Update", "EventTime")
        writer = frame.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "spark")).start()
        wait(query)
    return [
        progress.stateOperators[0].numRowsDroppedByWatermark
        for progress in query.recentProgress
        if progress.numInputRows
    ]


def run(
    source: BatchSource, folder: Path, time_mode: str, **settings: Any
) -> tuple[list[BatchProgress], set[int]]:
    """Run the query; return the numbers of its micro-batches, and how many Spark jobs each had."""
    progress: list[BatchProgress] = []
    jobs: list[int] = []
    tracker = source.spark.sparkContext.statusTracker()

    def count_jobs(frame: Any, batch_id: int) -> None:
        frame.collect()
        jobs.append(len(tracker.getJobIdsForGroup(str(query.runId))))

    stream = transform_with_state(
        watermarked(source).groupBy("key"),
        Counting(),
        "n bigint",
        timeMode=time_mode,
        on_progress=progress.append,
        noDataBatches=False,
        tasks=1,
        **settings,
    )
    writer = stream.writeStream.option("checkpointLocation", str(folder / time_mode))
    query = writer.foreachBatch(count_jobs).trigger(processingTime="1 second").start()
    query.processAllAvailable()
    query.stop()
    return progress, {after - before for before, after in itertools.pairwise(jobs)}


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_late_rows_count_as_on_spark(source, tmp_path, delivery):
    metrics = Metrics()
    progress, jobs = run(source, tmp_path, "EventTime", delivery=delivery, metrics=metrics)
    late = [report.late_rows for report in progress]
    assert late == dropped_on_spark(source, tmp_path)
    assert [0, 0, 1, 3, 1] == late
    assert [len(batch) - n for batch, n in zip(BATCHES, late, strict=True)] == [
        report.rows for report in progress
    ]
    assert metrics.value("num_late_records_dropped") == 5
    assert f"late={late[3]} " in str(progress[3])
    uncounted, without = run(source, tmp_path, "None", delivery=delivery)
    assert [0] * len(BATCHES) == [report.late_rows for report in uncounted]
    assert jobs == without


def test_of_a_window_its_end_counts(source, tmp_path):
    progress: list[BatchProgress] = []
    windows = watermarked(source).select("key", window("at", "10 seconds").alias("w"))
    stream = transform_with_state(
        windows.groupBy("key"),
        Counting(),
        "n bigint",
        timeMode="EventTime",
        on_progress=progress.append,
        noDataBatches=False,
    )
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "q")).format("noop")
    wait(writer.trigger(availableNow=True).start())
    # `window` itself leaves out rows without a time.
    timed = [len(batch) - batch.count(None) for batch in BATCHES]
    assert timed == [report.rows + report.late_rows for report in progress]
    assert 0 < sum(report.late_rows for report in progress) <= 5
