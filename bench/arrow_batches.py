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
import statistics
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from bench.harness.session import session
from pyspark.sql import DataFrame

from statelog.spark.rows.arrow_limits import MAX_BYTES, NO_LIMIT

COLUMNS = {
    "numbers": ("id AS key", "rand(1) AS value"),
    "text": ("lpad(id, 12, 'k') AS key", "rand(1) AS value"),
}
WARM = 3


def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take all batches."""
    for _ in batches:
        pass
    yield from ()


def milliseconds(rows: DataFrame) -> float:
    """Return how long the transfer of these rows takes."""
    start = time.perf_counter()
    rows.mapInArrow(take, "none long").write.format("noop").mode("append").save()
    return (time.perf_counter() - start) * 1e3


def main() -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    limits = {"measured": None, "not measured": str(NO_LIMIT)}
    found: dict[tuple[str, str], list[float]] = {}
    with session() as (spark, _):
        frames = {}
        for name, columns in COLUMNS.items():
            frames[name] = spark.range(0, arguments.rows, 1, 2).selectExpr(*columns).persist()
            frames[name].count()
        for number in range(WARM + arguments.rounds):
            for name, frame in frames.items():
                for said, limit in limits.items():
                    if limit is None:
                        spark.conf.unset(MAX_BYTES)
                    else:
                        spark.conf.set(MAX_BYTES, limit)
                    taken = milliseconds(frame)
                    if number >= WARM:
                        found.setdefault((name, said), []).append(taken)
    print(f"{arguments.rows:,} rows, {arguments.rounds} rounds: median ms (quartiles)")
    for (name, said), times in found.items():
        low, middle, high = statistics.quantiles(times, n=4)
        print(f"{name:8} {said:13} {middle:6.0f} ({low:.0f} to {high:.0f})")
    for name in COLUMNS:
        pairs = zip(found[name, "measured"], found[name, "not measured"], strict=True)
        ratios = statistics.quantiles((one / other for one, other in pairs), n=4)
        print(f"{name:8} {ratios[1]:.2f}x ({ratios[0]:.2f} to {ratios[2]:.2f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
