"""A query counts what its micro-batches cost, and writes it into each checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.locations.sequence_entries import committed
from tests.support.spark.streams import configured

import statelog as sl
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import read_checkpoint
from statelog.metrics import HistogramSnapshot
from statelog.spark import BatchProgress
from statelog.store import open_existing_store


def records(location: Path) -> list[BatchRecord]:
    store = open_existing_store(location)
    return [
        BatchRecord.of(read_checkpoint(store, number).checkpoint) for number in committed(location)
    ]


def test_costs_are_recorded_also_after_the_commit(job):
    job.source.add_all([[(1, 10), (2, 20)]] * 3)
    policy = {"snapshot.max-log-handles": 1}
    metrics = sl.Metrics()
    job.run(tasks=2, retainedCheckpoints=9, metrics=metrics, **policy)
    check_metrics(metrics.snapshot(), job.progress)
    recorded = records(job.state)
    assert 3 == len(recorded) == len(job.progress)
    for record, progress in zip(recorded, job.progress, strict=True):
        assert {"plan", "run"} == set(record.figures.milliseconds)
        for phase, took in record.figures.milliseconds.items():
            assert took == round(progress.milliseconds[phase])
        assert {"tasks": 0, "puts": 0} == record.retries
        assert progress.objects == 1 + record.figures.objects
        assert progress.object_bytes > record.figures.object_bytes
    assert recorded[0].previous_ms is None
    for after, progress in zip(recorded[1:], job.progress, strict=False):
        assert {
            phase: round(progress.milliseconds[phase])
            for phase in ("commit", "deliver", "clean_up")
        } == after.previous_ms
    assert sum(record.figures.objects for record in recorded) > 0
    job.source.add([(1, 1)])
    job.run(tasks=2, retainedCheckpoints=9)
    assert records(job.state)[-1].previous_ms is None  # the first of a run


def check_metrics(values: Mapping[str, Any], progress: list[BatchProgress]) -> None:
    """Check the metrics of three micro-batches of two rows."""
    snapshots = sum(report.snapshots for report in progress)
    assert snapshots > 0
    assert snapshots == values["started_materialization"] == values["completed_materialization"]
    assert 0 == values["failed_materialization"]
    assert (6, 6) == (values["num_records_in"], values["num_records_out"])
    assert 2 == values["state_entries"]
    durations = values["micro_batch_durations"]
    assert isinstance(durations, HistogramSnapshot)
    assert [report.milliseconds["total"] for report in progress] == list(durations.values)
    assert values["last_duration_of_materialization"] > 0
    assert values["last_full_size_of_materialization"] > 0


def test_uploads_of_tasks_follow_the_options(job, spark):
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
