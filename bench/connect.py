"""
Compare a small micro-batch on Spark Connect with one in a classic session, in one run.

Question: what does it cost a query that its engine runs in the server's process for foreachBatch, in
each micro-batch and at its start?

Workload: micro-batches of 50 events in two Parquet files, as in `pipeline.py --events 50`; staged
delivery; the sink evaluates the output and drops it.  Spark's own transformWithState with the RocksDB
provider runs beside it in both kinds of sessions.

Method: two processes, one with a classic session on local[2], one with a session of a Connect server
on this machine with local[2] too.  They take turns: only one of them runs a query at a time.  Each
run is a new query with the trigger availableNow; the first micro-batch of each is discarded, and so
is the first round.  The time of a micro-batch is Spark's `triggerExecution`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pipeline import OUTPUT, ROCKSDB, RunningTotal, machine, noop, write_input
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.support.spark.connect.server import ConnectServer

from statelog.demo.java import prepare_environment
from statelog.spark import transform_with_state

SESSIONS = ("classic", "connect")
STATES = ("statelog", "spark")
SETTINGS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def run(session: SparkSession, state: str, data: Path, work: Path) -> dict[str, Any]:
    """Run one query over all input; return the times of its micro-batches and of its start."""
    events = session.readStream.schema("key long, value double").option("maxFilesPerTrigger", 2)
    grouped = events.parquet(str(data)).groupBy("key")
    if state == "spark":
        writer = (
            grouped.transformWithState(RunningTotal(), OUTPUT, "Update", "None")
            .writeStream.outputMode("update")
            .format("noop")
        )
    else:
        stream = transform_with_state(grouped, RunningTotal(), OUTPUT, "Update", "None")
        writer = stream.writeStream.foreachBatch(noop)
    begin = time.monotonic()
    query = writer.option("checkpointLocation", str(work)).trigger(availableNow=True).start()
    started = time.monotonic() - begin
    query.awaitTermination()
    recent = query.recentProgress
    return {
        "start_s": started,
        "first_ms": recent[0]["durationMs"]["triggerExecution"],
        "milliseconds": [one["durationMs"]["triggerExecution"] for one in recent[1:]],
    }


def child(kind: str, data: str, work: str) -> None:
    """Open a session and run one query for each line of standard input."""
    prepare_environment()
    folder = Path(work) / kind
    folder.mkdir()
    server = None
    # Workers, and the server's process, need not find this folder's modules.
    cloudpickle.register_pickle_by_value(sys.modules["pipeline"])
    if kind == "connect":
        server = ConnectServer(folder, folder / "server.log", settings=SETTINGS)
        server.wait()
        session = SparkSession.builder.remote(server.url).getOrCreate()
    else:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        builder = builder.config("spark.driver.memory", "1g")
        session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
    try:
        for number, line in enumerate(sys.stdin):
            result = run(session, line.strip(), Path(data), folder / str(number))
            print(json.dumps(result), flush=True)
    finally:
        session.stop()
        if server is not None:
            server.kill()


def main() -> int:
    """Run the benchmark and print a table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    prepare_environment()
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    data = work / "input"
    data.mkdir()
    write_input(data, arguments.batches, arguments.events)
    children = {
        kind: subprocess.Popen(
            [sys.executable, __file__, "--child", kind, str(data), str(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(work / f"{kind}.log").open("wb"),
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        for kind in SESSIONS
    }
    runs: dict[str, list[dict[str, Any]]] = {
        f"{state}, {kind}": [] for state in STATES for kind in SESSIONS
    }
    try:
        for number in range(arguments.rounds + 1):
            for state in STATES:
                for kind in SESSIONS:
                    one = ask(children[kind], state)
                    print(f"round {number} {state} {kind}: {one['milliseconds']}", file=sys.stderr)
                    if number:
                        runs[f"{state}, {kind}"].append(one)
    finally:
        for process in children.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        shutil.rmtree(work, ignore_errors=True)
    table = {name: summary(one) for name, one in runs.items()}
    for name, row in table.items():
        print(f"{name:20} {row}")
    if arguments.json:
        result = {
            "machine": machine(),
            "arguments": {
                name: getattr(arguments, name) for name in ("rounds", "batches", "events")
            },
            "table": table,
            "runs": runs,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def ask(process: subprocess.Popen[str], state: str) -> dict[str, Any]:
    """Let a child run one query."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{state}\n")
    process.stdin.flush()
    result: dict[str, Any] = json.loads(process.stdout.readline())
    return result


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and spread over all rounds of one configuration."""
    times = sorted(ms for one in runs for ms in one["milliseconds"])
    quarter = len(times) // 4
    return {
        "batches": len(times),
        "ms_median": statistics.median(times),
        "ms_quartiles": [times[quarter], times[-1 - quarter]],
        "ms_best": times[0],
        "first_ms": sorted(one["first_ms"] for one in runs),
        "start_s": sorted(round(one["start_s"], 2) for one in runs),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main())
