"""
Measure how the time of a micro-batch changes with one size, all others fixed.

Curves: `batch-size` (events of a micro-batch), `keys` (keys in the state), `budget` (MiB of `memoryBudget`, with 20
million keys), `value-size` (bytes of a value), `tasks`, `workers` (tasks on three workers of two cores),
`operators` (in a chain), `retained` (checkpoints, of micro-batches with few events).  The number of micro-batches is in `many_batches.py`.

Ways: statelog with the row processor, with columns, and with `aggregate`, as far as this version has them; and
Spark's built-in aggregation on RocksDB for `batch-size`.  Direct delivery, sink `noop`, local[2].

Method: as in `peers.py`; the points of a curve are measured one after the other.  For `keys` and `budget` the state is
loaded first, in 20 micro-batches or more of up to 500,000 keys, which are not measured; then come micro-batches of
100,000 events over all keys, with equal chances.  Each point has a Spark application of its own, so that workers
have the memory of one query only; the points of `batch-size` and `value-size` share one, in which each way of
`batch-size` first runs for some seconds that do not count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench.harness.processes import WorkerMemory
from bench.harness.query_run import Bounds, file_stream, noop, run_query, set_age, warm_up
from bench.harness.results import ROOT, Results, Run, attempt, in_turns
from bench.harness.session import session
from bench.peers import OUTPUT, PEERS, RunningTotal, run
from bench.workload import write_files, zipf_events
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from statelog.spark import BatchProgress, transform_with_state

SIZES = {
    "batch-size": (50, 1_000, 10_000, 100_000, 500_000, 1_000_000, 2_000_000),
    "keys": (10_000, 100_000, 1_000_000, 5_000_000, 20_000_000),
    "budget": (128, 512, 4096),
    "value-size": (16, 100, 1_000, 10_000),
    "tasks": (1, 2, 8, 32, 128),
    "workers": (3, 6, 24, 96),
    "operators": (1, 2, 3),
    "retained": (1, 10, 100, 400),
}
TINY = {
    "batch-size": (50, 1_000),
    "keys": (1_000, 5_000),
    "budget": (64, 128),
    "value-size": (16, 1_000),
    "tasks": (1, 4),
    "workers": (3,),
    "operators": (1, 2),
    "retained": (1, 5),
}
WAYS = ("statelog-direct", "statelog-columns-direct", "statelog-aggregate-direct")
_APART = tuple(curve for curve in SIZES if curve not in ("batch-size", "value-size"))
"""Curves of which each point has an application of its own."""
_LOADED_AT_ONCE = 500_000
_FEWEST_LOADS = 20
_MANY_KEYS = 20_000_000
_MEASURED_RETENTION = 30
_THREE_WORKERS = "local-cluster[3,2,1024]"


class LastValue(StatefulProcessor):
    """The last value of a key, and how many there were."""

    def init(self, handle: Any) -> None:
        """Declare one value state."""
        self._value = handle.getValueState("value", "n long, value binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Keep the last row of one key."""
        n, value = self._value.get() or (0, b"")
        for row in rows:
            n, value = n + 1, bytes(row.value)
        self._value.update((n, value))
        yield Row(key=key[0], n=n)

    def close(self) -> None:
        """Do nothing."""


class LaterTotal(RunningTotal):
    """Sum the totals of an operator before this one."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows of one key."""
        n, total = self._total.get() or (0, 0.0)
        for row in rows:
            n, total = n + row.n, total + row.total
        self._total.update((n, total))
        yield Row(key=key[0], n=n, total=total)


class Curves:
    """
    The curves of one run.

    Args:
        spark: The session.
        work: A folder for input and state.
        options: The command line.
    """

    def __init__(self, spark: SparkSession, work: Path, options: argparse.Namespace) -> None:
        self._spark, self._work, self._options = spark, work, options
        self._bounds = Bounds(options.seconds)
        self._warm: set[str] = set()

    def batch_size(self, way: str, events: int) -> Run:
        """Measure micro-batches of so many events, more of them where they are small."""
        batches = 16 if events <= 10_000 else 8 if events <= 100_000 else 5
        data = self._work / f"batch-{events}"
        write_files(data, zipf_events(), 2 * batches, max(1, events // 2))
        stream = partial(file_stream, self._spark, data, "key long, value double")
        measure = partial(run, self._spark, PEERS[way], stream)
        if way not in self._warm:
            self._warm.add(way)
            attempt(way, lambda: measure(self._place(), warm_up(self._options.seconds)))
        return measure(self._place(), self._bounds)

    def keys(self, way: str, keys: int) -> Run:
        """Measure micro-batches over a state of so many keys."""
        return self._loaded(way, keys, 1024)

    def budget(self, way: str, mib: int) -> Run:
        """Measure micro-batches over a state of many keys, with a memory budget of so many MiB."""
        return self._loaded(way, TINY["keys"][-1] if self._options.quick else _MANY_KEYS, mib)

    def _loaded(self, way: str, keys: int, budget_mib: int) -> Run:
        data, place = self._work / f"keys-{keys}", self._place()
        loads = write_loaded_input(data, keys, self._events())
        source = file_stream(self._spark, data, "key long, value double", 1)
        settings = {"memoryBudget": f"{budget_mib} mb", "tasks": 2}
        run_ = self._watched(source, way, place, settings, Bounds(600, loads + 2, 900))
        # The first one is left out already.
        return last_of(run_, len(run_["milliseconds"]) - (loads - 1))

    def _watched(
        self,
        source: Any,
        way: str,
        place: Path,
        settings: dict[str, Any],
        bounds: Bounds,
        operators: int = 1,
    ) -> Run:
        """Run a query with direct delivery, and watch its workers' memory and its puts."""
        local = place / "local"
        reports: list[BatchProgress] = []
        every: dict[str, Any] = {"delivery": "direct", "state.local-directory": str(local)}
        frame = transform_with_state(
            source.groupBy("key"),
            RunningTotal() if way == "statelog-direct" else _in_columns(),
            OUTPUT,
            "Update",
            "None",
            on_progress=reports.append,
            **every,
            **settings,
        )
        for _ in range(operators - 1):
            frame = transform_with_state(
                frame.groupBy("key"), LaterTotal(), OUTPUT, "Update", "None", **every, **settings
            )
        memory = WorkerMemory(local, seconds=0.5)  # seldom, as micro-batches are timed
        try:
            run_ = run_query(frame.writeStream.foreachBatch(noop), place, bounds)
        finally:
            memory.close()
        shutil.rmtree(local, ignore_errors=True)
        stored = sum(path.is_file() for path in place.rglob("*") if "statelog" in path.parts)
        puts = [report.objects for report in reports[1:]]
        return run_ | {"memory_mib": memory.take(), "puts": puts, "stored": stored}

    def value_size(self, way: str, size: int) -> Run:
        """Measure micro-batches of values of so many bytes."""
        data, events = self._work / f"value-{size}", self._events() // 5

        def table(rng: np.random.Generator, rows: int, number: int) -> pa.Table:
            values = rng.bytes(rows * size)
            cut = [values[at : at + size] for at in range(0, len(values), size)]
            return pa.table({"key": rng.integers(0, 20_000, rows), "value": cut})

        write_files(data, table, 12, events // 2)
        grouped = file_stream(self._spark, data, "key long, value binary").groupBy("key")
        frame = transform_with_state(
            grouped, LastValue(), "key long, n long", "Update", "None", delivery="direct"
        )
        return run_query(frame.writeStream.foreachBatch(noop), self._place(), self._bounds)

    def tasks(self, way: str, tasks: int) -> Run:
        """Measure one number of tasks."""
        data = self._work / "tasks"
        write_files(data, zipf_events(), 16, self._events() // 2)
        source = file_stream(self._spark, data, "key long, value double")
        return self._watched(source, way, self._place(), {"tasks": tasks}, Bounds(60))

    workers = tasks

    def operators(self, way: str, operators: int) -> Run:
        """Measure a chain of operators."""
        data = self._work / "operators"
        write_files(data, zipf_events(), 16, self._events() // 2)
        source = file_stream(self._spark, data, "key long, value double")
        return self._watched(source, way, self._place(), {}, Bounds(60), operators)

    def retained(self, way: str, checkpoints: int) -> Run:
        """Measure micro-batches of 1,000 events, while the location retains this number of checkpoints."""
        data = self._work / "retained"
        batches = checkpoints + _MEASURED_RETENTION + 1
        write_files(data, zipf_events(), batches, 1_000)
        source = file_stream(self._spark, data, "key long, value double", 1)
        settings = {"retainedCheckpoints": checkpoints}
        run_ = self._watched(source, way, self._place(), settings, Bounds(600, batches, 900))
        return last_of(run_, _MEASURED_RETENTION)

    def _events(self) -> int:
        return 2_000 if self._options.quick else 100_000

    def _place(self) -> Path:
        place = self._work / f"query-{time.monotonic_ns()}"
        place.mkdir()
        return place


def _in_columns() -> Any:
    from bench.columns import RunningTotalInColumns  # not every version of statelog has it

    return RunningTotalInColumns()


def last_of(run_: Run, batches: int) -> Run:
    """Return a run with its last micro-batches only."""
    names = ("milliseconds", "events", "puts")
    last = {name: run_[name][-batches:] for name in names}
    return run_ | last | {"said": f"{last['milliseconds']} ms"}


def write_loaded_input(folder: Path, keys: int, events: int) -> int:
    """
    Write files that touch each key once, and then files of random events, one per micro-batch.

    Returns:
        The number of micro-batches that load the keys; enough for the JVM to be warm.
    """
    loads = max(_FEWEST_LOADS, -(-keys // _LOADED_AT_ONCE))
    if folder.exists():
        return loads
    folder.mkdir(parents=True)
    rng = np.random.default_rng(11)
    parts = np.array_split(rng.permutation(keys).astype(np.int64), loads)
    parts += [rng.integers(0, keys, events) for _ in range(7)]
    for number, part in enumerate(parts):
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(pa.table({"key": part, "value": rng.random(len(part))}), path)
        set_age(path, number)
    return loads


def run_apart(curve: str, way: str, size: int, options: argparse.Namespace) -> Run:
    """Run this module in a process of its own: it has another master, or new workers."""
    command = [sys.executable, "-m", "bench.curves", "--one", f"{curve},{way},{size}"]
    command += ["--seconds", str(options.seconds), *(["--quick"] if options.quick else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    raise RuntimeError(f"{curve} {size}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def one_point(options: argparse.Namespace) -> Run:
    """Measure one point in this process."""
    curve, way, size = options.one.split(",")
    more: dict[str, Any] = {}
    if curve == "workers":
        more = {"master": _THREE_WORKERS, "settings": {"spark.driver.memory": "2g"}}
    with session(**more) as (spark, work):
        measured: Run = measure_of(Curves(spark, work, options), curve)(way, int(size))
    return measured


def measure_of(curves: Curves, curve: str) -> Callable[[str, int], Run]:
    """Return the method that measures a point of a curve."""
    found: Callable[[str, int], Run] = getattr(curves, curve.replace("-", "_"))
    return found


def points(
    curves: Curves | None, chosen: list[str], options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the facts of each point, with what measures it: *curves*, or another process."""
    for curve in chosen:
        ways = [way for way in WAYS if not PEERS[way].missing]
        if curve == "batch-size":
            ways.append("spark-agg-rocksdb")
        if curve == "value-size":
            ways = ways[:1]
        if curve in ("keys", "budget"):
            ways = [way for way in ways if "aggregate" not in way]
        if curve == "budget":
            ways = ways[-1:]
        if curve in ("tasks", "workers", "retained"):
            ways = ways[:2]
        if curve == "operators":
            ways = ways[:1]
        for way in options.ways.split(",") if options.ways else ways:
            sizes = (TINY if options.quick else SIZES)[curve]
            for size in map(int, options.sizes.split(",")) if options.sizes else sizes:
                if curves is None:
                    measure = partial(run_apart, curve, way, size, options)
                else:
                    measure = partial(measure_of(curves, curve), way, size)
                facts = {"curve": curve, "way": way, "title": PEERS[way].title, "size": size}
                yield f"{curve}/{way}/{size}", {"measure": measure, "facts": facts}


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--curves", default=",".join(SIZES), help=f"of: {', '.join(SIZES)}")
    parser.add_argument("--ways", default="", help=f"of: {', '.join(WAYS)}")
    parser.add_argument("--sizes", default="", help="points of the curve, instead of its own")
    parser.add_argument("--seconds", type=float, default=30, help="of a query")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_point(options)))
        return 0
    chosen = options.curves.split(",")
    if options.json is None or set(chosen) - set(SIZES):
        parser.error(f"--json is needed, and curves of: {', '.join(SIZES)}")
    results = Results(options.json, "curves", {"quick": options.quick}, resume=options.resume)
    failed = []
    if here := [one for one in chosen if one not in _APART]:
        with session() as (spark, work):
            curves = Curves(spark, work, options)
            failed += measure_points(results, dict(points(curves, here, options)))
    apart = [one for one in chosen if one in _APART]
    failed += measure_points(results, dict(points(None, apart, options)))
    return 1 if failed else 0


def measure_points(results: Results, made: dict[str, dict[str, Any]]) -> list[str]:
    """Measure each point once; return those that failed."""
    failed = []
    for name, point in made.items():
        facts = {name: point["facts"]}
        failed += in_turns(results, [(name, 1, point["measure"])], facts=facts)
    return failed


if __name__ == "__main__":
    sys.exit(main())
