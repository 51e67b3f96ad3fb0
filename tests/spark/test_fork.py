"""A fork of a running query: both go on exactly, and a clean-up of the parent breaks nothing."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark import processors
from tests.spark.checkpoint_files import InTime, in_order
from tests.spark.processors import INPUT, TOTALS, Totals, TotalsModel
from tests.spark.streams import BatchSource, Job, workers_get_by_value

import statelog
from statelog.cli.main import run

workers_get_by_value(processors.__name__)

BATCHES = [
    [(1, 10), (2, 20)],
    [(1, 1), (3, 30)],
    [(2, 2)],
    [(1, 5), (4, 4)],
    [(4, 1), (5, 5)],
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


def job_of(folder: Path, source: BatchSource, **options: Any) -> Job:
    return Job(source, folder, ["key"], Totals(), TOTALS, {"retainedCheckpoints": 2, **options})


def until_batch(folder: Path, batch_id: int) -> None:
    deadline = time.monotonic() + 60
    done = folder / "query" / "commits" / str(batch_id)
    while not done.exists():
        assert time.monotonic() < deadline, "the query makes no progress"
        time.sleep(0.05)


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_parent_and_fork_run_beside_each_other(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    kind = InTime if options.get("timeMode") == "EventTime" else BatchSource
    source = kind(spark, tmp_path / "in", INPUT)
    parent = job_of(tmp_path / "parent", source, **options)
    child = job_of(tmp_path / "child", source, **options)
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "3")
    try:
        for rows in BATCHES[:4]:
            source.add(rows)
        running = parent.start(trigger={"processingTime": "50 milliseconds"})
        until_batch(parent.folder, 3)
        made = statelog.fork(
            parent.state, child.state, new_checkpoint_location=child.folder / "query"
        )
        for rows in BATCHES[4:6]:
            source.add(rows)
        beside = child.start(trigger={"processingTime": "50 milliseconds"})
        until_batch(parent.folder, 5)
        until_batch(child.folder, made.batch_id + 2)
        assert run(["gc", str(parent.state), "--apply", "--min-age", "0s"]) == 0
        source.add(BATCHES[6])
        until_batch(parent.folder, 6)
        until_batch(child.folder, made.batch_id + 3)
        running.stop()
        beside.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")
    model = TotalsModel()
    expected = [model.apply(rows) for rows in BATCHES]
    assert expected == [in_order(rows) for _, rows in parent.delivered if rows]
    assert expected[4:] == [in_order(rows) for _, rows in child.delivered if rows]
    for job in (parent, child):
        with statelog.open(job.state) as state:
            table = state.table("total").sort_by("key.key")
        totals = dict(
            zip(table["key.key"].to_pylist(), table["value.total"].to_pylist(), strict=True)
        )
        assert totals == {1: 23, 2: 23, 3: 33, 4: 5, 5: 5, 6: 6}
    assert run(["verify", str(child.state)]) == 0
