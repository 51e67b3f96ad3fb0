"""A query writes into each checkpoint what its micro-batch cost."""

from pathlib import Path

from tests.support.locations.sequence_entries import claims, committed
from tests.support.spark.streams import Job

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import read_checkpoint
from statelog.extensions.report import ReportPlan, collect, page
from statelog.store import open_existing_store


def records(location: Path) -> list[BatchRecord]:
    store = open_existing_store(location)
    return [
        BatchRecord.of(read_checkpoint(store, number).checkpoint) for number in committed(location)
    ]


def test_costs_are_recorded_also_after_the_commit(job: Job) -> None:
    job.source.add_all([[(1, 10), (2, 20)]] * 3)
    policy = {"snapshot.max-log-handles": 1}
    job.run(tasks=2, retainedCheckpoints=9, **policy)
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


def test_a_report_shows_what_the_query_recorded(job: Job) -> None:
    job.source.add_all([[(1, 10), (2, 20), (3, 30)]] * 2)
    job.run(tasks=2, retainedCheckpoints=9)
    job.source.add([(4, 40)])
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
