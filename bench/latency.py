"""
Measure micro-batches, restarts and reads on a store whose every request takes a given time.

Question: how many latencies of the store does a micro-batch of 50 rows wait for, and how long does it take
to claim and restore, to read one key, and to list the checkpoints, with 100 retained checkpoints and a log of 250
handles?

Workload: `rate-micro-batch` with 50 rows for each micro-batch, the row processor of `many_batches.py`, staged and direct.
The store is SeaweedFS on this machine, behind a proxy that waits before it passes a request on.  The proxy itself
takes about 2 ms for each request, at every latency, so times are compared with those at 0 ms.

Method: for each latency one query over `--batches` micro-batches, whose first ten are left out; the time is
Spark's `triggerExecution`.  Then each read and each claim with its restore `--repeats` times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cases import RunningCount
from bench.harness.query_run import noop
from bench.harness.results import machine
from bench.harness.session import session
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from tests.support.servers.real_stores import seaweedfs_server
from tests.support.servers.s3_faults import S3Proxy

import statelog
from statelog.checkpoint import CheckpointCoordinator, CheckpointOptions
from statelog.spark import transform_with_state
from statelog.store import open_location

WARM_UP = 10
RETAINED, HANDLES = 100, 250
LATENCIES_MS = (0, 30, 80)


def micro_batches(
    spark: SparkSession,
    place: Path,
    location: str,
    options: dict[str, Any],
    batches: int,
    **more: Any,
) -> list[int]:
    """Run a query for so many micro-batches and return their milliseconds."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50)
    rows = source.load().select((col("value") * 7919 % 1000).alias("bidder"))
    frame = transform_with_state(
        rows.groupBy("bidder"),
        RunningCount(),
        "key long, n long",
        stateLocation=location,
        storageOptions=options,
        **more,
    )
    query = frame.writeStream.foreachBatch(noop).option("checkpointLocation", str(place)).start()
    try:
        done = 0
        while query.isActive and done < batches:
            time.sleep(0.05)
            last = query.lastProgress
            done = 0 if last is None else last["batchId"] + 1
        if (failure := query.exception()) is not None:
            raise RuntimeError(str(failure))
        progress = [one for one in query.recentProgress if one["numInputRows"]]
    finally:
        query.stop()
    return [one["durationMs"]["triggerExecution"] for one in progress][WARM_UP:batches]


def timed(act: Callable[[], object], repeats: int) -> list[float]:
    """Return the milliseconds of each call."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        act()
        found.append((time.perf_counter() - began) * 1000)
    return found


def restore(location: str, options: dict[str, Any]) -> None:
    """Claim the location and restore the newest checkpoint, as a driver does."""
    driver = CheckpointCoordinator(
        open_location(location, options=options),
        owner_id="bench",
        max_parallelism=128,
        options=CheckpointOptions(retained=RETAINED),
        clock_ms=lambda: int(time.time() * 1000),
    )
    driver.claim()
    driver.restore()


def get(location: str, options: dict[str, Any]) -> None:
    """Read the state of one key."""
    with statelog.open(location, storage_options=options) as state:
        variable = state.variables()[0].name
        assert state.get(variable, 7) is not None


def checkpoints(location: str, options: dict[str, Any]) -> None:
    """List the checkpoints."""
    with statelog.open(location, storage_options=options) as state:
        assert len(state.checkpoints()) >= RETAINED


def figures(times: list[float] | list[int]) -> dict[str, float]:
    """Return median, 99th percentile, and range."""
    ordered = sorted(times)
    return {
        "p50": round(statistics.median(ordered), 1),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 1),
        "least": round(ordered[0], 1),
        "most": round(ordered[-1], 1),
        "count": len(ordered),
    }


def measure(spark: SparkSession, work: Path, proxy: S3Proxy, arguments: Any) -> dict[str, Any]:
    """Measure everything at each latency."""
    options, result = proxy.server.options, dict[str, Any]()
    long = "s3://bench/long"
    micro_batches(
        spark,
        work / "long",
        long,
        options,
        HANDLES - 1,  # one more would begin a snapshot
        retainedCheckpoints=RETAINED,
        delivery="direct",
        tasks=1,
    )
    for latency in LATENCIES_MS:
        for delivery in ("staged", "direct"):
            name = f"{delivery}-{latency}"
            proxy.latency_s = latency / 1000
            proxy.exchanges.clear()
            times = micro_batches(
                spark,
                work / name,
                f"s3://bench/{name}",
                options,
                arguments.batches + WARM_UP,
                delivery=delivery,
            )
            result[name] = figures(times)
            result[name]["requests"] = len(proxy.exchanges)
            print(name, result[name], file=sys.stderr, flush=True)
    for latency in LATENCIES_MS:
        proxy.latency_s = latency / 1000
        for act in (restore, get, checkpoints):
            name = f"{act.__name__}-{latency}"
            result[name] = figures(timed(lambda act=act: act(long, options), arguments.repeats))
            print(name, result[name], file=sys.stderr, flush=True)
    return result


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with seaweedfs_server() as server, S3Proxy(server) as proxy, session() as (spark, work):
        server.make_bucket("bench")
        cases = measure(spark, work, proxy, arguments)
    result = {"machine": machine(), "latencies_ms": LATENCIES_MS, "cases": cases}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
