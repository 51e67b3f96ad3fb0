"""The driver counts its checkpoints and snapshots where the caller wants them."""

from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import BatchSource, Job

import statelog as sl
from statelog.metrics import HistogramSnapshot


def test_snapshots_and_sizes_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    job = Job(source, tmp_path, ["key"], Totals(), TOTALS)
    for _ in range(3):
        source.add([(1, 10), (2, 20)])
    metrics = sl.Metrics()
    job.run(tasks=1, metrics=metrics, **{"snapshot.max-log-handles": 1})
    values = metrics.snapshot()
    snapshots = sum(progress.snapshots for progress in job.progress)
    assert snapshots > 0
    assert (snapshots, snapshots, 0) == (
        values["started_materialization"],
        values["completed_materialization"],
        values["failed_materialization"],
    )
    assert (6, 6, 2) == (
        values["num_records_in"],
        values["num_records_out"],
        values["state_entries"],
    )
    durations = values["micro_batch_durations"]
    assert isinstance(durations, HistogramSnapshot)
    assert [progress.milliseconds["total"] for progress in job.progress] == list(durations.values)
    assert values["last_duration_of_materialization"] > 0
    assert values["last_full_size_of_materialization"] > 0


def test_uploads_of_tasks_follow_the_options(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    job = Job(source, tmp_path, ["key"], Totals(), TOTALS)
    source.add([(key % 500, 10) for key in range(2_000)])
    source.add([(1, 10)])
    metrics = sl.Metrics()
    spark.conf.set("spark.statelog.changelog.compression.enabled", "true")
    try:
        job.run(tasks=2, metrics=metrics, **{"stream.data-inline-threshold": 0})
    finally:
        spark.conf.unset("spark.statelog.changelog.compression.enabled")
    first = job.progress[0]
    assert first.uploads == first.upload_attempts == 4, "changes and staged rows of each task"
    assert (0, 0) == (first.upload_retries, first.upload_failures)
    assert first.upload_bytes > 10_000
    assert first.slowest_upload_ms > 0
    total = sum(progress.uploads for progress in job.progress)
    assert total == metrics.value("number_of_upload_requests")
    sizes = metrics.value("upload_sizes")
    assert isinstance(sizes, HistogramSnapshot)
    assert sizes.total_count == total
    files = list(job.state.glob("dstl/*"))
    assert files
    assert all(path.read_bytes().startswith(b"\x01") for path in files), "Flink's flag of Snappy"
