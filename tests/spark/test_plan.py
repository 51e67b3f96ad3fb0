"""What follows a stateful operator in the plan does the same as on a plain frame."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as fn
from tests.support.spark.processors import INPUT, TOTALS, Totals, totals_of
from tests.support.spark.streams import BatchSource, run_to_end, wait

from statelog.errors import UsageError
from statelog.spark import StatefulStream, transform_with_state

BATCHES = [[(1, 5), (2, 7), (3, -20)], [(1, 1), (4, 100), (9, 0)]]


def doubled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(value=frame["value"] * 2)


def plan(totals: DataFrame, names: DataFrame) -> DataFrame:
    """A plan of all sorts, written with columns held from several of its steps."""
    named = totals.alias("t").join(names, totals.key == names.key, "left").drop(names.key)
    wide = named.withColumn("half", totals.total / 2).withColumns({"one": fn.lit(1)})
    chosen = wide.filter(wide.half > -9).where("one = 1")[["key", "name", "total", "half", "rows"]]
    filled = chosen.na.fill({"name": "nobody"}).withColumnRenamed("half", "a.b").drop("nothing")
    typed = filled.select(
        "key", filled.name, filled["`a.b`"].cast("decimal(9,1)").alias("d"), "rows"
    )
    long = typed.unpivot(
        ["key", "name"], [typed.d, typed.rows.cast("decimal(9,1)").alias("n")], "w", "v"
    )
    spread = long.selectExpr("key", "name", "w", "explode(array(v, -v)) AS x").hint("rebalance")
    cast = spread.select(spread.key, "name", spread.x.cast("double").alias("value"))
    final = cast.mapInPandas(doubled, cast.schema).transform(
        lambda frame: frame.toDF("k", "n", "v")
    )
    return final.replace("nobody", "none").repartition(3)


def names_of(spark: SparkSession) -> DataFrame:
    # A batch frame with an aggregation of its own may be joined.
    rows = spark.createDataFrame([(1, "one"), (2, "two"), (2, "two")], "key bigint, name string")
    return rows.groupBy("key").agg(fn.max("name").alias("name"))


def stream_of(source: BatchSource, **settings: Any) -> DataFrame:
    grouped = source.frame().groupBy("key")
    return transform_with_state(grouped, Totals(), TOTALS, tasks=2, **settings)


@pytest.fixture
def source(spark, tmp_path):
    return BatchSource(spark, tmp_path / "in", INPUT)


def test_a_recorded_plan_gives_what_it_gives_on_a_plain_frame(spark, tmp_path, source):
    names = names_of(spark)
    delivered: list[Row] = []
    for rows, delivery in zip(BATCHES, ("staged", "direct"), strict=True):
        source.add(rows)
        totals = stream_of(source, delivery=delivery)
        planned = plan(totals, names)
        assert isinstance(planned, StatefulStream) and isinstance(planned, DataFrame)
        delivered += [row for batch in run_to_end(planned, tmp_path / "query") for row in batch]
    due = [row for rows in totals_of(BATCHES) for row in rows]
    plain = plan(spark.createDataFrame(due, TOTALS), names)
    assert (plain.schema, plain.columns, plain.dtypes) == (
        planned.schema,
        planned.columns,
        planned.dtypes,
    )
    assert sorted(plain.collect()) == sorted(delivered)
    assert 20 == len(delivered)
    # The plan may change at a restart; the state stays.
    source.add([(1, 2), (2, -7)])
    totals = stream_of(source)
    changed = totals.filter(totals.total > 5).select("key", totals["total"])
    assert [[Row(key=1, total=8)]] == run_to_end(changed, tmp_path / "query")


def test_calls_that_spark_refuses_are_refused_at_once(spark, source, capsys):
    totals = stream_of(source)
    other, names = spark.readStream.format("rate").load(), names_of(spark)
    numbered = fn.monotonically_increasing_id()
    ranked = fn.row_number().over(Window.orderBy("key"))
    for wrong, error, message in (
        (lambda: totals.select("totl"), AnalysisException, "totl"),
        (lambda: totals.totl, AttributeError, "totl"),
        (lambda: totals["totl"], AnalysisException, "totl"),
        (lambda: totals.filter("total >"), AnalysisException, "PARSE_SYNTAX_ERROR"),
        (lambda: totals.select(fn.sum("total")), UsageError, "needs Spark's own state"),
        (lambda: totals.join(other, fn.lit(True)), UsageError, "a second stream"),
        (lambda: totals.join(totals, "key"), UsageError, "a second stream"),
        (lambda: names.join(totals, "key"), UsageError, r"stateful\.join"),
        (lambda: totals.join(names, "key", "right"), AnalysisException, "not supported"),
        (lambda: totals.select(numbered), AnalysisException, "not supported"),
        (lambda: totals.select(ranked), AnalysisException, "NON_TIME_WINDOW"),
        (lambda: totals.transform(lambda frame: 3), UsageError, "returns a frame, not int"),
    ):
        with pytest.raises(error, match=message):
            wrong()
    assert totals.isStreaming and totals.key is not None and "total" in dir(totals)
    assert "StatefulStream[key: bigint, total: bigint, rows: bigint]" == repr(totals)
    page = totals._repr_html_()
    assert "stateful operator transform_with_state" in page and "key bigint" not in page
    assert "key int64" in page and "in the checkpointLocation of the query" in page
    totals.printSchema()
    assert "|-- total: long" in capsys.readouterr().out


def test_a_direct_sink_that_merges_tasks_is_refused(tmp_path, source):
    source.add([(key, 1) for key in range(20)])
    totals = stream_of(source, delivery="direct")
    delivered: list[tuple[Any, ...]] = []

    def sink(frame: DataFrame, batch_id: int) -> None:
        for merged in (frame.coalesce(1), frame.union(frame)):
            with pytest.raises(PythonException, match="changes the partitions"):
                merged.collect()
        delivered.extend(map(tuple, frame.repartition(1).collect()))

    writer = totals.writeStream.option("checkpointLocation", str(tmp_path / "query"))
    wait(writer.foreachBatch(sink).trigger(availableNow=True).start())
    assert [(key, 1, 1) for key in range(20)] == sorted(delivered)
