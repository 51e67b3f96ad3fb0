"""`aggregate` against Spark's own `groupBy(...).agg(...)`: of all rows so far, and of its streams."""

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from tests.support.spark.aggregates import (
    COLUMNS,
    FUNCTIONS,
    NOON,
    Query,
    columns_of_spark,
    functions_of,
    rows_of,
)
from tests.support.spark.processors import INPUT, TOTALS, Totals
from tests.support.spark.streams import FREQUENT_SNAPSHOTS, BatchSource, run_to_end

import statelog as sl
from statelog.errors import ProcessorError, UsageError
from statelog.spark import Aggregate, aggregate, transform_with_state
from statelog.spark import functions as F

DISTINCT: dict[str, tuple[Aggregate, str]] = {
    "texts": (F.approx_count_distinct("text"), "count(DISTINCT text)"),
    "moments": (F.approx_count_distinct("at", rsd=0.02), "count(DISTINCT at)"),
    "ratios_seen": (F.approx_count_distinct("ratio"), "count(DISTINCT ratio)"),
}


def by_text(rows: Sequence[Row]) -> list[Any]:
    return sorted((row.asDict(recursive=True) for row in rows), key=repr)


def assert_same(actual: Sequence[Row], expected: Sequence[Row], *close: str) -> None:
    """Check that rows are equal, those of some columns nearly."""
    ours, theirs = by_text(actual), by_text(expected)
    for name in close:
        for row, row_of_spark in zip(ours, theirs, strict=True):
            value, value_of_spark = row.pop(name), row_of_spark.pop(name)
            assert (value is None) == (value_of_spark is None)
            assert value is None or value == pytest.approx(value_of_spark, rel=1e-9, abs=1e-6)
    assert ours == theirs


@pytest.mark.parametrize(
    ("seed", "delivery", "zone"),
    [(1, "staged", "Australia/Lord_Howe"), (2, "direct", "Europe/Berlin")],
    indirect=["zone"],
)
def test_each_micro_batch_gives_the_aggregates_of_all_rows_so_far(
    spark, tmp_path, seed, delivery, zone
):
    rng = random.Random(seed)
    source = BatchSource(spark, tmp_path / "in", COLUMNS)
    query = Query(source, tmp_path, delivery=delivery, **FREQUENT_SNAPSHOTS)
    for tasks in (2, 1, 3):
        expected = []
        for _ in range(2):
            source.add(rows_of(rng, rng.randrange(1, 40), 10_000 * source.count))
            seen = spark.read.schema(source.schema).parquet(str(source.folder))
            newest = spark.read.parquet(str(source.folder / f"{source.count:05}.parquet"))
            touched = (
                seen.groupBy("name", "place")
                .agg(*columns_of_spark(FUNCTIONS))
                .alias("r")
                .join(
                    newest.select("name", "place").distinct().alias("k"),
                    sf.expr("r.name <=> k.name AND r.place <=> k.place"),
                    "left_semi",
                )
            )
            expected.append(touched.collect())
        output = query.run("name", "place", tasks=tasks, **functions_of(FUNCTIONS))
        for rows, rows_of_spark in zip(output, expected, strict=True):
            assert_same(rows, rows_of_spark, "spread", "mean_int")


def test_the_output_has_the_schema_of_spark(spark, tmp_path):
    frame = BatchSource(spark, tmp_path / "in", COLUMNS).frame()
    keys = ["name", sf.upper("text").alias("upper"), sf.window("at", "1 hour")]
    functions = [function.alias(name) for name, function in functions_of(FUNCTIONS).items()]
    out = aggregate(frame.groupBy(*keys), *functions)
    of_spark = frame.groupBy(*keys).agg(*columns_of_spark(FUNCTIONS))
    assert out.schema.simpleString() == of_spark.schema.simpleString()


def test_a_batch_frame_is_aggregated_by_spark(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", COLUMNS)
    source.add(rows_of(random.Random(3), 60, 0))
    frame = spark.read.schema(source.schema).parquet(str(source.folder))
    both = FUNCTIONS | DISTINCT
    functions = [function.alias(name) for name, function in functions_of(both).items()]
    out = aggregate(frame.groupBy("name"), *functions)
    assert "MapInArrow" not in out._jdf.queryExecution().toString()
    expected = frame.groupBy("name").agg(*columns_of_spark(both))
    assert out.columns == expected.columns
    assert_same(out.collect(), expected.collect(), "spread", "mean_int")


def test_distinct_values_are_counted_approximately(spark, tmp_path):
    pytest.importorskip("datasketches")
    rng = random.Random(4)
    source = BatchSource(spark, tmp_path / "in", "name string, number bigint, at timestamp")
    for _ in range(3):
        numbers = [rng.randrange(3000) for _ in range(2000)]
        source.add(
            [(f"k{number % 2}", number, NOON + timedelta(seconds=number)) for number in numbers]
        )
    query = Query(source, tmp_path, tasks=2)
    functions = {
        "numbers": F.approx_count_distinct("number", rsd=0.02),
        "moments": F.approx_count_distinct("at", rsd=0.02),
        "none": F.approx_count_distinct(sf.lit(None).cast("date")),
    }
    *_, newest = query.run("name", **functions)
    seen = spark.read.schema(source.schema).parquet(str(source.folder))
    exact = seen.groupBy("name").agg(sf.countDistinct("number").alias("n")).collect()
    expected = {row["name"]: row["n"] for row in exact}
    assert len(newest) == 2
    for row in newest:
        assert row.numbers == pytest.approx(expected[row.name], rel=0.1)
        assert row.moments == pytest.approx(expected[row.name], rel=0.1)
        assert row.none == 0


WINDOWS = {
    "tumbling": lambda: [sf.window("at", "10 minutes"), "name"],
    "sliding": lambda: ["name", sf.window("at", "10 minutes", "4 minutes")],
    "moments": lambda: ["at", "name"],
}


@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("keys_of", WINDOWS.values(), ids=WINDOWS)
def test_windows_with_a_watermark_are_those_of_spark(spark, tmp_path, keys_of, mode):
    rng, keys = random.Random(5), keys_of()
    source = BatchSource(spark, tmp_path / "in", "name string, at timestamp, value int")
    for minutes in (0, 7, 21, 18, 40, 41):
        source.add(
            [
                (
                    f"k{rng.randrange(3)}",
                    NOON + timedelta(seconds=60 * minutes + rng.randrange(-900, 300)),
                    rng.randrange(100),
                )
                for _ in range(12)
            ]
        )
    query = Query(source, tmp_path, tasks=2, outputMode=mode)
    rows = source.frame().withWatermark("at", "5 minutes")
    output = query.run(*keys, rows=rows, n=F.count(), total=F.sum("value"))
    of_spark = rows.groupBy(*keys).agg(sf.count("*").alias("n"), sf.sum("value").alias("total"))
    expected = [batch for batch in run_to_end(of_spark, tmp_path / "spark", mode) if batch]
    assert list(map(by_text, output)) == list(map(by_text, expected))
    # The state of what the watermark has passed is dropped.
    state = sl.open(str(tmp_path / "state")).table("aggregates")
    watermark = NOON + timedelta(minutes=35)
    name = "key.at" if "key.at" in state.column_names else "key.window"
    times = state.column(name).to_pylist()
    ends = [time["end"] if isinstance(time, dict) else time for time in times]
    assert ends
    assert all(end > watermark - timedelta(minutes=10) for end in ends)


def test_update_without_a_watermark_keeps_all_windows(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", "name string, at timestamp, value int")
    source.add([("a", NOON, 1), ("a", NOON + timedelta(minutes=20), 2)])
    source.add([("a", NOON, 4)])
    query = Query(source, tmp_path)
    _, later = query.run(sf.window("at", "10 minutes"), n=F.count(), total=F.sum("value"))
    assert [(row.n, row.total) for row in later] == [(2, 5)]


def test_an_added_aggregate_counts_from_then_on(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", "name string, value int")
    query = Query(source, tmp_path)
    source.add([("a", 1), ("a", 2)])
    query.run("name", n=F.count())
    source.add([("a", 5), ("b", 6)])
    more = {"total": F.sum("value"), "middle": F.mean("value"), "top": F.top_k("value", 2)}
    (batch,) = query.run("name", n=F.count(), spread=F.variance("value"), **more)
    by_name = {row.name: row for row in batch}
    assert by_name["a"].n == 3
    assert (by_name["a"].total, by_name["a"].middle, by_name["a"].top) == (5, 5.0, [5])
    assert by_name["b"].n == 1
    assert by_name["b"].spread is None


def test_an_aggregation_follows_a_stateful_operator(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add_all([[(1, 5), (2, 6), (12, 7)], [(1, 5)]])
    totals = transform_with_state(source.frame().groupBy("key"), Totals(), TOTALS, tasks=2)
    out = aggregate(
        totals.withColumn("last", sf.col("key") % 10).groupBy("last"),
        F.count().alias("n"),
        F.max("total").alias("most"),
        stateLocation=str(tmp_path / "state"),
    )
    first, second = run_to_end(out.select("last", "n", "most"), tmp_path / "query")
    assert sorted(map(tuple, first)) == [(1, 1, 5), (2, 2, 7)]
    assert list(map(tuple, second)) == [(1, 2, 10)]


def errors(frame: DataFrame) -> dict[str, Any]:
    by_name, by_window = frame.groupBy("name"), frame.groupBy(sf.window("at", "1 hour"))
    by_session, n = frame.groupBy(sf.session_window("at", "1 hour")), F.count().alias("n")
    array = sf.array("name")
    return {
        "at least one aggregate": lambda: aggregate(by_name),
        "no_such": lambda: aggregate(by_name, F.sum("no_such").alias("total")),
        "Use F.count(), with": lambda: aggregate(by_name, sf.count("*").alias("n")),
        "the setting stateLocation": lambda: aggregate(by_name, n, stateLocaton="/tmp"),
        "outputMode Complete": lambda: aggregate(by_name, n, outputMode="complete"),
        "the watermark never passes keys of": lambda: aggregate(by_name, n, outputMode="append"),
        "withWatermark on the input": lambda: aggregate(by_window, n, outputMode="Append"),
        "session_window": lambda: aggregate(by_session, n),
        "duplicate columns name": lambda: aggregate(by_name, F.count().alias("name")),
        "two aggregates have the name 'n'": lambda: aggregate(by_name, n, F.sum("big").alias("n")),
        "requires a name for its output column: F.c": lambda: aggregate(by_name, F.count()),
        "sum takes numbers, not date": lambda: aggregate(by_name, F.sum("day").alias("n")),
        "orders numbers": lambda: aggregate(by_name, F.min(array).alias("n")),
        "in its column `by`": lambda: aggregate(by_name, F.last("name", by=array).alias("n")),
        "k=0": lambda: F.top_k("name", 0),
        "rsd=1.5": lambda: F.approx_count_distinct("name", rsd=1.5),
        "takes column names": lambda: F.sum(5),  # type: ignore[arg-type]
        "plain grouping keys": lambda: aggregate(frame.rollup("name"), n),
        "the columns that its aggregates name": lambda: aggregate(by_name, n, inputColumns=["big"]),
    }


def test_wrong_calls_are_refused_with_the_reason(spark, tmp_path):
    frame = BatchSource(spark, tmp_path / "in", COLUMNS).frame()
    for words, call in errors(frame).items():
        with pytest.raises(UsageError) as caught:
            call()
        assert words in str(caught.value)
    assert issubclass(ProcessorError, sl.StatelogError)
