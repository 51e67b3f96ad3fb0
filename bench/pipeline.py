"""
Compare the pipeline with Spark's own state, in one run on the same input.

Question: how many events a second does an unmodified `StatefulProcessor` handle on statelog, and on
Spark's transformWithState with the RocksDB provider, and what does each write?  With rows and, for
the configurations that have `pandas` in their name, with pandas frames.

Workload `w1zipf`: micro-batches of 100,000 events in two Parquet files, keys drawn from 200,000 by
a Zipf law (exponent 0.9: about 39,000 distinct keys a batch); the processor keeps a running count
and sum per key and yields one row for each key it saw; the sink is Spark's `noop`.

Method: one JVM, local[2], trigger availableNow.  Runs alternate; each is a new query on the same
files, and the first micro-batch of each is discarded, and so are the first `--warm` rounds.  The time
of a micro-batch is Spark's `triggerExecution`.  Spark runs with 4 shuffle partitions; statelog
chooses its number of tasks, unless a configuration names it (`statelog-direct-2`).

With `--events 50` it measures the cost of a micro-batch with few rows.  The configuration `floor`
(`floor-2` for two tasks) is a `foreachBatch` whose one Python job reads the rows and does nothing:
what Spark itself needs for a micro-batch of this source with one Python job.  On Spark 3.5, which does
not have transformWithState, `spark-apply` is the same count by `applyInPandasWithState`.

The workload `w7cols` has seven columns, three of them text, of which the processor reads two.

`--phases` prints where the milliseconds of a micro-batch go, for each configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession

from statelog.demo.java import prepare_environment
from statelog.spark import (
    StatefulProcessor,
    transform_with_state,
    transform_with_state_in_pandas,
)

KEYS = 200_000
ZIPF_EXPONENT = 0.9
OUTPUT = "key long, n long, total double"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CONFIGURATIONS = ("spark", "statelog-staged", "statelog-direct")
WORKLOADS = {
    "w1zipf": "key long, value double",
    "w7cols": "key long, value double, quantity int, at timestamp, city string, product string, "
    "note string",
}
_CITIES = [f"city {number} of the country" for number in range(1_000)]
PANDAS_CONFIGURATIONS = ("spark-pandas", "statelog-pandas-staged", "statelog-pandas-direct")


class RunningTotal(StatefulProcessor):
    """Count and sum per key, with the same processor for both."""

    def init(self, handle: Any) -> None:
        """Declare one value state."""
        self._total = handle.getValueState("total", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows of one key."""
        state = self._total.get()
        n, total = state if state is not None else (0, 0.0)
        for row in rows:
            n += 1
            total += row.value
        self._total.update((n, total))
        yield Row(key=key[0], n=n, total=total)

    def close(self) -> None:
        """Do nothing."""


class RunningTotalInPandas(RunningTotal):
    """Count and sum per key, with pandas frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Add the rows of one key."""
        state = self._total.get()
        n, total = state if state is not None else (0, 0.0)
        for frame in rows:
            n += len(frame)
            total += frame["value"].sum()
        self._total.update((n, total))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


def apply_in_pandas(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Count and sum per key, for `applyInPandasWithState`."""
    n, total = state.get if state.exists else (0, 0.0)
    for frame in frames:
        n += len(frame)
        total += float(frame["value"].sum())
    state.update((n, total))
    yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


def write_input(folder: Path, batches: int, events: int, workload: str = "w1zipf") -> None:
    """Write the input files, two for each micro-batch, oldest first."""
    rng = np.random.default_rng(42)
    weights = 1 / np.arange(1, KEYS + 1) ** ZIPF_EXPONENT
    weights /= weights.sum()
    identity = rng.permutation(KEYS)
    start = time.time() - 2 * batches * 10
    for number in range(2 * batches):
        keys = identity[rng.choice(KEYS, events // 2, p=weights)].astype(np.int64)
        table = pa.table({"key": keys, "value": rng.random(len(keys))})
        if workload == "w7cols":
            table = with_more_columns(table, rng)
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (start + 10 * number, start + 10 * number))


def with_more_columns(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Return the rows with five more columns, three of them text."""
    rows = len(table)
    seconds = rng.integers(1_700_000_000, 1_800_000_000, rows)
    texts = pa.array(_CITIES).take(pa.array(rng.integers(0, len(_CITIES), rows)))
    notes = [f"note {number}" for number in rng.integers(0, 1 << 40, rows)]
    more = {
        "quantity": pa.array(rng.integers(1, 100, rows).astype(np.int32)),
        "at": pa.array(seconds * 1_000_000, pa.timestamp("us", tz="UTC")),
        "city": texts,
        "product": pa.array([f"product-{number % 5_000:05d}" for number in range(rows)]),
        "note": pa.array(notes),
    }
    for name, column in more.items():
        table = table.append_column(name, column)
    return table


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read all rows and return none."""
    for _ in batches:
        pass
    return iter(())


def cpu_seconds() -> float:
    """Return the CPU time of this process, of the JVM and of all workers, ended ones included."""
    ticks, of_parent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        of_parent[int(stat.parent.name)] = int(fields[1])
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, parent in of_parent.items() if parent in family} - family:
        family |= more
    return sum(ticks[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


def floor_batch(tasks: int) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` whose one Python job does nothing."""

    def run_batch(frame: DataFrame, batch_id: int) -> None:
        rows = frame.coalesce(1) if tasks == 1 else frame.repartition(tasks, "key")
        noop(rows.mapInArrow(nothing, OUTPUT), batch_id)

    return run_batch


def noop(frame: DataFrame, batch_id: int) -> None:
    """Evaluate the output and drop it."""
    frame.write.format("noop").mode("append").save()


def run(
    session: SparkSession, configuration: str, data: Path, work: Path, workload: str = "w1zipf"
) -> dict[str, Any]:
    """Run one query over all input; return its batch times and the bytes written."""
    events = session.readStream.schema(WORKLOADS[workload]).option("maxFilesPerTrigger", 2)
    grouped = events.parquet(str(data)).groupBy("key")
    progress: list[Any] = []
    in_pandas = configuration in PANDAS_CONFIGURATIONS
    processor = RunningTotalInPandas() if in_pandas else RunningTotal()
    state = work / "state"
    if configuration.startswith("floor"):
        tasks = int(configuration.partition("-")[2] or 1)
        writer = events.parquet(str(data)).writeStream.foreachBatch(floor_batch(tasks))
    elif configuration == "spark-apply":
        frame = grouped.applyInPandasWithState(
            apply_in_pandas, OUTPUT, "n long, total double", "update", "NoTimeout"
        )
        writer = frame.writeStream.outputMode("update").format("noop")
    elif configuration.startswith("spark"):
        transform = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
        frame = transform(processor, OUTPUT, "Update", "None")
        writer = frame.writeStream.outputMode("update").format("noop")
    else:
        plain = configuration.replace("pandas-", "")
        delivery, _, tasks = plain.removeprefix("statelog-").partition("-")
        transform = transform_with_state_in_pandas if in_pandas else transform_with_state
        stream = transform(
            grouped,
            processor,
            OUTPUT,
            "Update",
            "None",
            delivery=delivery,
            tasks=int(tasks) if tasks else None,
            on_progress=progress.append,
        )
        writer = stream.writeStream.foreachBatch(noop)
        state = work / "statelog"
    writer = writer.option("checkpointLocation", str(work)).trigger(availableNow=True)
    cpu = cpu_seconds()
    query = writer.start()
    query.awaitTermination()
    cpu = cpu_seconds() - cpu
    recent = query.recentProgress
    batches = recent[1:]
    files = [path for path in state.rglob("*") if path.is_file()]
    result = {
        "milliseconds": [batch["durationMs"]["triggerExecution"] for batch in batches],
        "events": [batch["numInputRows"] for batch in batches],
        "cpu_ms_per_batch": 1e3 * cpu / len(recent),
        "spark_phases": {
            name: statistics.median(batch["durationMs"].get(name, 0) for batch in batches)
            for name in recent[-1]["durationMs"]
        },
        "files_per_batch": len(files) / len(recent),
        "bytes_per_batch": sum(path.stat().st_size for path in files) / len(recent),
    }
    if progress:
        result["objects_per_batch"] = statistics.median(p.objects for p in progress)
        staged = sum(p.output_bytes for p in progress) / len(progress)
        result["staged_output_bytes_per_batch"] = staged
        result["tasks"] = [p.tasks for p in progress]
        result["phases"] = {
            name: statistics.median(p.milliseconds.get(name, 0.0) for p in progress[1:])
            for name in progress[-1].milliseconds
        }
        result["task_phases"] = {
            name: statistics.median(p.task_milliseconds.get(name, 0.0) for p in progress[1:])
            for name in progress[-1].task_milliseconds
        }
    return result


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and spread over all rounds of one configuration."""
    rates = sorted(
        1e3 * events / ms
        for one in runs
        for events, ms in zip(one["events"], one["milliseconds"], strict=True)
    )
    times = sorted(ms for one in runs for ms in one["milliseconds"])
    quarter = len(times) // 4
    return {
        "batches": len(times),
        "ms_median": statistics.median(times),
        "ms_quartiles": [times[quarter], times[-1 - quarter]],
        "ms_best": times[0],
        "ms_worst": times[-1],
        "cpu_ms": round(statistics.median(one["cpu_ms_per_batch"] for one in runs)),
        "tasks": runs[-1].get("tasks", [0])[-1],
        "events_per_s_median": round(statistics.median(rates)),
        "files_per_batch": round(statistics.median(one["files_per_batch"] for one in runs), 1),
        "kib_per_batch": round(statistics.median(one["bytes_per_batch"] for one in runs) / 1024, 1),
        "kib_staged_output_per_batch": round(
            statistics.median(one.get("staged_output_bytes_per_batch", 0) for one in runs) / 1024, 1
        ),
    }


def print_phases(name: str, runs: list[dict[str, Any]]) -> None:
    """Print the median of each phase: of Spark's, of the driver's, of the slowest task's."""
    for which in ("spark_phases", "phases", "task_phases"):
        parts = [one[which] for one in runs if which in one]
        if parts:
            medians = {
                phase: statistics.median(part.get(phase, 0.0) for part in parts)
                for phase in parts[-1]
            }
            shown = ", ".join(f"{phase} {ms:.1f}" for phase, ms in medians.items())
            print(f"{name} {which.replace('_', ' ')}: {shown}")


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        models = {line.split(":", 1)[1].strip() for line in cpuinfo if "model name" in line}
    return {
        "cpu": sorted(models),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load_average": os.getloadavg(),
    }


def main() -> int:
    """Run the benchmark and print a table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument(
        "--configurations",
        default=",".join(CONFIGURATIONS),
        help="also floor, spark-apply, " + ", ".join(PANDAS_CONFIGURATIONS),
    )
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="w1zipf")
    parser.add_argument("--warm", type=int, default=0, help="first rounds that do not count")
    parser.add_argument("--phases", action="store_true", help="print the phases of a micro-batch")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    prepare_environment()
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("statelog bench")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        result = measure(session, arguments, work)
    finally:
        session.stop()
        shutil.rmtree(work, ignore_errors=True)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(session: SparkSession, arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run the configurations in turns and print the table."""
    data = work / "input"
    data.mkdir()
    write_input(data, arguments.batches, arguments.events, arguments.workload)
    configurations = arguments.configurations.split(",")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in configurations}
    for number in range(-arguments.warm, arguments.rounds):
        for name in configurations:
            folder = work / f"{name}-{number}"
            one = run(session, name, data, folder, arguments.workload)
            shutil.rmtree(folder, ignore_errors=True)
            if number >= 0:
                runs[name].append(one)
            median = statistics.median(one["milliseconds"])
            print(f"round {number} {name}: {median:.0f} ms a batch", file=sys.stderr, flush=True)
    table = {name: summary(one) for name, one in runs.items()}
    print(
        f"{'configuration':22} {'events/s':>9} {'CPU ms':>7} {'ms a batch (quartiles; best)':>32} "
        f"{'vs Spark':>8} {'files':>6} {'KiB':>8} {'of it output':>12}"
    )
    for name, row in table.items():
        beside = "spark-pandas" if name in PANDAS_CONFIGURATIONS else "spark"
        base = table.get(beside, table.get("spark-apply", {})).get("ms_median")
        low, high = row["ms_quartiles"]
        spread = f"{row['ms_median']:.0f} ({low:.0f}-{high:.0f}; {row['ms_best']:.0f})"
        ratio = f"{base / row['ms_median']:.1f}x" if base else "-"
        row["ratio_to_spark"] = ratio
        print(
            f"{name:22} {row['events_per_s_median']:9,} {row['cpu_ms']:7} {spread:>32} {ratio:>8} "
            f"{row['files_per_batch']:6} {row['kib_per_batch']:8} "
            f"{row['kib_staged_output_per_batch']:12}"
        )
        if "floor" in table:
            row["ratio_to_floor"] = round(row["ms_median"] / table["floor"]["ms_median"], 2)
    if arguments.phases:
        for name, one in runs.items():
            print_phases(name, one)
    return {
        "machine": machine(),
        "arguments": {
            "workload": arguments.workload,
            "rounds": arguments.rounds,
            "batches": arguments.batches,
            "events": arguments.events,
        },
        "table": table,
        "runs": runs,
    }


if __name__ == "__main__":
    sys.exit(main())
