"""
Compare Spark's transfer of rows to Python with and without measuring the Arrow batches.

Question: what does it cost that Spark adds up the size of a batch before it writes each row?  The rows
are in the memory of the JVM; the Python function takes the batches and returns nothing.

Configurations: numbers (a bigint and a double), and text (a string of 12 letters and a double), each
as Spark is set, and with the limit in bytes at its highest value, which Spark does not compare.  All
take turns for `--rounds` rounds, after three that are not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial

import pyarrow as pa
from bench.harness.pairs import compared
from bench.harness.query_run import noop
from bench.harness.session import session
from pyspark.sql import DataFrame, SparkSession

from statelog.spark.jvm.gateway import with_setting
from statelog.spark.rows.types import MAX_BYTES, NO_LIMIT

COLUMNS = {
    "numbers": ("id AS key", "rand(1) AS value"),
    "text": ("lpad(id, 12, 'k') AS key", "rand(1) AS value"),
}


def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take all batches."""
    for _ in batches:
        pass
    yield from ()


def milliseconds(spark: SparkSession, rows: DataFrame, *, is_measured: bool) -> float:
    """Return how long the transfer of these rows takes."""
    with nullcontext() if is_measured else with_setting(spark, MAX_BYTES, str(NO_LIMIT)):
        start = time.perf_counter()
        noop(rows.mapInArrow(take, "none long"), 0)
        return (time.perf_counter() - start) * 1e3


def main() -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with session() as (spark, _):
        cases = {}
        for name, columns in COLUMNS.items():
            frame = spark.range(0, arguments.rows, 1, 2).selectExpr(*columns).persist()
            frame.count()
            cases[name] = (
                partial(milliseconds, spark, frame, is_measured=True),
                partial(milliseconds, spark, frame, is_measured=False),
            )
        found = compared(cases, arguments.rounds)
    print(f"{arguments.rows:,} rows, {arguments.rounds} rounds: medians (quartiles)")
    for name, (measured, not_measured, ratio) in found.items():
        print(
            f"{name:8} measured {measured.said()} ms, not measured {not_measured.said()} ms, "
            f"ratio {ratio.said(2)}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
