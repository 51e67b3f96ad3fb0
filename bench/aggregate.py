"""
Compare running aggregates with Spark's built-in streaming aggregation, in one run on the same input.

Question: how many events a second does a count and a sum by key handle as `aggregate`, whose
micro-batches Spark aggregates before the tasks get them, and as Spark's own `groupBy(...).agg(...)` with
its state in RocksDB and on the heap (the HDFS-backed provider)?

Workload `w1zipf` of `pipeline.py`: two Parquet files a micro-batch, keys drawn from 200,000 by a Zipf
law; the results of the keys of each micro-batch go to a sink that drops them.

Method: one JVM, local[2], trigger availableNow, direct delivery.  Runs alternate; each is a new query on
the same files, and the first micro-batch of each is discarded.  The time of a micro-batch is Spark's
`triggerExecution`.  Spark runs with 4 shuffle partitions (`spark-rocksdb`, `spark-heap`) and, with
`--partitions 2`, with as many as there are cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipeline import ROCKSDB, machine, noop, summary, write_input
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from statelog.demo.java import prepare_environment
from statelog.spark import aggregate, count, sum_

HEAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
CONFIGURATIONS = ("spark-rocksdb", "spark-heap", "statelog-direct")


def run(session: SparkSession, configuration: str, data: Path, work: Path) -> dict[str, Any]:
    """Run one query over all input; return its batch times and the bytes written."""
    events = session.readStream.schema("key long, value double").option("maxFilesPerTrigger", 2)
    grouped = events.parquet(str(data)).groupBy("key")
    progress: list[Any] = []
    if configuration.startswith("spark"):
        session.conf.set(PROVIDER, ROCKSDB if configuration == "spark-rocksdb" else HEAP)
        results = grouped.agg(sf.count("*").alias("n"), sf.sum("value").alias("total"))
        writer, state = results.writeStream.outputMode("update").format("noop"), work / "state"
    else:
        delivery, _, tasks = configuration.removeprefix("statelog-").partition("-")
        results = aggregate(
            grouped,
            n=count(),
            total=sum_("value"),
            delivery=delivery,
            tasks=int(tasks) if tasks else None,
            onProgress=progress.append,
        )
        writer, state = results.writeStream.foreachBatch(noop), work / "statelog"
    writer = writer.option("checkpointLocation", str(work)).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    recent = query.recentProgress
    files = [path for path in state.rglob("*") if path.is_file()]
    result: dict[str, Any] = {
        "milliseconds": [one["durationMs"]["triggerExecution"] for one in recent[1:]],
        "events": [one["numInputRows"] for one in recent[1:]],
        "files_per_batch": len(files) / len(recent),
        "bytes_per_batch": sum(path.stat().st_size for path in files) / len(recent),
    }
    if progress:
        result["tasks"] = [one.tasks for one in progress]
        for name in ("milliseconds", "task_milliseconds"):
            result[f"phases_{name}"] = {
                phase: statistics.median(getattr(one, name).get(phase, 0.0) for one in progress[1:])
                for phase in getattr(progress[-1], name)
            }
    return result


def measure(session: SparkSession, arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run the configurations in turns for each size, and print a table."""
    results = {}
    for events in map(int, arguments.events.split(",")):
        data = work / f"input-{events}"
        data.mkdir()
        write_input(data, arguments.batches, events)
        runs: dict[str, list[dict[str, Any]]] = {
            name: [] for name in arguments.configurations.split(",")
        }
        for number in range(arguments.rounds):
            for name, done in runs.items():
                done.append(run(session, name, data, work / f"{name}-{events}-{number}"))
                median = statistics.median(done[-1]["milliseconds"])
                print(
                    f"{events} round {number} {name}: {median:.0f} ms", file=sys.stderr, flush=True
                )
        table = {name: summary(one) for name, one in runs.items()}
        show(events, table)
        results[str(events)] = {"table": table, "runs": runs}
    return results


def show(events: int, table: dict[str, dict[str, Any]]) -> None:
    """Print the medians of one size, and the ratios to Spark's."""
    print(f"{events:,} events a micro-batch")
    for name, row in table.items():
        low, high = row["ms_quartiles"]
        for beside in ("spark-rocksdb", "spark-heap"):
            if beside in table:
                row[f"ratio_to_{beside}"] = round(table[beside]["ms_median"] / row["ms_median"], 2)
        ratios = ", ".join(f"{row[key]}x {key[9:]}" for key in row if key.startswith("ratio_to_"))
        print(
            f"  {name:18} {row['events_per_s_median']:10,} events/s  {row['ms_median']:7.0f} ms "
            f"({low:.0f}-{high:.0f}; best {row['ms_best']:.0f})  {ratios}  "
            f"{row['files_per_batch']} files, {row['kib_per_batch']} KiB a batch"
        )


def main() -> int:
    """Run the benchmark and print a table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--events", default="1000000,100000", help="sizes of a micro-batch")
    parser.add_argument("--partitions", type=int, default=4, help="of Spark's shuffle")
    parser.add_argument("--configurations", default=",".join(CONFIGURATIONS))
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    prepare_environment()
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("statelog bench")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(arguments.partitions))
        .config(CHANGELOG, "true")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        sizes = measure(session, arguments, work)
    finally:
        session.stop()
        shutil.rmtree(work, ignore_errors=True)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        given = {name: str(one) for name, one in vars(arguments).items() if name != "json"}
        result = {"machine": machine(), "arguments": given, "sizes": sizes}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
