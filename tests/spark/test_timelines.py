"""Histories of queries: what never ran after a rewind, forks beside their parents, and what-if."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.locations.sequence_entries import claims, committed
from tests.support.spark.checkpoint_files import InTime, cut_short, forget_newest_batch, newest
from tests.support.spark.processors import TOTALS, Totals, TotalsModel, totals_job, totals_of
from tests.support.spark.streams import BatchSource, Job, configured, in_order, until, wait

import statelog
from statelog.cli.main import run
from statelog.errors import CheckpointError, UsageError
from statelog.runtime.fail_points import VARIABLE
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
ON_DISK = {"stream.data-inline-threshold": 0, "state.backend": "disk", "memoryBudget": "64 mb"}
AT_ONCE = ("--min-idle", "0s")


def job_of(spark: SparkSession, folder: Path, **options: Any) -> Job:
    kind = InTime if options.get("timeMode") == "EventTime" else BatchSource
    return totals_job(spark, folder, kind=kind, **{"retainedCheckpoints": 4, **options})


def until_batch(folder: Path, batch_id: int) -> None:
    committed = folder / "query" / "commits" / str(batch_id)
    until(committed.exists, f"batch {batch_id}")


@pytest.mark.parametrize(
    "options",
    [{}, {"delivery": "direct"}, {"timeMode": "EventTime"}, ON_DISK],
    ids=["staged", "direct", "event time", "files, on disk"],
)
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


def rewind(job: Job, batch_id: int, *arguments: str, status: int = 0) -> None:
    place = [str(job.query), "--state-location", str(job.state)]
    assert status == run(["rewind", *place, "--batch-id", str(batch_id), "--apply", *arguments])


def model_after(batches: int) -> TotalsModel:
    model = TotalsModel()
    for rows in BATCHES[:batches]:
        model.apply(rows)
    return model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"timeMode": "ProcessingTime"},
        {"timeMode": "EventTime", "delivery": "direct"},
        ON_DISK,
    ],
    ids=["none", "processing time, ticks", "event time, direct", "files, on disk"],
)
def test_after_a_rewind_the_later_batches_have_never_run(spark, tmp_path, options):
    job = job_of(spark, tmp_path, **options)
    job.source.add_all(BATCHES[:4])
    job.run()
    planned = newest(job.query / "offsets")
    job.take()
    rewind(job, 1, *AT_ONCE)
    assert 1 == newest(job.query / "offsets") == newest(job.query / "commits")
    assert planned >= 3
    job.source.add_all(BATCHES[4:])
    job.run(tasks=3)
    model = model_after(2)
    expected = [(batch, model.apply(rows)) for batch, rows in enumerate(BATCHES[2:], start=2)]
    assert expected == [(batch, in_order(rows)) for batch, rows in job.delivered if rows]
    job.take()
    job.source.add(BATCHES[0])
    job.run()
    assert [model.apply(BATCHES[0])] == [rows for rows in job.take_in_order() if rows]


def test_a_rewind_repairs_a_batch_planned_anew(spark, tmp_path):
    job = job_of(spark, tmp_path)
    job.source.add_all(BATCHES[:3])
    job.run()
    job.take()
    forget_newest_batch(job.query)
    job.source.add(BATCHES[3])
    with pytest.raises(StreamingQueryException, match="planned batch 2 again"):
        job.run()
    rewind(job, 2, "--min-idle", "0s", status=1)  # not as it was committed
    rewind(job, 1, *AT_ONCE)
    job.run()
    assert totals_of(BATCHES[:4])[2:] == job.take_in_order()


def test_a_rewind_repairs_an_emptied_offset_file(spark, tmp_path):
    job = job_of(spark, tmp_path)
    job.source.add_all(BATCHES[:3])
    job.run()
    job.take()
    for folder in ("offsets", "commits"):
        cut_short(job.query / folder, 2)
    cut_short(job.query / "commits", 1)  # delivered again
    before = claims(job.state), committed(job.state)
    with pytest.raises(CheckpointError, match=r"log of .*offsets/2 is empty.*statelog rewind"):
        job.run()
    assert before == (claims(job.state), committed(job.state))
    rewind(job, 1, *AT_ONCE)
    job.run()
    assert totals_of(BATCHES[:3])[1:] == job.take_in_order()


STEPS = ("edit-claimed", "rewind-committed", "rewind-offsets-deleted")


@pytest.mark.parametrize("step", STEPS)
def test_a_rewind_that_is_killed_at_any_step_leaves_a_query_that_is_refused_or_exact(
    spark, tmp_path, step
):
    job = job_of(spark, tmp_path)
    job.source.add_all(BATCHES[:4])
    job.run()
    command = [
        *(sys.executable, "-m", "statelog.cli.main", "rewind", str(tmp_path / "query")),
        *("--state-location", str(job.state), "--batch-id", "1", "--apply", "--min-idle", "0s"),
    ]
    killed = subprocess.run(
        command, env={**os.environ, VARIABLE: f"{step}:1"}, capture_output=True, check=False
    )
    assert -9 == killed.returncode, killed.stderr
    shutil.copytree(job.query, tmp_path / "saved" / "query")
    shutil.copytree(job.state, tmp_path / "saved" / "state")
    job.take()
    job.source.add(BATCHES[4])
    try:  # whoever starts the query now is refused, or gets every row once
        job.run()
    except StreamingQueryException as error:
        assert "statelog rewind" in str(error)
        assert [] == job.take()
    else:
        model, after = model_after(5), {}
        for rows in job.take():
            after.update({row.key: (row.total, row.rows) for row in rows})
        assert after == {key: model.totals[key] for key in after}
        assert ({4, 5} if step == "edit-claimed" else {1, 2, 4, 5}) == after.keys()
    for folder in ("query", "state"):
        shutil.rmtree(tmp_path / folder)
        shutil.copytree(tmp_path / "saved" / folder, tmp_path / folder)
    assert 0 == subprocess.run(command, check=False).returncode
    assert 0 == subprocess.run(command, check=False).returncode  # there is nothing to do
    job.run()
    model = model_after(2)
    expected = [(batch, model.apply(BATCHES[batch])) for batch in (2, 3, 4)]
    assert expected == [(batch, in_order(rows)) for batch, rows in job.delivered]


def test_a_run_that_is_still_active_is_noticed_and_else_fenced(spark, tmp_path, capsys):
    job = job_of(spark, tmp_path)
    job.source.add_all(BATCHES[:3])
    query = job.start(trigger={"processingTime": "200 milliseconds"})
    try:
        until(lambda: len(job.delivered) == 3, "the third batch")
        time.sleep(0.5)
        rewind(job, 1, status=1)
        assert "so the query may be running" in capsys.readouterr().err
        rewind(job, 1, *AT_ONCE)
        job.source.add(BATCHES[3])
        with pytest.raises(StreamingQueryException, match="FencedError"):
            wait(query)
    finally:
        query.stop()
    job.take()
    # The run that was fenced had planned a batch meanwhile.  Where it had also written an entry of
    # the source's log behind those that are gone, Spark itself refuses the log.
    with pytest.raises(
        StreamingQueryException, match=r"statelog rewind|sources/0/\d+ doesn't exist"
    ):
        job.run()
    rewind(job, 1, *AT_ONCE)
    job.run()
    assert totals_of(BATCHES[:4])[2:] == job.take_in_order()


def test_the_compact_log_of_a_source_goes_back_too(spark, tmp_path, capsys):
    with configured(spark, {"spark.sql.streaming.fileSource.log.compactInterval": "3"}):
        job = job_of(spark, tmp_path, retainedCheckpoints=9)
        batches = [[(batch, batch), (0, 1)] for batch in range(9)]
        job.source.add_all(batches)
        job.run()
        job.take()
        for batch_id in (6, 3):
            capsys.readouterr()
            rewind(job, batch_id, *AT_ONCE, "--json")
            summary = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
            assert 8 - batch_id == summary["input_files"]
            assert [] == summary["missing_files"]
            job.run()
            assert totals_of(batches)[batch_id + 1 :] == job.take_in_order()


def test_an_operator_of_sparks_own_is_refused(spark, tmp_path, capsys):
    class Distinct(BatchSource):
        def frame(self) -> DataFrame:
            return super().frame().dropDuplicates(["key", "amount"])

    job = totals_job(spark, tmp_path, kind=Distinct, retainedCheckpoints=4)
    job.source.add_all(BATCHES[:3])
    job.run()
    rewind(job, 1, *AT_ONCE, status=1)
    assert "state of one of Spark's own operators" in capsys.readouterr().err
