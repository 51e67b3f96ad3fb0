"""The driver counts its checkpoints and snapshots where the caller wants them."""

from pyspark.sql import SparkSession
from tests.support.spark.streams import Job, configured

import statelog as sl
from statelog.metrics import HistogramSnapshot


def test_snapshots_and_sizes_are_counted(job: Job) -> None:
    job.source.add_all([[(1, 10), (2, 20)]] * 3)
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


def test_uploads_of_tasks_follow_the_options(job: Job, spark: SparkSession) -> None:
    job.source.add_all([[(key % 500, 10) for key in range(2_000)], [(1, 10)]])
    metrics = sl.Metrics()
    with configured(spark, {"spark.statelog.changelog.compression.enabled": "true"}):
        job.run(tasks=2, metrics=metrics, **{"stream.data-inline-threshold": 0})
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
