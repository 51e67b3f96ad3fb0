"""Broadcast tables on Spark: from each kind of source and in each kind of processor."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from tests.support.spark.processors import INPUT, Totals, totals_job
from tests.support.spark.streams import Job

import statelog as sl
from statelog.errors import UsageError
from statelog.spark import (
    Broadcast,
    ColumnarProcessor,
    transform_with_state,
)

OUTPUT = "key long, factor long"


class Rated(Totals):
    """Yields the factor of each key."""

    def init(self, handle):
        super().init(handle)
        self.rules = handle.broadcast("rules")

    def handleInputRows(self, key, rows, timerValues):
        (rule,) = self.rules.by("key")[key[0]]
        yield Row(key=key[0], factor=rule.factor)


class ColumnRated(ColumnarProcessor):
    def init(self, handle):
        self.rules = handle.broadcast("rules")
        self.seen = handle.getColumnState("seen", "yes boolean")

    def process(self, keys, rows, times):
        both = pa.table({"key": keys["key"]}).join(self.rules.table, "key")
        yield both.select(["key", "factor"])


def rated_job(spark: SparkSession, folder: Path, processor: Any, rules: Any, **options: Any) -> Job:
    job = totals_job(spark, folder, processor, broadcast={"rules": rules}, **options)
    job.output = OUTPUT
    return job


@pytest.mark.parametrize("kind", [Rated, ColumnRated])
def test_every_processor_sees_the_table(spark, tmp_path, kind):
    folder = tmp_path / "rules"
    frame = spark.createDataFrame([(1, 10), (2, 20)], OUTPUT)
    frame.write.parquet(str(folder))
    rules = Broadcast(lambda: spark.read.parquet(str(folder)).orderBy("key"))
    job = rated_job(spark, tmp_path, kind(), rules, tasks=2)
    job.source.add([(1, 1), (2, 1)])
    job.run()
    frame.selectExpr("key", "factor + 1 as factor").write.mode("overwrite").parquet(str(folder))
    job.source.add_all([[(2, 1), (1, 1)], [(1, 1)]])
    job.run()
    assert [[(1, 10), (2, 20)], [(1, 11), (2, 21)], [(1, 11)]] == job.take_in_order()
    with sl.open(str(job.state)) as state:
        retained = [
            checkpoint.checkpoint_id for checkpoint in state.checkpoints() if checkpoint.is_retained
        ]
        versions = [state.broadcasts(checkpoint_id)[0] for checkpoint_id in retained]
        assert 2 == len({version.version for version in versions})
        assert versions[-1].since == versions[-2].since < versions[-1].checkpoint_id
        assert [11, 21] == state.broadcast("rules")["factor"].to_pylist()


def test_a_batch_frame_is_a_source_and_an_input(spark, tmp_path):
    rules = spark.createDataFrame([(1, 10)], OUTPUT)
    job = rated_job(spark, tmp_path, Rated(), rules)
    job.source.add([(1, 1)])
    job.run()
    assert [[Row(key=1, factor=10)]] == job.take()
    batch = spark.createDataFrame([(1, 1)], INPUT)
    out = transform_with_state(batch.groupBy("key"), Rated(), OUTPUT, broadcast={"rules": rules})
    assert [Row(key=1, factor=10)] == out.collect()


def test_what_is_wrong_is_said(spark, tmp_path):
    job = rated_job(spark, tmp_path, Rated(), lambda: spark.range(1 << 22))
    job.source.add([(1, 1)])
    grouped = job.source.frame().groupBy("key")
    with pytest.raises(
        UsageError, match=r"asks for the broadcast table 'rules'.*its tables are prices"
    ):
        transform_with_state(grouped, Rated(), OUTPUT, broadcast={"prices": list})
    with pytest.raises(StreamingQueryException, match="is 32 MiB; at most 16 MiB"):
        job.run()
    job = rated_job(spark, tmp_path, Rated(), job.source.frame)
    with pytest.raises(StreamingQueryException, match="is a stream: pass it as a second input"):
        job.run(checkpointLocation=str(tmp_path / "b"), stateLocation=str(tmp_path / "b-state"))
