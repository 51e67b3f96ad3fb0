"""
Compare restarts with large state with Spark's, in one warm JVM, and measure the workers' memory.

Question: how long from `start()` to the end of the first micro-batch (10,000 events) of a query that
has `--keys` keys of state (bigint; count and sum), and how much memory do statelog's workers take?

Configurations: `spark`, Spark's RocksDB provider with 4 partitions, changelog checkpointing on;
`statelog-cold`, the host has no local files, so that snapshots and log come from the store;
`statelog-local`, the host has the files of the run before.  They take turns for `--rounds` rounds; each
query is stopped before the next starts.

Spark is shown at its best: its maintenance runs every 2 seconds while the state is built, and for
some seconds more, so that a restart finds snapshots and a short changelog.
Spark's state is built by its own aggregation (`--spark agg`), because transformWithState takes six
minutes for 5 million keys; both keep the same in the same provider, and a restart of the
aggregation starts no Python, so it is the harder comparison.  `--spark tws` takes the processor.
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
from harness.processes import WorkerMemory
from pipeline import ROCKSDB, machine, noop
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import count, sum
from pyspark.sql.streaming import StatefulProcessor

from statelog.demo.java import prepare_environment
from statelog.spark import transform_with_state

LOADS = 10
EVENTS = 10_000
LINGER = 4
OUTPUT = "key long, n long"
CONFIGURATIONS = ("spark", "statelog-cold", "statelog-local")


class RunningTotal(StatefulProcessor):
    """Count and sum per key; no rows out."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self._total.get() or (0, 0.0)
        for row in rows:
            n, total = n + 1, total + row.value
        self._total.update((n, total))
        return iter(())

    def close(self) -> None:
        pass


class Bench:
    """The state of both, and the input they share."""

    def __init__(self, session: SparkSession, work: Path, arguments: argparse.Namespace) -> None:
        self.session = session
        self.work = work
        self.arguments = arguments
        self.watch = WorkerMemory()
        self.progress: list[Any] = []
        self._files = 0
        self._keys = np.random.default_rng(1).permutation(arguments.keys).astype(np.int64)
        for query in ("spark", "statelog"):
            (work / f"{query}-input").mkdir()

    def add(self, query: str, keys: np.ndarray) -> None:
        path = self.work / f"{query}-input" / f"part-{self._files:05}.parquet"
        hidden = path.with_name(f".{path.name}")  # a running query must not see it before its time
        pq.write_table(pa.table({"key": keys, "value": np.ones(len(keys))}), hidden)
        os.utime(hidden, (1_600_000_000 + self._files,) * 2)
        hidden.rename(path)
        self._files += 1

    def load(self, query: str) -> None:
        """Write the input that touches every key once."""
        for part in np.array_split(self._keys, LOADS):
            self.add(query, part)

    def more(self, query: str) -> None:
        """Write the input of one small micro-batch."""
        rng = np.random.default_rng(self._files)
        self.add(query, rng.choice(self._keys, EVENTS, replace=False))

    def run(self, configuration: str) -> float:
        """Run a query over its new files; return the seconds from its start."""
        place = self.work / configuration.partition("-")[0]
        frame = self._frame(place.name)
        start = time.perf_counter()
        if configuration != "spark":
            stream = transform_with_state(
                frame.groupBy("key"),
                RunningTotal(),
                OUTPUT,
                delivery="direct",
                tasks=2,
                memoryBudget=self.arguments.budget,
                **{"state.local-directory": str(self.work / "local")},
                on_progress=self.progress.append,
            )
            writer: Any = stream.writeStream.foreachBatch(noop)
        else:
            writer = self._on_spark(frame).writeStream.outputMode("update").format("noop")
        query = writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - start
        if not any(one["numInputRows"] for one in query.recentProgress):
            raise RuntimeError(f"{configuration}: the query found no input: {query.recentProgress}")
        return seconds

    def linger(self) -> None:
        """Run Spark's query until its maintenance is up to date."""
        frame = self._frame("spark")
        writer = self._on_spark(frame).writeStream.outputMode("update").format("noop")
        query = writer.option("checkpointLocation", str(self.work / "spark")).start()
        for _ in range(LINGER):
            self.more("spark")
            time.sleep(3)
        query.processAllAvailable()
        time.sleep(3)
        query.stop()

    def _frame(self, query: str) -> DataFrame:
        events = self.session.readStream.schema("key long, value double")
        return events.option("maxFilesPerTrigger", 1).parquet(str(self.work / f"{query}-input"))

    def _on_spark(self, frame: DataFrame) -> DataFrame:
        if self.arguments.spark == "agg":
            return frame.groupBy("key").agg(count("*").alias("n"), sum("value").alias("total"))
        return frame.groupBy("key").transformWithState(RunningTotal(), OUTPUT, "Update", "None")


def measure(bench: Bench, arguments: argparse.Namespace) -> dict[str, Any]:
    """Build the state, then restart in turns."""
    built = {}
    names = [name for name in CONFIGURATIONS if name != "spark" or arguments.spark != "none"]
    for name in dict.fromkeys(name.partition("-")[0] for name in names):
        bench.load(name)
        built[name] = round(bench.run(name), 1)
        print(f"built {arguments.keys:,} keys on {name} in {built[name]} s", file=sys.stderr)
    if "spark" in built:
        bench.linger()
    loading = bench.watch.take()
    print(f"workers' memory meanwhile, MiB: {loading}", file=sys.stderr)
    times: dict[str, list[float]] = {name: [] for name in names}
    memory: dict[str, dict[str, int]] = {}
    for number in range(arguments.rounds):
        for name in names:
            bench.more(name.partition("-")[0])
            if name == "statelog-cold":
                shutil.rmtree(bench.work / "local", ignore_errors=True)
            bench.watch.take()
            before = len(bench.progress)
            seconds = bench.run(name)
            times[name].append(seconds)
            memory[name] = bench.watch.take()
            print(f"round {number} {name}: {seconds:.2f} s", file=sys.stderr)
            for one in bench.progress[before : before + 1]:
                print(f"  {one} catch_up={one.catch_up}", file=sys.stderr)
    print(f"{'configuration':16} {'first batch, s (all)':>34} {'workers MiB anon':>17} {'file':>5}")
    for name, seconds in times.items():
        text = f"{statistics.median(seconds):.2f} ({', '.join(f'{one:.2f}' for one in seconds)})"
        print(f"{name:16} {text:>34} {memory[name]['RssAnon']:17} {memory[name]['RssFile']:5}")
    return {
        "machine": machine(),
        "keys": arguments.keys,
        "spark_operator": arguments.spark,
        "built_s": built,
        "memory_while_built_mib": loading,
        "first_batch_s": times,
        "memory_mib": memory,
    }


def main() -> int:
    """Run the benchmark and print a table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", choices=("agg", "tws", "none"), default="agg")
    parser.add_argument("--budget", default="512 mb")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    prepare_environment()
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("statelog bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "2s")
        .config("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    bench = Bench(session, work, arguments)
    try:
        result = measure(bench, arguments)
    finally:
        bench.watch.close()
        session.stop()
        shutil.rmtree(work, ignore_errors=True)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
