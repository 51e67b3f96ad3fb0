"""A query writes into each checkpoint what its micro-batch cost."""

from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import BatchSource, Job
from tests.support.locations.sequence_entries import claims, committed

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import read_checkpoint
from statelog.extensions.report import ReportPlan, collect, page
from statelog.store import open_existing_store


def records(location: Path) -> list[BatchRecord]:
    store = open_existing_store(location)
    return [BatchRecord.of(read_checkpoint(store, one).checkpoint) for one in committed(location)]


def test_costs_are_recorded_also_after_the_commit(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    job = Job(source, tmp_path, ["key"], Totals(), TOTALS)
    for _ in range(3):
        source.add([(1, 10), (2, 20)])
    policy = {"snapshot.max-log-handles": 1}
    job.run(tasks=2, retainedCheckpoints=9, **policy)
    found = records(job.state)
    assert 3 == len(found) == len(job.progress)
    for record, progress in zip(found, job.progress, strict=True):
        assert {"plan", "run"} == set(record.figures.milliseconds)
        for phase, took in record.figures.milliseconds.items():
            assert took == round(progress.milliseconds[phase])
        assert {"tasks": 0, "puts": 0} == record.retries
        assert progress.objects == 1 + record.figures.objects
        assert progress.object_bytes > record.figures.object_bytes
    assert found[0].previous_ms is None
    for after, progress in zip(found[1:], job.progress, strict=False):
        assert {
            phase: round(progress.milliseconds[phase])
            for phase in ("commit", "deliver", "clean_up")
        } == after.previous_ms
    assert sum(one.figures.objects for one in found) > 0
    source.add([(1, 1)])
    job.run(tasks=2, retainedCheckpoints=9)
    assert records(job.state)[-1].previous_ms is None  # the first of a run


def test_a_report_shows_what_the_query_recorded(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    job = Job(source, tmp_path, ["key"], Totals(), TOTALS)
    for _ in range(2):
        source.add([(1, 10), (2, 20), (3, 30)])
    job.run(tasks=2, retainedCheckpoints=9)
    source.add([(4, 40)])
    job.run(tasks=1, retainedCheckpoints=9)
    figures = collect(open_existing_store(job.state), str(job.state), ReportPlan())
    assert [3, 3, 1] == [batch.rows for batch in figures.batches]
    first, second = claims(job.state)
    assert [first, first, second] == [checkpoint.epoch for checkpoint in figures.checkpoints]
    whole = {"plan", "run", "commit", "deliver", "clean_up"}
    assert [whole, {"plan", "run"}, {"plan", "run"}] == [
        set(batch.milliseconds) for batch in figures.batches
    ]
    (groups,) = figures.skew
    assert (128, 4) == (len(groups.keys), sum(groups.keys))
    assert 0 < sum(groups.change_bytes) < (figures.checkpoints[-1].log_bytes or 0)
    assert figures.restart is not None and 1 == figures.restart.tasks
    assert "2 runs of the query" in page(figures)
