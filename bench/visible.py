"""
Measure how long an event takes until the sink has its result, in the shape in which Spark publishes latencies.

Question: how many milliseconds after an event happened does the sink have the new total of its key, at 1,000
events a second over 50,000 keys?

Workload: a process writes events to a TCP socket, evenly, each with its time; Spark reads them with its source
`socket`.  Each way counts the events of a key and keeps the newest time.  The trigger is Spark's default: the next
micro-batch begins when the last one ended.  Five shuffle partitions, as in Spark's figures.

Method: the sink collects the rows of a micro-batch and then reads the clock; the latency of a row is that time
minus the newest time of its key.  The first seconds of a run are left out.  Ways alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.results import machine
from bench.harness.session import HEAP, PROVIDER, ROCKSDB, session
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming import StatefulProcessor

from statelog.spark import aggregate, transform_with_state
from statelog.spark import functions as F

KEYS = 50_000
PARTITIONS = 5
OUTPUT = "key long, n long, at long"

WRITER = """
import random, socket, sys, time
rate, keys, seed = map(int, sys.argv[1:])
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
rng, began, written = random.Random(seed), time.time(), 0
while True:
    due = int((time.time() - began) * rate)
    lines = [f"{rng.randrange(keys)},{int((began + n / rate) * 1000)}\\n" for n in range(written, due)]
    peer.sendall("".join(lines).encode())
    written = max(due, written)
    time.sleep(0.005)
"""
"""A separate process, so that it does not compete for the driver's interpreter."""


class Newest(StatefulProcessor):
    """Count the events of a key, and keep the newest time."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "n long, at long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, at = self._total.get() or (0, 0)
        for row in rows:
            n, at = n + 1, max(at, row.at)
        self._total.update((n, at))
        yield Row(key=key[0], n=n, at=at)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Way:
    """
    One way to keep the totals.

    Args:
        title: For the page.
        frame: Makes the stream of totals, of the events and a folder for state.
        provider: Spark's store of state.
    """

    title: str
    frame: Callable[[DataFrame, Path], DataFrame]
    provider: str = ROCKSDB


def _spark_rows(events: DataFrame, place: Path) -> DataFrame:
    return events.groupBy("key").transformWithState(Newest(), OUTPUT, "Update", "none")


def _spark_columns(events: DataFrame, place: Path) -> DataFrame:
    return events.groupBy("key").agg(fn.count("*").alias("n"), fn.max("at").alias("at"))


def _rows(delivery: str) -> Callable[[DataFrame, Path], DataFrame]:
    def frame(events: DataFrame, place: Path) -> DataFrame:
        return transform_with_state(
            events.groupBy("key"), Newest(), OUTPUT, stateLocation=str(place), delivery=delivery
        )

    return frame


def _aggregate(delivery: str) -> Callable[[DataFrame, Path], DataFrame]:
    def frame(events: DataFrame, place: Path) -> DataFrame:
        columns = F.count().alias("n"), F.max("at").alias("at")
        return aggregate(
            events.groupBy("key"), *columns, stateLocation=str(place), delivery=delivery
        )

    return frame


WAYS = {
    "spark-tws": Way("Spark `transformWithState`", _spark_rows),
    "spark-agg-rocksdb": Way("Spark built-in aggregation, RocksDB", _spark_columns),
    "spark-agg-heap": Way("Spark built-in aggregation, JVM heap", _spark_columns, HEAP),
    "statelog-staged": Way("statelog, rows, staged", _rows("staged")),
    "statelog-direct": Way("statelog, rows, direct", _rows("direct")),
    "statelog-aggregate-staged": Way("statelog `aggregate`, staged", _aggregate("staged")),
    "statelog-aggregate-direct": Way("statelog `aggregate`, direct", _aggregate("direct")),
}


@contextlib.contextmanager
def events_of(spark: SparkSession, rate: int, seed: int) -> Iterator[DataFrame]:
    """Yield a stream of events (`key`, `at`: milliseconds since 1970) that are written now."""
    command = [sys.executable, "-c", WRITER, str(rate), str(KEYS), str(seed)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as writer:
        try:
            assert writer.stdout is not None
            source = spark.readStream.format("socket").option("host", "127.0.0.1")
            lines = source.option("port", writer.stdout.readline().strip()).load()
            parts = fn.split("value", ",")
            yield lines.select(
                parts.getItem(0).cast("long").alias("key"),
                parts.getItem(1).cast("long").alias("at"),
            )
        finally:
            writer.kill()


def measure(
    spark: SparkSession, way: Way, work: Path, arguments: Any, seed: int
) -> dict[str, list[float]]:
    """Run a way; return the latency of each row, and the time of each micro-batch, in milliseconds."""
    spark.conf.set(PROVIDER, way.provider)
    latencies: list[float] = []
    until = time.time() + arguments.warm_up + arguments.seconds

    def sink(frame: DataFrame, batch_id: int) -> None:
        times = [row.at for row in frame.select("at").collect()]
        now = time.time()
        if now > until - arguments.seconds:
            latencies.extend(now * 1000 - at for at in times)

    with events_of(spark, arguments.rate, seed) as events:
        writer = (
            way.frame(events, work / "state").writeStream.outputMode("update").foreachBatch(sink)
        )
        query = writer.option("checkpointLocation", str(work / "query")).start()
        try:
            while query.isActive and time.time() < until:
                time.sleep(0.2)
            if (failure := query.exception()) is not None:
                raise RuntimeError(str(failure))
            batches = [each for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()
    times = [each["durationMs"]["triggerExecution"] for each in batches]
    return {"latencies": latencies, "batches": times[len(times) // 5 :]}


def figures(runs: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Return the percentiles over all runs, and the median of each run."""
    latencies = sorted(value for run in runs for value in run["latencies"])

    def percentile(share: float) -> float:
        return round(latencies[min(len(latencies) - 1, int(len(latencies) * share))], 1)

    return {
        "p50": percentile(0.5),
        "p99": percentile(0.99),
        "p999": percentile(0.999),
        "p50_of_runs": [round(statistics.median(run["latencies"]), 1) for run in runs],
        "batch_ms": round(statistics.median(each for run in runs for each in run["batches"]), 1),
        "rows": len(latencies),
    }


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rate", type=int, default=1000, help="events a second")
    parser.add_argument("--seconds", type=float, default=45.0, help="measured in each run")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds before them")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = arguments.ways.split(",")
    runs: dict[str, list[dict[str, list[float]]]] = {name: [] for name in names}
    settings = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    with session(settings=settings) as (spark, work):
        for number in range(arguments.rounds):
            for name in names:
                place = work / f"{name}-{number}"
                runs[name].append(measure(spark, WAYS[name], place, arguments, number))
                print(name, figures(runs[name][-1:]), file=sys.stderr, flush=True)
    cases = {name: {"title": WAYS[name].title, **figures(runs[name])} for name in names}
    result = {
        "machine": machine(),
        "rate": arguments.rate,
        "keys": KEYS,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "cases": cases,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
