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
from tests.spark import processors
from tests.spark.checkpoint_files import InTime, cut_short, forget_newest_batch, in_order, newest
from tests.spark.processors import INPUT, TOTALS, Totals, TotalsModel
from tests.spark.streams import BatchSource, Job, wait, workers_get_by_value

from statelog.cli.main import run
from statelog.errors import CheckpointError
from statelog.runtime.fail_points import VARIABLE

workers_get_by_value(processors.__name__)

BATCHES = [
    [(1, 10), (2, 20)],
    [(1, 1), (3, 30)],
    [(2, 2)],
    [(1, 5), (4, 4)],
    [(4, 1), (5, 5)],
    [(1, 7)],
]
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
    return Job(kind(spark, folder / "in", INPUT), folder, ["key"], Totals(), TOTALS, settings)


def rewind(job: Job, *arguments: str, status: int = 0) -> None:
    given = [str(job.folder / "query"), "--state-location", str(job.state), *arguments]
    assert status == run(["rewind", *given])


def model_after(batches: int) -> TotalsModel:
    model = TotalsModel()
    for rows in BATCHES[:batches]:
        model.apply(rows)
    return model


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_after_a_rewind_the_later_batches_have_never_run(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    job = a_job(spark, tmp_path, options)
    for rows in BATCHES[:4]:
        job.source.add(rows)
    job.run()
    planned = newest(tmp_path / "query" / "offsets")
    job.take()
    rewind(job, "--batch-id", "1", "--apply", "--min-idle", "0s")
    assert 1 == newest(tmp_path / "query" / "offsets") == newest(tmp_path / "query" / "commits")
    assert planned >= 3
    for rows in BATCHES[4:]:
        job.source.add(rows)
    job.run(tasks=3)
    model = model_after(2)
    expected = [(at, model.apply(rows)) for at, rows in enumerate(BATCHES[2:], start=2)]
    assert expected == [(batch, in_order(rows)) for batch, rows in job.delivered if rows]
    job.take()
    job.source.add(BATCHES[0])
    job.run()
    assert [model.apply(BATCHES[0])] == [in_order(rows) for rows in job.take() if rows]


def test_a_rewind_repairs_a_batch_planned_anew(spark: SparkSession, tmp_path: Path) -> None:
    job = a_job(spark, tmp_path)
    for rows in BATCHES[:3]:
        job.source.add(rows)
    job.run()
    job.take()
    forget_newest_batch(tmp_path / "query")
    job.source.add(BATCHES[3])
    with pytest.raises(StreamingQueryException, match="planned batch 2 again"):
        job.run()
    rewind(
        job, "--batch-id", "2", "--apply", "--min-idle", "0s", status=1
    )  # not as it was committed
    rewind(job, "--batch-id", "1", "--apply", "--min-idle", "0s")
    job.run()
    model = model_after(2)
    expected = [model.apply(rows) for rows in BATCHES[2:4]]
    assert expected == [in_order(rows) for rows in job.take()]


def test_a_rewind_repairs_an_emptied_offset_file(spark: SparkSession, tmp_path: Path) -> None:
    job = a_job(spark, tmp_path)
    for rows in BATCHES[:3]:
        job.source.add(rows)
    job.run()
    job.take()
    for folder in ("offsets", "commits"):
        cut_short(tmp_path / "query" / folder, 2)
    cut_short(tmp_path / "query" / "commits", 1)  # delivered again
    with pytest.raises(CheckpointError, match=r"offsets/2 is empty.*statelog rewind"):
        job.run()
    rewind(job, "--batch-id", "1", "--apply", "--min-idle", "0s")
    job.run()
    model = model_after(1)
    expected = [model.apply(rows) for rows in BATCHES[1:3]]
    assert expected == [in_order(rows) for rows in job.take()]


STEPS = ("edit-claimed", "rewind-committed", "rewind-offsets-deleted")


@pytest.mark.parametrize("step", STEPS)
def test_a_rewind_that_is_killed_at_any_step_leaves_a_query_that_is_refused_or_exact(
    spark: SparkSession, tmp_path: Path, step: str
) -> None:
    job = a_job(spark, tmp_path)
    for rows in BATCHES[:4]:
        job.source.add(rows)
    job.run()
    command = [
        *(sys.executable, "-m", "statelog.cli.main", "rewind", str(tmp_path / "query")),
        *("--state-location", str(job.state), "--batch-id", "1", "--apply", "--min-idle", "0s"),
    ]
    killed = subprocess.run(
        command, env={**os.environ, VARIABLE: f"{step}:1"}, capture_output=True, check=False
    )
    assert -9 == killed.returncode, killed.stderr
    shutil.copytree(tmp_path / "query", tmp_path / "saved" / "query")
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
    expected = [(at, model.apply(BATCHES[at])) for at in (2, 3, 4)]
    assert expected == [(batch, in_order(rows)) for batch, rows in job.delivered]


def test_a_run_that_is_still_active_is_noticed_and_else_fenced(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job(spark, tmp_path)
    for rows in BATCHES[:3]:
        job.source.add(rows)
    query = job.start(trigger={"processingTime": "200 milliseconds"})
    try:
        deadline = time.monotonic() + 60
        while len(job.delivered) < 3:
            assert time.monotonic() < deadline, query.exception()
            time.sleep(0.05)
        time.sleep(0.5)
        rewind(job, "--batch-id", "1", "--apply", status=1)
        assert "so the query may be running" in capsys.readouterr().err
        rewind(job, "--batch-id", "1", "--apply", "--min-idle", "0s")
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
    rewind(job, "--batch-id", "1", "--apply", "--min-idle", "0s")
    job.run()
    model = model_after(2)
    assert [model.apply(rows) for rows in BATCHES[2:4]] == [in_order(rows) for rows in job.take()]


def test_the_compact_log_of_a_source_goes_back_too(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interval = "spark.sql.streaming.fileSource.log.compactInterval"
    spark.conf.set(interval, "3")
    try:
        job, model = a_job(spark, tmp_path, {"retainedCheckpoints": 9}), TotalsModel()
        batches = [[(at, at), (0, 1)] for at in range(9)]
        for rows in batches:
            job.source.add(rows)
        job.run()
        job.take()
        for to in (6, 3):
            capsys.readouterr()
            rewind(job, "--batch-id", str(to), "--apply", "--min-idle", "0s", "--json")
            said = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
            assert 8 - to == said["input_files"]
            assert [] == said["missing_files"]
            model = TotalsModel()
            expected = [model.apply(rows) for rows in batches][to + 1 :]
            job.run()
            assert expected == [in_order(rows) for rows in job.take()]
    finally:
        spark.conf.unset(interval)


def test_an_operator_of_sparks_own_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Distinct(BatchSource):
        def frame(self) -> DataFrame:
            return super().frame().dropDuplicates(["key", "amount"])

    job = Job(
        Distinct(spark, tmp_path / "in", INPUT),
        tmp_path,
        ["key"],
        Totals(),
        TOTALS,
        {"retainedCheckpoints": 4},
    )
    for rows in BATCHES[:3]:
        job.source.add(rows)
    job.run()
    rewind(job, "--batch-id", "1", "--apply", "--min-idle", "0s", status=1)
    assert "state of one of Spark's own operators" in capsys.readouterr().err
