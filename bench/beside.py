"""
Run jobs on statelog and on Spark's transformWithState with the same processor, and compare results.

Question: how many events a second does each handle, for jobs that differ in state, time and rows?  `--cases`
chooses them from `cases.py`: those shaped like Nexmark's queries, and those for variety.

Method: one JVM, local[2], trigger availableNow, sink `noop`, Spark's state in RocksDB with 4 partitions.  Before a
case is measured, both run over its first files into a sink that collects, and the rows have to be the same.  Then
each runs for some seconds that do not count, and they take turns over all files; the first micro-batch of each run is
discarded.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.cases import CASES, Case
from bench.harness.query_run import Bounds, file_stream, noop, rows_of, run_query, warm_up
from bench.harness.results import Results, Run, attempt, in_turns, say
from bench.harness.session import session
from bench.workload import write_files
from pyspark.sql import SparkSession

from statelog.spark import BatchProgress, transform_with_state

ENGINES = ("spark", "statelog-staged", "statelog-direct")
_COMPARED_FILES = 4


def stream(
    spark: SparkSession,
    case: Case,
    engine: str,
    data: Path,
    report: Callable[[BatchProgress], None] | None = None,
) -> Any:
    """Return the stream of the output rows of a case; statelog reports its micro-batches."""
    events = case.prepare(file_stream(spark, data, case.schema))
    grouped = events.groupBy(case.key)
    if engine == "spark":
        return grouped.transformWithState(case.processor(), case.output, "Update", case.time_mode)
    delivery = engine.removeprefix("statelog-")
    return transform_with_state(
        grouped,
        case.processor(),
        case.output,
        "Update",
        case.time_mode,
        delivery=delivery,
        on_progress=report,
    )


def differences(spark: Counter[Any], own: Counter[Any]) -> list[str]:
    """Return the first rows that one engine gave more often than the other."""
    lines = [f"only Spark: {row} x{n}" for row, n in (spark - own).items()]
    lines += [f"only statelog: {row} x{n}" for row, n in (own - spark).items()]
    return lines[:10]


def compare(spark: SparkSession, name: str, case: Case, data: Path, work: Path) -> int:
    """
    Compare the rows of both engines over the first files of a case; return their number.

    Raises:
        RuntimeError: They differ, or there are none.
    """
    first = work / f"{name}-first"
    first.mkdir()
    for path in sorted(data.glob("*.parquet"))[:_COMPARED_FILES]:
        shutil.copy2(path, first / path.name)
    rows = {
        engine: rows_of(
            stream(spark, case, engine, first),
            work / f"{name}-{engine}-compared",
            _COMPARED_FILES // 2 if case.time_mode == "ProcessingTime" else sys.maxsize,
        )
        for engine in ENGINES
        if engine != "statelog-staged"
    }
    total = rows["spark"].total()
    if found := differences(rows["spark"], rows["statelog-direct"]):
        raise RuntimeError(f"{name}: Spark gave {total} rows, and others:\n" + "\n".join(found))
    if not total:
        raise RuntimeError(f"{name}: no rows to compare")
    return total


def phases(reports: Sequence[BatchProgress]) -> dict[str, float]:
    """Return the median milliseconds of each phase, on the driver and in the slowest task, without the first micro-batch."""
    measured = [
        {**one.milliseconds, **{f"task {name}": ms for name, ms in one.task_milliseconds.items()}}
        for one in reports[1:]
    ]
    names = dict.fromkeys(name for one in measured for name in one)
    return {
        name: round(statistics.median(one.get(name, 0.0) for one in measured), 1) for name in names
    }


def measure_case(
    spark: SparkSession, results: Results, name: str, options: argparse.Namespace, work: Path
) -> list[str]:
    """Compare and measure one case; return what failed."""
    case, data = CASES[name], work / f"{name}-input"
    files = 2 * options.batches
    runs = [len(results.runs(f"{name}/{engine}")) for engine in ENGINES]
    if min(runs) >= options.rounds:
        return []
    write_files(data, case.table(), files, options.events // 2)
    rows = compare(spark, name, case, data, work)
    say(f"  {name}: {rows:,} rows of both are the same")
    measured = Bounds(options.seconds, batches=options.batches)

    def one(engine: str, bounds: Bounds = measured) -> Run:
        reports: list[BatchProgress] = []
        frame = stream(spark, case, engine, data, reports.append)
        place = work / f"{name}-{engine}-{time.monotonic_ns()}"
        if engine == "spark":
            writer = frame.writeStream.outputMode("update").format("noop")
        else:
            writer = frame.writeStream.foreachBatch(noop)
        facts = run_query(writer, place, bounds)
        return facts | ({"phases": phases(reports)} if reports else {})

    for engine in ENGINES:
        attempt(engine, partial(one, engine, warm_up(options.seconds)))
    parts = [
        (f"{name}/{engine}", options.rounds, lambda engine=engine: one(engine))
        for engine in ENGINES
    ]
    facts = {
        part: {"title": case.title, "engine": engine, "compared_rows": rows}
        for (part, _, _), engine in zip(parts, ENGINES, strict=True)
    }
    return in_turns(results, parts, facts=facts)


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--name", default="queries", help="name of the result")
    parser.add_argument("--cases", default="", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--events", type=int, default=50_000, help="of a micro-batch")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40, help="of a query")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    chosen = [name for name in options.cases.split(",") if name] or [*CASES]
    if unknown := set(chosen) - set(CASES):
        parser.error(f"no such cases: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    arguments = {name: getattr(options, name) for name in ("events", "batches", "rounds")}
    results = Results(options.json, options.name, arguments, resume=options.resume)
    failed = []
    with session() as (spark, work):
        for name in chosen:
            try:
                failed += measure_case(spark, results, name, options, work)
            except Exception as error:  # the other cases are measured all the same
                say(f"  {name} failed: {error}")
                results.failed(name, f"{type(error).__name__}: {error}"[:1000])
                failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
