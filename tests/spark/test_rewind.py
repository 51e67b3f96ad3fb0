"""`statelog rewind` on real queries: afterwards it is as if the later micro-batches had never run."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.locations.sequence_entries import claims, committed
from tests.support.spark.checkpoint_files import InTime, cut_short, forget_newest_batch, newest
from tests.support.spark.processors import TotalsModel, totals_job, totals_of
from tests.support.spark.streams import BatchSource, Job, configured, in_order, until, wait

from statelog.cli.main import run
from statelog.errors import CheckpointError
from statelog.runtime.fail_points import VARIABLE

BATCHES = [
    [(1, 10), (2, 20)],
    [(1, 1), (3, 30)],
    [(2, 2)],
    [(1, 5), (4, 4)],
    [(4, 1), (5, 5)],
    [(1, 7)],
]
AT_ONCE = ("--min-idle", "0s")
MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "processing time, ticks": {"timeMode": "ProcessingTime"},
    "event time, direct": {"timeMode": "EventTime", "delivery": "direct"},
    "files, on disk": {
        "stream.data-inline-threshold": 0,
        "state.backend": "disk",
        "memoryBudget": "64 mb",
    },
}


def a_job(spark: SparkSession, folder: Path, options: dict[str, Any] | None = None) -> Job:
    settings = {"retainedCheckpoints": 4, **(options or {})}
    kind = InTime if settings.get("timeMode") == "EventTime" else BatchSource
    return totals_job(spark, folder, kind=kind, **settings)


def rewind(job: Job, batch_id: int, *arguments: str, status: int = 0) -> None:
    place = [str(job.query), "--state-location", str(job.state)]
    assert status == run(["rewind", *place, "--batch-id", str(batch_id), "--apply", *arguments])


def model_after(batches: int) -> TotalsModel:
    model = TotalsModel()
    for rows in BATCHES[:batches]:
        model.apply(rows)
    return model


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_after_a_rewind_the_later_batches_have_never_run(spark, tmp_path, options):
    job = a_job(spark, tmp_path, options)
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
    job = a_job(spark, tmp_path)
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
    job = a_job(spark, tmp_path)
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
    job = a_job(spark, tmp_path)
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
    job = a_job(spark, tmp_path)
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
        job = a_job(spark, tmp_path, {"retainedCheckpoints": 9})
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
