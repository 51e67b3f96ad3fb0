"""
Measure how fast the state of a location is read.

Questions: how long does it take to read 5 million keys as a DataFrame, next to the same columns in
Parquet that Spark wrote; to get one key; and how many changes a second does the change feed show?

Ways: `statelog` reads with `spark.read.format("statelog")`, `parquet` with `spark.read.parquet`; both
count the rows and add up every column, so that all columns are read.  `get` is `statelog.open` and
one `get`, for random keys, of a location with a snapshot.  `feed` is `LocationState.feed` over ten
checkpoints, `feed_spark` the view "changes" of the same, both with every column of before and after.

Method: one Spark session; the ways in turns, a round of each to warm up first.  Shown is the median,
with the least and the most.  `feed_cpu` is by processor time of the process, which other work on the
machine changes less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from big_location import BigLocation
from pipeline import machine
from pyspark.sql import SparkSession

import statelog as sl
from statelog.demo.java import prepare_environment

SUMS = ("count(*)", "sum(key_group)", "sum(key.key)", "sum(value.n)", "sum(value.amount)")
CHANGE_SUMS = (
    "count(*)",
    "sum(checkpoint_id)",
    "sum(length(change))",
    "sum(key.key)",
    "sum(before.total.n)",
    "sum(before.total.amount)",
    "sum(after.total.n)",
    "sum(after.total.amount)",
)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that *work* takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: list[float]) -> dict[str, float]:
    """Return median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def frames(
    spark: SparkSession, work: Path, arguments: argparse.Namespace
) -> tuple[dict[str, Any], list[float]]:
    """Return the seconds of a frame of all keys by way, and of single gets."""
    location = work / "state"
    writer = BigLocation(location)
    writer.snapshot(np.random.default_rng(1).permutation(arguments.keys))
    writer.close()
    parquet = str(work / "parquet")
    spark.read.format("statelog").load(str(location)).write.parquet(parquet)
    ways: dict[str, Callable[[], object]] = {
        "parquet": lambda: spark.read.parquet(parquet).selectExpr(*SUMS).collect(),
        "statelog": lambda: (
            spark.read.format("statelog").load(str(location)).selectExpr(*SUMS).collect()
        ),
    }
    if ways["parquet"]() != ways["statelog"]():
        raise SystemExit("the two ways have different results")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, run in ways.items():
            seconds[name].append(timed(run))
    found: dict[str, Any] = {name: spread(values) for name, values in seconds.items()}
    found["ratio"] = found["statelog"]["median"] / found["parquet"]["median"]
    gets = []
    for key in np.random.default_rng(2).integers(0, arguments.keys, 50).tolist():

        def get(key: int = key) -> None:
            with sl.open(location) as state:
                if state.get("total", key) is None:
                    raise SystemExit(f"key {key} has no state")

        gets.append(timed(get))
    return found, gets


def feeds(spark: SparkSession, work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return changes per second by way."""
    location = work / "changes"
    writer = BigLocation(location)
    keys = arguments.changing
    first = writer.snapshot(np.random.default_rng(3).permutation(keys))
    rng = np.random.default_rng(4)
    for _ in range(10):
        last = writer.change(rng.choice(keys + keys // 10, keys // 5, replace=False))
    writer.close()
    options = {"view": "changes", "since": first, "checkpoint": last}
    counts = []

    def in_python() -> None:
        with sl.open(location) as state:
            counts.append(sum(batch.num_rows for batch in state.feed(first, last)))

    def on_spark() -> None:
        frame = spark.read.format("statelog").options(**options).load(str(location))
        counts.append(frame.selectExpr(*CHANGE_SUMS).collect()[0][0])

    in_python()
    on_spark()
    rates: dict[str, list[float]] = {"feed": [], "feed_cpu": [], "feed_spark": []}
    for _ in range(arguments.rounds):
        cpu = time.process_time()
        rates["feed"].append(counts[0] / timed(in_python))
        rates["feed_cpu"].append(counts[0] / (time.process_time() - cpu))
        rates["feed_spark"].append(counts[0] / timed(on_spark))
    if len(set(counts)) != 1:
        raise SystemExit(f"the feeds have different numbers of rows: {set(counts)}")
    return {"changes": counts[0], **{name: spread(values) for name, values in rates.items()}}


def main() -> int:
    """Run all and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--changing", type=int, default=1_000_000, help="keys of the change feed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    prepare_environment()
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    spark = session.config("spark.driver.memory", "3g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        frame, gets = frames(spark, Path(folder), arguments)
        found = {
            "machine": machine(),
            "keys": arguments.keys,
            "frame_seconds": frame,
            "get_seconds": spread(gets),
            "changes_per_second": feeds(spark, Path(folder), arguments),
        }
    spark.stop()
    print(json.dumps(found, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
