"""Checks that a query has the groups of Spark's `groupBy`."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.spark.aggregates import COLUMNS, FUNCTIONS, Query, rows_of
from tests.spark.streams import BatchSource, Job
from tests.support.values.keyed_types import TYPES, Counts, LatestColumns, in_text, pools, value_of

from statelog.spark import functions as F

SNAPSHOTS = {
    "snapshot.min-log-size": 1,
    "snapshot.log-to-snapshot-ratio": 0.01,
    "snapshot.max-log-handles": 2,
}
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


class Rows:
    """Random rows of all types in a time zone."""

    def __init__(self, source: BatchSource, zone: str, seed: object, names: Sequence[str]) -> None:
        self.source, self.names = source, names
        self.rng, self.pools, self.number = random.Random(str(seed)), pools(zone), 0

    def add(self, size: int, functions: bool = False) -> None:
        self.number += 1
        rng, made = self.rng, []
        others = rows_of(rng, size, 10_000 * self.number) if functions else [()] * size
        for at, other in enumerate(others):
            keys = [value_of(rng, self.pools[name]) for name in self.names]
            values = [value_of(rng, self.pools[name]) for name in self.names]
            number = 10_000 * self.number + at
            made.append((*other, number, *keys, *values))
        self.source.add(made)

    def seen(self, key: Column, *, upto: int | None = None) -> "tuple[DataFrame, DataFrame]":
        """Return all rows of the first micro-batches, and the keys of the newest of them."""
        upto = self.number if upto is None else upto
        files = [str(self.source.folder / f"{one:05}.parquet") for one in range(1, upto + 1)]
        read = self.source.spark.read.schema(self.source.schema)
        newest = read.parquet(files[-1]).groupBy(key.alias("key")).agg(sf.lit(1).alias("one"))
        return read.parquet(*files), newest.drop("one")


def rows_in(
    spark: SparkSession, folder: Path, zone: str, seed: object, *, functions: bool = False
) -> Rows:
    schema = f"{COLUMNS}, {SCHEMA}" if functions else SCHEMA
    return Rows(BatchSource(spark, folder, schema), zone, seed, list(TYPES))


def only_touched(result: DataFrame, touched: DataFrame) -> list[Any]:
    joined = result.alias("r").join(touched.alias("t"), sf.expr("r.key <=> t.key"), "left_semi")
    return joined.collect()


def check_aggregate(rows: Rows, folder: Path, name: str, batches: int = 2) -> None:
    key, query = KEYS[name](), Query(rows.source, folder, **SNAPSHOTS)
    functions = {one: function for one, (function, _) in FUNCTIONS.items()}
    extra = {
        "last_pair": (F.last("v_pair", by="number"), "max_by(v_pair, number)"),
        "last_deep": (F.last("v_deep", by="number"), "max_by(v_deep, number)"),
        "top_deep": (
            F.top_k("v_deep", 2, by="number"),
            "transform(slice(array_sort(collect_list(struct(number, v_deep)), (l, r) -> "
            "CASE WHEN l.number > r.number THEN -1 ELSE 1 END), 1, 2), x -> x.v_deep)",
        ),
        "last_variant": (
            F.last(sf.expr("to_variant_object(v_deep)"), by="number"),
            "max_by(to_variant_object(v_deep), number)",
        ),
    }
    functions |= {one: function for one, (function, _) in extra.items()}
    sql = {one: text for one, (_, text) in (FUNCTIONS | extra).items()}
    for at in range(batches):
        rows.add(40, functions=True)
        found = query.run(key.alias("key"), tasks=1 + at % 2, **functions)
        seen, touched = rows.seen(key)
        expected = seen.groupBy(key.alias("key")).agg(
            *(sf.expr(text).alias(one) for one, text in sql.items())
        )
        assert in_text(only_touched(expected, touched), close=CLOSE) == in_text(
            [row for batch in found for row in batch], close=CLOSE
        ), name


def check_rows(rows: Rows, folder: Path, name: str, value: str, batches: int = 2) -> None:
    key = KEYS[name]()
    kind = rows.source.frame().select(key).schema[0].dataType.simpleString()
    output = f"key {kind}, n bigint, value {TYPES[value]}, times bigint"
    processor = Counts(f"v_{value}", TYPES[value])
    job = Job(rows.source, folder, [key], processor, output, {**SNAPSHOTS})
    for at in range(batches):
        rows.add(40)
        job.run(tasks=1 + at % 2, **{"state.backend": ("memory", "disk")[at % 2]})
        found = [row for batch in job.take() for row in batch]
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
        assert in_text(only_touched(expected, touched)) == in_text(found), (name, value)


def check_columns(rows: Rows, folder: Path, name: str, batches: int = 2) -> None:
    key = KEYS[name]()
    kind = rows.source.frame().select(key).schema[0].dataType.simpleString()
    values = ", ".join(f"v_{one} {kind}" for one, kind in TYPES.items())
    output = f"key {kind}, n bigint, number bigint, {values}"
    job = Job(rows.source, folder, [key], LatestColumns(list(TYPES)), output)  # type: ignore[arg-type]
    job.options |= SNAPSHOTS
    for at in range(batches):
        rows.add(40)
        job.run(tasks=1 + at % 2)
        found = [row for batch in job.take() for row in batch]
        seen, touched = rows.seen(key)
        latest = ", ".join(f"v_{one}" for one in TYPES)
        expected = (
            seen.groupBy(key.alias("key"))
            .agg(
                sf.count("*").alias("n"), sf.expr(f"max_by(struct(number, {latest}), number) as s")
            )
            .select("key", "n", "s.*")
        )
        assert in_text(only_touched(expected, touched)) == in_text(found), name
