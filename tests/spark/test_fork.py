"""A fork of a query: both go on exactly, and what-if finds in it just what changed code changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.spark.checkpoint_files import InTime
from tests.support.spark.processors import TOTALS, Totals, totals_job, totals_of
from tests.support.spark.streams import BatchSource, Job, configured, in_order, until

import statelog
from statelog.cli.main import run
from statelog.errors import CheckpointError, UsageError
from statelog.spark import transform_with_state, what_if

BATCHES = [
    [(1, 10), (2, 20)],
    [(1, 1), (3, 30)],
    [(2, 2)],
    [(1, 5), (4, 4)],
    [(4, 1), (5, 100)],
    [(1, 7), (6, 6)],
    [(2, 1), (3, 3)],
]
MODES: dict[str, dict[str, Any]] = {
    "staged": {},
    "direct": {"delivery": "direct"},
    "event time": {"timeMode": "EventTime"},
    "files, on disk": {
        "stream.data-inline-threshold": 0,
        "state.backend": "disk",
        "memoryBudget": "64 mb",
    },
}


def job_of(spark: SparkSession, folder: Path, **options: Any) -> Job:
    kind = InTime if options.get("timeMode") == "EventTime" else BatchSource
    return totals_job(spark, folder, kind=kind, **{"retainedCheckpoints": 3, **options})


def until_batch(folder: Path, batch_id: int) -> None:
    committed = folder / "query" / "commits" / str(batch_id)
    until(committed.exists, f"batch {batch_id}")


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_parent_and_fork_run_beside_each_other(spark, tmp_path, options):
    parent = job_of(spark, tmp_path / "parent", retainedCheckpoints=2, **options)
    child = replace(parent, folder=tmp_path / "child", delivered=[], progress=[])
    source = parent.source
    with configured(spark, {"spark.sql.streaming.fileSource.log.compactInterval": "3"}):
        source.add_all(BATCHES[:4])
        running = parent.start(trigger={"processingTime": "50 milliseconds"})
        until_batch(parent.folder, 3)
        fork = statelog.fork(
            parent.state, child.state, new_checkpoint_location=child.folder / "query"
        )
        source.add_all(BATCHES[4:6])
        beside = child.start(trigger={"processingTime": "50 milliseconds"})
        until_batch(parent.folder, 5)
        until_batch(child.folder, fork.batch_id + 2)
        assert run(["gc", str(parent.state), "--apply", "--min-age", "0s"]) == 0
        source.add(BATCHES[6])
        until_batch(parent.folder, 6)
        until_batch(child.folder, fork.batch_id + 3)
        running.stop()
        beside.stop()
    expected = totals_of(BATCHES)
    assert expected == [in_order(rows) for _, rows in parent.delivered if rows]
    assert expected[4:] == [in_order(rows) for _, rows in child.delivered if rows]
    for job in (parent, child):
        with statelog.open(job.state) as state:
            table = state.table("total").sort_by("key.key")
        totals = dict(
            zip(table["key.key"].to_pylist(), table["value.total"].to_pylist(), strict=True)
        )
        assert totals == {1: 23, 2: 23, 3: 33, 4: 5, 5: 100, 6: 6}
    assert run(["verify", str(child.state)]) == 0


class Capped(Totals):
    """Takes no more than 50 of an amount: the change."""

    def handleInputRows(self, key, rows, timerValues):
        capped = [Row(amount=min(row.amount, 50)) for row in rows]
        yield from super().handleInputRows(key, capped, timerValues)


def stream_of(job: Job, processor: Totals) -> DataFrame:
    options = {name: value for name, value in job.options.items() if name != "delivery"}
    return transform_with_state(job.source.frame().groupBy("key"), processor, TOTALS, **options)


def run_batches(job: Job, batches: list[list[tuple[int, int]]]) -> None:
    job.source.add_all(batches)
    job.run()


def fork_of(job: Job) -> statelog.Fork:
    return statelog.fork(job.state, job.folder / "next" / "statelog")


@pytest.mark.parametrize(
    "options",
    [{}, {"delivery": "direct", "timeMode": "EventTime"}, {"timeMode": "ProcessingTime"}],
    ids=["staged", "direct, event time", "processing time"],
)
def test_the_same_code_differs_in_nothing(spark, tmp_path, options):
    job = job_of(spark, tmp_path, **options)
    run_batches(job, BATCHES[:2])
    fork = fork_of(job)
    run_batches(job, BATCHES[2:])
    seen: list[tuple[int, int]] = []
    comparison = what_if(
        fork,
        stream_of(job, Totals()),
        current=stream_of(job, Totals()),
        on_batch=lambda batch, last: seen.append((batch, last)),
    )
    assert (comparison.is_same, comparison.reproducible, comparison.not_compared) == (
        True,
        True,
        (),
    )
    assert sum(batch.input_rows for batch in comparison.batches) == sum(map(len, BATCHES[2:]))
    assert seen == [
        (batch.batch_id, comparison.batches[-1].batch_id) for batch in comparison.batches
    ]
    assert "0 added, 0 removed" in str(comparison)
    tags = {tag.kind.value for tag in statelog.tags(job.state)}
    assert tags == {"fork"}  # of the fork itself; what kept the compared checkpoint is gone
    assert not list(tmp_path.glob("next/statelog-current*/*/*"))


def test_changed_code_differs_where_it_changes(spark, tmp_path):
    job = job_of(spark, tmp_path)
    run_batches(job, BATCHES[:2])
    fork = fork_of(job)
    run_batches(job, BATCHES[2:5])
    until = statelog.open(job.state).checkpoints()[-1].checkpoint_id
    run_batches(job, BATCHES[5:])
    comparison = what_if(fork, stream_of(job, Capped()), until=until)
    assert [(4, "removed", 5, 100), (4, "added", 5, 50)] == [
        (row["batch_id"], row["change"], row["key"], row["total"])
        for row in comparison.outputs.to_pylist()
    ]
    (table,) = comparison.state.values()
    (row,) = table.to_pylist()
    assert ("update", 5, 100, 50) == (
        row["change"],
        row["key.key"],
        row["before.total"]["total"],
        row["after.total"]["total"],
    )
    assert not comparison.is_same
    assert "keys whose state differs in transform_with_state: 1\n" in str(comparison)
    with pytest.raises(CheckpointError, match="has already run on the fork"):
        what_if(fork, stream_of(job, Capped()), until=until)
    # Switch: the changed query goes on from the fork, with the rows that follow.
    assert fork.query is not None
    successor = Job(job.source, tmp_path / "successor", ["key"], Capped(), TOTALS)
    successor.run(checkpointLocation=fork.query.checkpoint_location, stateLocation=fork.location)
    assert totals_of(BATCHES)[5:] == successor.take_in_order()


def test_what_cannot_be_compared_is_said(spark, tmp_path):
    job = job_of(spark, tmp_path, delivery="direct")
    run_batches(job, BATCHES[:2])
    fork = fork_of(job)
    with pytest.raises(CheckpointError, match="a checkpoint after the forked batch"):
        what_if(fork, stream_of(job, Totals()))
    with pytest.raises(UsageError, match="transform_with_state"):
        what_if(fork, spark.range(1))
    run_batches(job, BATCHES[2:4])
    comparison = what_if(fork, stream_of(job, Totals()))
    assert comparison.not_compared == tuple(batch.batch_id for batch in comparison.batches)
    assert comparison.is_same  # the state was compared
