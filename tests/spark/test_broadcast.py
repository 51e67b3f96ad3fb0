"""Broadcast tables on Spark: from each kind of source, over kills, and in each kind of processor."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from tests.spark import processors, rules_job
from tests.spark.killed_jobs import run_killed
from tests.spark.processors import INPUT, Totals
from tests.spark.streams import BatchSource, Job, workers_get_by_value

import statelog as sl
from statelog.errors import UsageError
from statelog.spark import (
    Broadcast,
    ColumnarProcessor,
    transform_with_state,
    transform_with_state_in_pandas,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

workers_get_by_value(__name__)
workers_get_by_value(processors.__name__)
workers_get_by_value(rules_job.__name__)

OUTPUT = "key long, factor long"


class Rated(Totals):
    """Yields the factor of each key."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.rules = handle.broadcast("rules")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (rule,) = self.rules.by("key")[key[0]]
        yield Row(key=key[0], factor=rule.factor)


class FrameRated(Rated):
    """The same of frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield pd.DataFrame([row.asDict()])


class ColumnRated(ColumnarProcessor):
    """The same of columns."""

    def init(self, handle: Any) -> None:
        self.rules = handle.broadcast("rules")
        self.seen = handle.getColumnState("seen", "yes boolean")

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[pa.Table]:
        both = pa.table({"key": keys["key"]}).join(self.rules.table, "key")
        yield both.select(["key", "factor"])


@pytest.mark.parametrize("kind", [Rated, FrameRated, ColumnRated])
def test_each_kind_of_processor_sees_the_table(
    spark: "SparkSession", tmp_path: Path, kind: Any
) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    folder = tmp_path / "rules"
    frame = spark.createDataFrame([(1, 10), (2, 20)], OUTPUT)
    frame.write.parquet(str(folder))
    transform = transform_with_state_in_pandas if kind is FrameRated else transform_with_state
    rules = Broadcast(lambda: spark.read.parquet(str(folder)).orderBy("key"))
    options = {"broadcast": {"rules": rules}, "tasks": 2, "transform": transform}
    job = Job(source, tmp_path, ["key"], kind(), OUTPUT, options)
    source.add([(1, 1), (2, 1)])
    job.run()
    frame.selectExpr("key", "factor + 1 as factor").write.mode("overwrite").parquet(str(folder))
    source.add([(2, 1), (1, 1)])
    source.add([(1, 1)])
    job.run()
    assert [[(1, 10), (2, 20)], [(1, 11), (2, 21)], [(1, 11)]] == [
        sorted(map(tuple, rows)) for rows in job.take()
    ]
    with sl.open(str(job.state)) as state:
        retained = [each.checkpoint_id for each in state.checkpoints() if each.is_retained]
        versions = [state.broadcasts(each)[0] for each in retained]
        assert 2 == len({each.version for each in versions})
        assert versions[-1].since == versions[-2].since < versions[-1].checkpoint_id
        assert [11, 21] == state.broadcast("rules")["factor"].to_pylist()


def test_a_batch_frame_is_a_source_and_an_input(spark: "SparkSession", tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    rules = spark.createDataFrame([(1, 10)], OUTPUT)
    source.add([(1, 1)])
    job = Job(source, tmp_path, ["key"], Rated(), OUTPUT, {"broadcast": {"rules": rules}})
    job.run()
    assert [[Row(key=1, factor=10)]] == job.take()
    batch = spark.createDataFrame([(1, 1)], INPUT)
    out = transform_with_state(batch.groupBy("key"), Rated(), OUTPUT, broadcast={"rules": rules})
    assert [Row(key=1, factor=10)] == out.collect()


def test_what_is_wrong_is_said(spark: "SparkSession", tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add([(1, 1)])
    grouped = source.frame().groupBy("key")
    with pytest.raises(UsageError, match=r"asks for the broadcast table 'rules'.*it has prices"):
        transform_with_state(grouped, Rated(), OUTPUT, broadcast={"prices": list})
    options = {"broadcast": {"rules": lambda: spark.range(1 << 22)}}
    job = Job(source, tmp_path, ["key"], Rated(), OUTPUT, options)
    with pytest.raises(StreamingQueryException, match="has 32 MiB, and at most 16 MiB"):
        job.run()
    options = {"broadcast": {"rules": source.frame}}
    with pytest.raises(StreamingQueryException, match="is a stream: give it as a second input"):
        Job(source, tmp_path / "b", ["key"], Rated(), OUTPUT, options).run()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_a_micro_batch_that_is_repeated_sees_the_same_version(
    spark: "SparkSession", tmp_path: Path, delivery: str
) -> None:
    """The table is another at each read: 1 for batch 0, 2 for batch 1 also when it is repeated, 3 for batch 2."""
    source = BatchSource(spark, tmp_path / "in", INPUT)
    for _ in range(3):
        source.add([(key, 1) for key in range(20)])
    program = "rules_job.py"
    assert -9 == run_killed(tmp_path, [program], "before-commit:2", delivery)
    assert "2" == (tmp_path / "reads").read_text()
    assert -9 == run_killed(tmp_path, [program], "before-commit:1", delivery)
    rules_job.run(spark, tmp_path, delivery=delivery)
    factors = [json.loads((tmp_path / "out" / str(batch)).read_text()) for batch in range(3)]
    assert [[1], [2], [3]] == factors
    assert "3" == (tmp_path / "reads").read_text()
