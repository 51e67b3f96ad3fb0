"""Checks that a query has the groups of Spark's `groupBy`."""

import random
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.support.spark.aggregates import (
    COLUMNS,
    FUNCTIONS,
    Query,
    columns_of_spark,
    functions_of,
    rows_of,
)
from tests.support.spark.streams import FREQUENT_SNAPSHOTS, BatchSource, Job
from tests.support.values.keyed_types import TYPES, Counts, LatestColumns, in_text, pools, value_of

from statelog.spark import Aggregate
from statelog.spark import functions as F

CLOSE = ("spread", "mean_int")
KEYS: dict[str, Any] = {name: lambda name=name: sf.col(f"k_{name}") for name in TYPES} | {
    "window": lambda: sf.window("k_at", "15 minutes")
}
SCHEMA = ", ".join(
    [
        "number bigint",
        *(f"k_{name} {kind}" for name, kind in TYPES.items()),
        *(f"v_{name} {kind}" for name, kind in TYPES.items()),
    ]
)
MORE_FUNCTIONS: dict[str, tuple[Aggregate, str]] = {
    "last_pair": (F.last("v_pair", by="number"), "max_by(v_pair, number)"),
    "last_deep": (F.last("v_deep", by="number"), "max_by(v_deep, number)"),
    "top_deep": (
        F.top_k("v_deep", 2, by="number"),
        "transform(slice(array_sort(collect_list(struct(number, v_deep)), (l, r) -> "
        "CASE WHEN l.number > r.number THEN -1 ELSE 1 END), 1, 2), x -> x.v_deep)",
    ),
}


class Rows:
    """Random rows of all types in a time zone."""

    def __init__(self, source: BatchSource, zone: str, seed: object) -> None:
        self.source = source
        self.rng = random.Random(str(seed))
        self.pools = pools(zone)

    def add(self, size: int, functions: bool = False) -> None:
        batch, rng = self.source.count + 1, self.rng
        others = rows_of(rng, size, 10_000 * batch) if functions else [()] * size
        rows = []
        for place, other in enumerate(others):
            keys = [value_of(rng, self.pools[name]) for name in TYPES]
            values = [value_of(rng, self.pools[name]) for name in TYPES]
            rows.append((*other, 10_000 * batch + place, *keys, *values))
        self.source.add(rows)

    def seen(self, key: Column) -> tuple[DataFrame, DataFrame]:
        """Return all rows of the micro-batches, and the keys of the newest of them."""
        numbers = range(1, self.source.count + 1)
        files = [str(self.source.folder / f"{number:05}.parquet") for number in numbers]
        read = self.source.spark.read.schema(self.source.schema)
        return read.parquet(*files), read.parquet(files[-1]).select(key.alias("key")).distinct()


def rows_in(
    spark: SparkSession, folder: Path, zone: str, seed: object, *, functions: bool = False
) -> Rows:
    schema = f"{COLUMNS}, {SCHEMA}" if functions else SCHEMA
    return Rows(BatchSource(spark, folder, schema), zone, seed)


def only_touched(result: DataFrame, touched: DataFrame) -> list[Any]:
    joined = result.alias("r").join(touched.alias("t"), sf.expr("r.key <=> t.key"), "left_semi")
    return joined.collect()


def check_aggregate(rows: Rows, folder: Path, name: str, batches: int = 2) -> None:
    key = KEYS[name]()
    query = Query(rows.source, folder, **FREQUENT_SNAPSHOTS)
    variant = sf.expr("to_variant_object(v_deep)")
    functions = FUNCTIONS | MORE_FUNCTIONS
    functions["last_variant"] = (
        F.last(variant, by="number"), "max_by(to_variant_object(v_deep), number)",
    )  # fmt: skip
    for batch in range(batches):
        rows.add(40, functions=True)
        output = query.run(key.alias("key"), tasks=1 + batch % 2, **functions_of(functions))
        seen, touched = rows.seen(key)
        expected = seen.groupBy(key.alias("key")).agg(*columns_of_spark(functions))
        assert in_text(only_touched(expected, touched), close=CLOSE) == in_text(
            [row for part in output for row in part], close=CLOSE
        ), name


def type_of(rows: Rows, key: Column) -> str:
    return str(rows.source.frame().select(key).schema[0].dataType.simpleString())


def output_of(job: Job, rows: Rows, **changes: Any) -> list[Any]:
    """Add a micro-batch, and return the output of a run over it."""
    rows.add(40)
    job.run(**changes)
    return [row for batch in job.take() for row in batch]


def check_rows(rows: Rows, folder: Path, name: str, value: str, batches: int = 2) -> None:
    key = KEYS[name]()
    output = f"key {type_of(rows, key)}, n bigint, value {TYPES[value]}, times bigint"
    processor = Counts(f"v_{value}", TYPES[value])
    job = Job(rows.source, folder, [key], processor, output, {**FREQUENT_SNAPSHOTS})
    for batch in range(batches):
        backend = {"state.backend": ("memory", "disk")[batch % 2]}
        actual = output_of(job, rows, tasks=1 + batch % 2, **backend)
        seen, touched = rows.seen(key)
        counts = seen.groupBy(key.alias("key")).agg(sf.count("*").alias("n"))
        times = seen.groupBy(key.alias("key"), sf.col(f"v_{value}").alias("value")).agg(
            sf.count("*").alias("times")
        )
        expected = (
            times.alias("t")
            .join(counts.alias("c"), sf.expr("t.key <=> c.key"))
            .selectExpr("t.key as key", "n", "value", "times")
        )
        assert in_text(only_touched(expected, touched)) == in_text(actual), (name, value)


def check_columns(rows: Rows, folder: Path, name: str, batches: int = 2) -> None:
    key = KEYS[name]()
    values = ", ".join(f"v_{name} {kind}" for name, kind in TYPES.items())
    output = f"key {type_of(rows, key)}, n bigint, number bigint, {values}"
    processor: Any = LatestColumns(list(TYPES))
    job = Job(rows.source, folder, [key], processor, output, {**FREQUENT_SNAPSHOTS})
    latest = ", ".join(f"v_{name}" for name in TYPES)
    newest = sf.expr(f"max_by(struct(number, {latest}), number) as s")
    for batch in range(batches):
        actual = output_of(job, rows, tasks=1 + batch % 2)
        seen, touched = rows.seen(key)
        by_key = seen.groupBy(key.alias("key")).agg(sf.count("*").alias("n"), newest)
        expected = by_key.select("key", "n", "s.*")
        assert in_text(only_touched(expected, touched)) == in_text(actual), name
