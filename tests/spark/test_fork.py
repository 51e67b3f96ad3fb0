"""A fork of a running query: both go on exactly, and a clean-up of the parent breaks nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.spark.checkpoint_files import InTime
from tests.support.spark.processors import totals_job, totals_of
from tests.support.spark.streams import BatchSource, configured, in_order, until

import statelog
from statelog.cli.main import run

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


def until_batch(folder: Path, batch_id: int) -> None:
    committed = folder / "query" / "commits" / str(batch_id)
    until(committed.exists, f"batch {batch_id}")


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_parent_and_fork_run_beside_each_other(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    kind = InTime if options.get("timeMode") == "EventTime" else BatchSource
    parent = totals_job(spark, tmp_path / "parent", kind=kind, retainedCheckpoints=2, **options)
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
        assert totals == {1: 23, 2: 23, 3: 33, 4: 5, 5: 5, 6: 6}
    assert run(["verify", str(child.state)]) == 0
