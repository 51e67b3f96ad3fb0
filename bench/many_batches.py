"""
Run one query for many micro-batches: latency, objects, bytes and memory should not grow.

Question: after 1,500 micro-batches, what has changed since the first hundred?

Workload: `rate-micro-batch`, a source in memory, with 50 rows for each micro-batch and no trigger, so that one follows
the other; 1,000 keys, the row processor with direct delivery.  `floor` is the same query with
a foreachBatch that does nothing but evaluate the rows in one Python job: what grows there grows in Spark.

Method: after each micro-batch its time (`triggerExecution`), and at every tenth the objects and bytes of the
state location and of Spark's own checkpoint folder, the resident memory of the JVM, the driver's Python and the
largest worker, and the threads and open files of all of them.
The first ten micro-batches are left out.  The JVM's heap after a collection is measured at the hundredth and at the end.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cases import RunningCount
from bench.harness.processes import resident_mib, threads_and_open_files
from bench.harness.query_run import files_and_bytes, noop, one_python_job
from bench.harness.results import Results, Run, in_turns
from bench.harness.session import session
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from statelog.spark import transform_with_state

WARM_UP = 10
HUNDRED = 100
EVERY = 10


def stream(spark: SparkSession, way: str) -> Any:
    """Return the writer of the query of a way."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50)
    rows = source.load().select((col("value") * 7919 % 1000).alias("bidder"))
    if way == "floor":
        return rows.writeStream.foreachBatch(one_python_job)
    frame = transform_with_state(
        rows.groupBy("bidder"), RunningCount(), "key long, n long", delivery="direct"
    )
    return frame.writeStream.foreachBatch(noop)


def heap_mib(spark: SparkSession) -> float:
    """Return the JVM's heap in use after a collection, in MiB."""
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return round((runtime.totalMemory() - runtime.freeMemory()) / 2**20, 1)


def run(spark: SparkSession, way: str, batches: int, seconds: float, place: Path) -> Run:
    """Run a query for so many micro-batches, or until the time is over."""
    query = stream(spark, way).option("checkpointLocation", str(place)).start()
    began, done = time.monotonic(), 0
    samples: list[dict[str, Any]] = []
    heaps: dict[str, float] = {}
    try:
        while query.isActive and done < batches and time.monotonic() - began < seconds:
            time.sleep(0.05)
            last = query.lastProgress
            done = 0 if last is None else last["batchId"] + 1
            if done >= (len(samples) + 1) * EVERY:
                samples.append(sample(place, done))
            if done >= HUNDRED and "hundredth" not in heaps:
                heaps["hundredth"] = heap_mib(spark)
        if (failure := query.exception()) is not None:
            raise RuntimeError(f"{way}: {failure}")
        heaps["last"] = heap_mib(spark)
        progress = [one for one in query.recentProgress if one["numInputRows"]]
    finally:
        query.stop()
    times = [one["durationMs"]["triggerExecution"] for one in progress]
    return {
        "milliseconds": times,
        "samples": samples,
        "heap_mib": heaps,
        "said": f"{len(times)} micro-batches in {time.monotonic() - began:.0f} s",
    }


def sample(place: Path, done: int) -> dict[str, Any]:
    """Return what is stored, resident and open after so many micro-batches."""
    state_files, state_bytes = files_and_bytes(place / "statelog")
    files, size = files_and_bytes(place, without="statelog")
    return {
        "batch": done,
        "state_objects": state_files,
        "state_bytes": state_bytes,
        "spark_files": files,
        "spark_bytes": size,
        **{f"{kind}_mib": mib for kind, mib in resident_mib().items()},
        **threads_and_open_files(),
    }


def hundreds(times: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the times of the first hundred micro-batches after the warm-up, and of the last."""
    kept = list(times[WARM_UP:])
    size = min(HUNDRED, len(kept) // 2)
    return kept[:size], kept[-size:] if size else []


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--batches", type=int, default=1_500)
    parser.add_argument("--seconds", type=float, default=900, help="of a query")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    arguments = {"batches": options.batches}
    results = Results(options.json, "many-batches", arguments, resume=options.resume)
    failed: list[str] = []
    with session() as (spark, work):
        # The floor comes first and warms the JVM, so that no first hundred is slow for being the first.
        for way in ("floor", "statelog"):

            def one(way: str = way) -> Run:
                return run(
                    spark,
                    way,
                    options.batches,
                    options.seconds,
                    work / f"{way}-{time.monotonic_ns()}",
                )

            failed += in_turns(results, [(way, 1, one)], facts={way: {"title": way}})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
