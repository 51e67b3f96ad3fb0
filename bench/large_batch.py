"""
Compare one large micro-batch with the same rows in ten, and measure the workers' memory.

Question: what does a micro-batch cost that is larger than the memory budget of its workers?  The rows
(a bigint key and a double) are in Parquet files; a quarter as many keys as rows, drawn evenly.  The
processor keeps a running count and sum per key and yields one row for each key it saw.

Configurations: `one`, all rows in one micro-batch; `ten`, the same rows in ten.  Each is a new query
with new workers on the same files, with two tasks; the time is from `start()` to the end of the run,
and one small micro-batch follows, which brings the state forward from the log.  They take turns for
`--rounds` rounds.  Memory is the largest anonymous resident memory of any Python worker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench.harness.results import command_line
from harness.processes import WorkerMemory
from pipeline import machine, noop
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from statelog.demo.java import prepare_environment
from statelog.spark import transform_with_state

FILES = 20
SMALL = 10_000
ROWS_PER_KEY = 4
OUTPUT = "key long, n long, total double"
PER_TRIGGER = {"one": FILES, "ten": FILES // 10}


class RunningTotal(StatefulProcessor):
    """Count and sum per key."""

    def init(self, handle: Any) -> None:
        """Declare one value state."""
        self._total = handle.getValueState("total", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows to the state, and yield it."""
        n, total = self._total.get() or (0, 0.0)
        for row in rows:
            n, total = n + 1, total + row.value
        self._total.update((n, total))
        yield Row(key=key[0], n=n, total=total)

    def close(self) -> None:
        """Do nothing."""


def write_input(folder: Path, rows: int) -> None:
    """Write the rows in files of equal size, then a small file."""
    rng = np.random.default_rng(1)
    for number in range(FILES + 1):
        count = rows // FILES if number < FILES else SMALL
        keys = rng.integers(0, rows // ROWS_PER_KEY, count)
        path = folder / f"part-{number:05}.parquet"
        pq.write_table(pa.table({"key": keys, "value": np.ones(count)}), path)
        os.utime(path, (1_600_000_000 + number,) * 2)


def run(session: SparkSession, work: Path, name: str, arguments: Any) -> dict[str, Any]:
    """Run one query over all rows; return its figures."""
    place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
    progress: list[Any] = []
    events = session.readStream.schema("key long, value double")
    events = events.option("maxFilesPerTrigger", PER_TRIGGER[name]).parquet(str(work / "input"))
    stream = transform_with_state(
        events.groupBy("key"),
        RunningTotal(),
        OUTPUT,
        delivery=arguments.delivery,
        tasks=2,
        memoryBudget=arguments.budget,
        **{"state.local-directory": str(place / "local")},
        on_progress=progress.append,
    )
    watch = WorkerMemory()
    start = time.perf_counter()
    writer: Any = stream.writeStream.foreachBatch(noop)
    query = (
        writer.option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.perf_counter() - start
    memory = watch.take()
    watch.close()
    shutil.rmtree(place)
    batches = [round(one.milliseconds["total"] / 1e3, 2) for one in progress]
    return {"seconds": round(seconds, 1), "memory_mib": memory, "batches_s": batches}


def main() -> int:
    """Run the benchmark and print a table; with --json also write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--budget", default="512 mb")
    parser.add_argument("--delivery", choices=("direct", "staged"), default="direct")
    parser.add_argument("--only", choices=tuple(PER_TRIGGER))
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    prepare_environment()
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    (work / "input").mkdir()
    write_input(work / "input", arguments.rows)
    results: dict[str, list[dict[str, Any]]] = {}
    try:
        for number in range(arguments.rounds):
            for name in [arguments.only] if arguments.only else list(PER_TRIGGER):
                session = (
                    SparkSession.builder.master("local[2]")
                    .appName("statelog bench")
                    .config("spark.ui.enabled", "false")
                    .config("spark.driver.memory", "2g")
                    .config("spark.ui.showConsoleProgress", "false")
                    .getOrCreate()
                )
                session.sparkContext.setLogLevel("ERROR")
                figures = run(session, work, name, arguments)
                session.stop()  # the next configuration gets new workers
                results.setdefault(name, []).append(figures)
                print(f"round {number} {name}: {figures}", file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{'configuration':14} {'seconds':>8} {'workers MiB anon':>17}")
    for name, figures_of in results.items():
        seconds = statistics.median(one["seconds"] for one in figures_of)
        anonymous = max(one["memory_mib"]["RssAnon"] for one in figures_of)
        print(f"{name:14} {seconds:8.1f} {anonymous:17}")
    result = {
        "machine": machine(),
        "command": command_line(),
        "rows": arguments.rows,
        "keys": arguments.rows // ROWS_PER_KEY,
        "budget": arguments.budget,
        "delivery": arguments.delivery,
        "results": results,
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
