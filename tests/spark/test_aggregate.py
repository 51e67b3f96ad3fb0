"""`aggregate` against Spark's own `groupBy(...).agg(...)`: of all rows so far, and of its streams."""

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from tests.spark.aggregates import COLUMNS, FUNCTIONS, NOON, Query, rows_of
from tests.spark.streams import BatchSource, wait

import statelog as sl
from statelog.errors import ProcessorError, UsageError
from statelog.spark import aggregate, transform_with_state
from statelog.spark import functions as F

DISTINCT = {
    "texts": (F.approx_count_distinct("text"), "count(DISTINCT text)"),
    "moments": (F.approx_count_distinct("at", rsd=0.02), "count(DISTINCT at)"),
    "ratios_seen": (F.approx_count_distinct("ratio"), "count(DISTINCT ratio)"),
}


def in_order(rows: Sequence[Row]) -> list[Any]:
    return sorted((row.asDict(recursive=True) for row in rows), key=repr)


def assert_same(found: Sequence[Row], expected: Sequence[Row], *close: str) -> None:
    got, want = in_order(found), in_order(expected)
    for name in close:
        given = [one.pop(name) for one in got]
        wanted = [one.pop(name) for one in want]
        assert [one is None for one in given] == [one is None for one in wanted]
        for one, other in zip(given, wanted, strict=True):
            assert one is None or one == pytest.approx(other, rel=1e-9, abs=1e-6)
    assert got == want


@pytest.mark.parametrize(
    ("seed", "delivery", "zone"),
    [(1, "staged", "Australia/Lord_Howe"), (2, "direct", "Europe/Berlin")],
    indirect=["zone"],
)
def test_each_micro_batch_gives_the_aggregates_of_all_rows_so_far(
    spark: SparkSession, tmp_path: Path, seed: int, delivery: str, zone: str
) -> None:
    rng = random.Random(seed)
    source = BatchSource(spark, tmp_path / "in", COLUMNS)
    snapshots = {
        "snapshot.min-log-size": 1,
        "snapshot.log-to-snapshot-ratio": 0.01,
        "snapshot.max-log-handles": 3,
    }
    query = Query(source, tmp_path, delivery=delivery, **snapshots)
    functions = {name: one for name, (one, _) in FUNCTIONS.items()}
    number = 0
    for tasks in (2, 1, 3):
        expected = []
        for _ in range(2):
            source.add(rows_of(rng, rng.randrange(1, 40), 10_000 * number))
            number += 1
            seen = spark.read.schema(source.schema).parquet(str(source.folder))
            newest = spark.read.parquet(str(source.folder / f"{number:05}.parquet"))
            wanted = (
                seen.groupBy("name", "place")
                .agg(*(sf.expr(one).alias(name) for name, (_, one) in FUNCTIONS.items()))
                .alias("r")
                .join(
                    newest.select("name", "place").distinct().alias("k"),
                    sf.expr("r.name <=> k.name AND r.place <=> k.place"),
                    "left_semi",
                )
            )
            expected.append(wanted.collect())
        found = query.run("name", "place", tasks=tasks, **functions)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, "spread", "mean_int")


def test_the_output_has_the_schema_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    frame = BatchSource(spark, tmp_path / "in", COLUMNS).frame()
    keys = ["name", sf.upper("text").alias("upper"), sf.window("at", "1 hour")]
    out = aggregate(
        frame.groupBy(*keys), *(one.alias(name) for name, (one, _) in FUNCTIONS.items())
    )
    of_spark = frame.groupBy(*keys).agg(
        *(sf.expr(one).alias(name) for name, (_, one) in FUNCTIONS.items())
    )
    assert out.schema.simpleString() == of_spark.schema.simpleString()


def test_a_batch_frame_is_aggregated_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", COLUMNS)
    source.add(rows_of(random.Random(3), 60, 0))
    frame = spark.read.schema(source.schema).parquet(str(source.folder))
    both = FUNCTIONS | DISTINCT
    out = aggregate(frame.groupBy("name"), *(one.alias(name) for name, (one, _) in both.items()))
    assert "MapInArrow" not in out._jdf.queryExecution().toString()
    expected = frame.groupBy("name").agg(
        *(sf.expr(one).alias(name) for name, (_, one) in both.items())
    )
    assert out.columns == expected.columns
    assert_same(out.collect(), expected.collect(), "spread", "mean_int")


def test_distinct_values_are_counted_approximately(spark: SparkSession, tmp_path: Path) -> None:
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
        "exact": sf.countDistinct("number"),
        "numbers": F.approx_count_distinct("number", rsd=0.02),
        "moments": F.approx_count_distinct("at", rsd=0.02),
        "none": F.approx_count_distinct(sf.lit(None).cast("date")),
    }
    exact = functions.pop("exact")
    *_, newest = query.run("name", **functions)
    seen = spark.read.schema(source.schema).parquet(str(source.folder))
    expected = {one[0]: one[1] for one in seen.groupBy("name").agg(exact).collect()}
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


def run_on_spark(query: Query, keys: Sequence[Any], mode: str) -> list[list[Row]]:
    frame = query.source.frame().withWatermark("at", "5 minutes")
    batches: list[list[Row]] = []
    out = frame.groupBy(*keys).agg(sf.count("*").alias("n"), sf.sum("value").alias("total"))
    writer = out.writeStream.outputMode(mode).option(
        "checkpointLocation", str(query.folder / "spark")
    )
    wait(
        writer.foreachBatch(lambda one, _: batches.append(one.collect()))
        .trigger(availableNow=True)
        .start()
    )
    return [batch for batch in batches if batch]


@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("keys_of", WINDOWS.values(), ids=WINDOWS)
def test_windows_with_a_watermark_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, keys_of: Any, mode: str
) -> None:
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
    found = query.run(*keys, rows=rows, n=F.count(), total=F.sum("value"))
    expected = run_on_spark(query, keys, mode)
    assert list(map(in_order, found)) == list(map(in_order, expected))
    # The state of what the watermark has passed is dropped.
    state = sl.open(str(tmp_path / "state")).table("aggregates")
    watermark = NOON + timedelta(minutes=35)
    name = next(one for one in state.column_names if one in ("key.at", "key.window"))
    of = state.column(name).to_pylist()
    ends = [one["end"] if isinstance(one, dict) else one for one in of]
    assert ends
    assert all(end > watermark - timedelta(minutes=10) for end in ends)


def test_update_without_a_watermark_keeps_all_windows(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", "name string, at timestamp, value int")
    source.add([("a", NOON, 1), ("a", NOON + timedelta(minutes=20), 2)])
    source.add([("a", NOON, 4)])
    query = Query(source, tmp_path)
    _, later = query.run(sf.window("at", "10 minutes"), n=F.count(), total=F.sum("value"))
    assert [(one.n, one.total) for one in later] == [(2, 5)]


def test_an_added_aggregate_counts_from_then_on(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", "name string, value int")
    query = Query(source, tmp_path)
    source.add([("a", 1), ("a", 2)])
    query.run("name", n=F.count())
    source.add([("a", 5), ("b", 6)])
    more = {"total": F.sum("value"), "middle": F.mean("value"), "top": F.top_k("value", 2)}
    (batch,) = query.run("name", n=F.count(), spread=F.variance("value"), **more)
    found = {one.name: one for one in batch}
    assert found["a"].n == 3
    assert (found["a"].total, found["a"].middle, found["a"].top) == (5, 5.0, [5])
    assert found["b"].n == 1
    assert found["b"].spread is None


def test_an_aggregation_follows_a_stateful_operator(spark: SparkSession, tmp_path: Path) -> None:
    from tests.spark import processors
    from tests.spark.streams import workers_get_by_value

    workers_get_by_value(processors.__name__)
    source = BatchSource(spark, tmp_path / "in", processors.INPUT)
    source.add([(1, 5), (2, 6), (12, 7)])
    source.add([(1, 5)])
    query = Query(source, tmp_path)
    totals = transform_with_state(
        source.frame().groupBy("key"), processors.Totals(), processors.TOTALS, tasks=2
    )
    settings = {"stateLocation": str(tmp_path / "state")}
    out = aggregate(
        totals.withColumn("last", sf.col("key") % 10).groupBy("last"),
        F.count().alias("n"),
        F.max("total").alias("most"),
        **settings,
    )
    first_batch, second = query.write(out.select("last", "n", "most"))
    assert sorted(map(tuple, first_batch)) == [(1, 1, 5), (2, 2, 7)]
    assert list(map(tuple, second)) == [(1, 2, 10)]


def errors(frame: DataFrame) -> dict[str, Any]:
    by_name = frame.groupBy("name")
    return {
        "at least one aggregate": lambda: aggregate(by_name),
        "no_such": lambda: aggregate(by_name, F.sum("no_such").alias("total")),
        "Use F.count(), with": lambda: aggregate(by_name, sf.count("*").alias("n")),
        "did you mean the setting stateLocation": lambda: aggregate(
            by_name, F.count().alias("n"), stateLocaton="/tmp"
        ),
        "outputMode Complete": lambda: aggregate(
            by_name, F.count().alias("n"), outputMode="complete"
        ),
        "Append requires that each key ends": lambda: aggregate(
            by_name, F.count().alias("n"), outputMode="append"
        ),
        "withWatermark on the input": lambda: aggregate(
            frame.groupBy(sf.window("at", "1 hour")), F.count().alias("n"), outputMode="Append"
        ),
        "session_window": lambda: aggregate(
            frame.groupBy(sf.session_window("at", "1 hour")), F.count().alias("n")
        ),
        "several columns name": lambda: aggregate(by_name, F.count().alias("name")),
        "two aggregates have the name 'n'": lambda: aggregate(
            by_name, F.count().alias("n"), F.sum("big").alias("n")
        ),
        "count() requires a name for its output column: F.count().alias(": lambda: aggregate(
            by_name, F.count()
        ),
        "sum takes numbers, not date": lambda: aggregate(by_name, F.sum("day").alias("n")),
        "orders numbers": lambda: aggregate(by_name, F.min(sf.array("name")).alias("n")),
        "in its column `by`": lambda: aggregate(
            by_name, F.last("name", by=sf.array("name")).alias("n")
        ),
        "k=0": lambda: F.top_k("name", 0),
        "rsd=1.5": lambda: F.approx_count_distinct("name", rsd=1.5),
        "takes column names": lambda: F.sum(5),  # type: ignore[arg-type]
        "plain grouping keys": lambda: aggregate(frame.rollup("name"), F.count().alias("n")),
    }


def test_wrong_calls_are_refused_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    frame = BatchSource(spark, tmp_path / "in", COLUMNS).frame()
    for words, call in errors(frame).items():
        with pytest.raises(UsageError) as caught:
            call()
        assert words in str(caught.value)
    assert issubclass(ProcessorError, sl.StatelogError)
