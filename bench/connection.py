"""
Compare a Python job that takes its rows as PySpark does with one that acknowledges them at once.

Question: how long does a worker wait for the last bytes of its rows, because its system acknowledges late
and Spark's holds small pieces back until then?  The rows are in the memory of the JVM; two tasks take
the batches and return their number.

Configurations: some sizes of a job, each as PySpark takes the rows and as a task of statelog does.  All
take turns for `--rounds` rounds, after three that are not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from bench.harness.pairs import compared
from bench.harness.query_run import noop
from bench.harness.session import session
from pyspark.sql import DataFrame

from statelog.spark.worker.task_input import without_delay

ROWS = (50, 10_000, 70_000, 500_000)
Batches = Iterable[pa.RecordBatch]


def take(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Take all batches, and return their number."""
    yield pa.RecordBatch.from_pydict({"batches": [sum(1 for _ in batches)]})


def take_at_once(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Take all batches, acknowledging each at once."""
    return take(without_delay(batches))


def milliseconds(rows: DataFrame, *, at_once: bool) -> float:
    """Return how long the job takes."""
    start = time.perf_counter()
    noop(rows.mapInArrow(take_at_once if at_once else take, "batches long"), 0)
    return (time.perf_counter() - start) * 1e3


def main() -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    with session() as (spark, _):
        cases = {}
        for rows in ROWS:
            frame = spark.range(0, 2 * rows, 1, 2).selectExpr("id", "rand(1) AS value").persist()
            frame.count()
            cases[f"{rows:>9,} rows a task"] = (
                partial(milliseconds, frame, at_once=False),
                partial(milliseconds, frame, at_once=True),
            )
        found = compared(cases, arguments.rounds)
    print(f"two tasks, {arguments.rounds} rounds: medians (quartiles)")
    for name, (late, at_once, ratio) in found.items():
        print(f"{name}: {late.said()} ms, at once {at_once.said()} ms, ratio {ratio.said(2)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
