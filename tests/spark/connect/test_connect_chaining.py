"""Several stateful operators in one query of a Connect session."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from tests.spark import test_chaining
from tests.spark.connect.jobs import ConnectJob
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import BatchSource, workers_get_by_value
from tests.spark.test_chaining import BATCHES, BUCKETS, CHANGES, ChainModel, Changes

from statelog.errors import UsageError
from statelog.spark import disable, enable, transform_with_state
from statelog.state.reader import StateReader

workers_get_by_value(test_chaining.__name__)
workers_get_by_value("tests.spark.processors")


@pytest.fixture
def job(remote: SparkSession, tmp_path: Path) -> ConnectJob:
    source = BatchSource(remote, tmp_path / "in", INPUT)
    return ConnectJob(source, tmp_path, ["key"], Totals(), TOTALS, {"tasks": 2})


def second(out: DataFrame, **settings: Any) -> DataFrame:
    """Return the second operator behind the totals."""
    steps = out.where(out.total >= 0).withColumn("bucket", col("key") % BUCKETS)
    return transform_with_state(steps.groupBy("bucket"), Changes(), CHANGES, **settings)


def test_two_operators_commit_one_object_over_a_restart(
    job: ConnectJob, remote: SparkSession
) -> None:
    initial = remote.createDataFrame([(0, 0, 0)], CHANGES).groupBy("bucket")
    job.steps = lambda out: second(out, initialState=initial)
    model = ChainModel()
    for rows in BATCHES[:3]:
        job.source.add(rows)
    job.run()
    for rows in BATCHES[3:]:
        job.source.add(rows)
    last = job.run()
    assert [1] * len(BATCHES) == [one.objects for one in last.recentBatches]
    delivered = [sorted(tuple(row.values()) for row in rows) for rows in job.sink.batches()]
    assert [rows for rows in map(model.apply, BATCHES) if rows] == delivered
    with StateReader.open(job.folder / "state", operator="transform_with_state_2") as reader:
        assert len(model.seen) == reader.table("seen").num_rows


def test_an_enabled_session_chains_its_own_calls_and_others_are_refused(
    job: ConnectJob, remote: SparkSession
) -> None:
    grouped = job.stream().groupBy("key")
    with pytest.raises(UsageError, match="cannot be grouped for an operator of Spark's"):
        grouped.count()
    with pytest.raises(UsageError, match="cannot be grouped for an operator of Spark's"):
        grouped.transformWithState(Changes(), CHANGES, "Update", "None")
    remote.conf.set("spark.statelog.stateLocation", "checkpoint")
    enable(remote)
    try:
        steps = job.stream().withColumn("bucket", col("key") % BUCKETS).groupBy("bucket")
        chained = steps.transformWithState(Changes(), CHANGES, "Update", "None")
        assert ["bucket", "changes", "sum"] == chained.columns
    finally:
        disable(remote)
        remote.conf.unset("spark.statelog.stateLocation")
