"""
Compare an encrypted location with a plain one, in turns, in one JVM.

Question: what does encryption cost a micro-batch of `--events` events (100,000), and a restart with
`--keys` keys of state on a host without local files?

Micro-batches: the workload and the processor of `pipeline.py`, staged and direct.  A run is a new query
over `--batches` micro-batches, whose first one is discarded; the time is Spark's `triggerExecution`.
Restart: that of `restart.py`, from `start()` to the end of a micro-batch of 10,000 events, with
snapshots and log read from the store.  Plain and encrypted runs take turns for `--rounds` rounds after one
that is not counted, and each pair begins with the other one of the two.  A ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import machine, run, write_input
from pyspark.sql import SparkSession
from restart import Bench

from statelog.demo.java import prepare_environment
from statelog.store.location_store import ENVIRONMENT, MAGIC

KEYS_VARIABLE = "STATELOG_BENCH_KEYS"
WAYS = ("plain", "encrypted")
DELIVERIES = ("staged", "direct")
TARGETS = {"staged": 1.05, "direct": 1.05, "restart": 1.20}
"""Ratios that the encrypted location must not exceed."""


@contextmanager
def encryption(way: str) -> Iterator[None]:
    """Set the encryption of the locations that the driver opens; tasks get it with their options."""
    if way == "encrypted":
        os.environ[ENVIRONMENT] = f"env:{KEYS_VARIABLE}"
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT, None)


def check_encrypted(folder: Path, way: str) -> None:
    """Check that the checkpoints below *folder* are encrypted, or are not."""
    heads = {path.read_bytes()[: len(MAGIC)] == MAGIC for path in folder.rglob("_metadata")}
    if heads != {way == "encrypted"}:
        raise RuntimeError(f"the objects of the {way} location in {folder} are not {way}")


def in_turns(number: int) -> tuple[str, ...]:
    """Return both ways, the other one first in each further round."""
    return WAYS if number % 2 == 0 else WAYS[::-1]


def micro_batches(
    session: SparkSession, work: Path, arguments: argparse.Namespace
) -> dict[str, dict[str, list[int]]]:
    """Return the milliseconds of the micro-batches of both ways, by delivery."""
    data = work / "input"
    data.mkdir()
    write_input(data, arguments.batches, arguments.events)
    times: dict[str, dict[str, list[int]]] = {
        delivery: {way: [] for way in WAYS} for delivery in DELIVERIES
    }
    for number in range(arguments.rounds + 1):
        for delivery in DELIVERIES:
            for way in in_turns(number):
                place = work / f"{delivery}-{way}-{number}"
                with encryption(way):
                    result = run(session, f"statelog-{delivery}", data, place)
                check_encrypted(place, way)
                shutil.rmtree(place)
                if number:
                    times[delivery][way] += result["milliseconds"]
                median = statistics.median(result["milliseconds"])
                print(f"round {number} {delivery} {way}: {median:.0f} ms", file=sys.stderr)
    return times


def restarts(
    session: SparkSession, work: Path, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Return the seconds of the restarts of both ways."""
    bench = Bench(session, work, arguments)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        for way in WAYS:
            (work / f"{way}-input").mkdir()
            bench.load(way)
            with encryption(way):
                bench.run(way)
            check_encrypted(work / way, way)
        for number in range(arguments.rounds + 1):
            for way in in_turns(number):
                bench.more(way)
                shutil.rmtree(work / "local", ignore_errors=True)
                with encryption(way):
                    seconds = bench.run(way)
                if number:
                    times[way].append(seconds)
                print(f"round {number} restart {way}: {seconds:.2f} s", file=sys.stderr)
    finally:
        bench.watch.close()
    return times


def ratio(times: dict[str, list[Any]]) -> float:
    """Return the median of the encrypted way divided by that of the plain one."""
    return round(statistics.median(times["encrypted"]) / statistics.median(times["plain"]), 3)


def measure(session: SparkSession, work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure micro-batches and restarts, and print a table."""
    batches = micro_batches(session, work, arguments)
    restart = restarts(session, work, arguments)
    cases: dict[str, dict[str, list[Any]]] = {**batches, "restart": restart}
    ratios = {name: ratio(times) for name, times in cases.items()}
    for name, times in cases.items():
        unit = "s" if name == "restart" else "ms"
        plain, encrypted = (statistics.median(times[way]) for way in WAYS)
        print(
            f"{name:8} plain {plain:,.2f} {unit}, encrypted {encrypted:,.2f} {unit}, "
            f"ratio {ratios[name]:.3f}, at most {TARGETS[name]:.2f}"
        )
    return {
        "machine": machine(),
        "events": arguments.events,
        "keys": arguments.keys,
        "batch_ms": batches,
        "restart_s": restart,
        "ratios": ratios,
    }


def main() -> int:
    """Run the benchmark and print a table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--budget", default="512 mb")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    prepare_environment()
    os.environ.pop(ENVIRONMENT, None)
    # Workers inherit both from the JVM, which starts now; the processors are in modules of this folder.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ[KEYS_VARIABLE] = f"bench:{base64.b64encode(os.urandom(32)).decode()}"
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("statelog bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        result = measure(session, work, arguments)
    finally:
        session.stop()
        shutil.rmtree(work, ignore_errors=True)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
