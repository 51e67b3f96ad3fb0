"""
Compare the ways to keep a count and a sum per key: Spark's own and statelog's, in one run.

Question: how many events a second does each handle over the same input, and what does it write?

Peers: Spark's transformWithState with rows and with pandas frames, applyInPandasWithState, the built-in
aggregation with state in RocksDB and on the JVM's heap; statelog with the same unmodified processor for rows and
for pandas frames, with a column processor, and with `aggregate`.  A peer that this version does not have is left
out, and the result says so.

Workload `w1zipf` (`workload.py`): keys drawn from 200,000 by a Zipf law, two Parquet files for each
micro-batch, sink `noop`.  `--workload w7cols` has five more columns, three of them text, which no peer
needs: the column processor names the columns that it reads.

Before a peer is measured, its totals over a small input are compared with those that NumPy computes of the files.

Method: one JVM, local[2], trigger availableNow.  Each peer runs for some seconds that do not count; then they take
turns.  Each run is a new query on the same files, and its first micro-batch is discarded.  The time of a micro-batch is Spark's
`triggerExecution`.  Spark runs with 4 shuffle partitions; statelog chooses its number of tasks.  A query is stopped after
`--seconds`, once it has two micro-batches to measure: slow peers have fewer.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from bench import columns, pipeline
from bench.harness.query_run import (
    Bounds,
    file_stream,
    noop,
    one_python_job,
    rows_of,
    run_query,
    warm_up,
)
from bench.harness.results import Results, Run, attempt, in_turns, say
from bench.harness.session import CORES, HEAP, PROVIDER, ROCKSDB, session
from bench.workload import seven_columns, write_files, zipf_events
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import count, sum
from pyspark.sql.streaming import StatefulProcessor

from statelog.spark import BatchProgress, transform_with_state, transform_with_state_in_pandas

WORKLOADS = {
    "w1zipf": (pipeline.WORKLOADS["w1zipf"], zipf_events),
    "w7cols": (pipeline.WORKLOADS["w7cols"], seven_columns),
}
OUTPUT = "key long, n long, total double"
STATE = "n long, total double"

Report = Callable[[BatchProgress], None]
Events = Callable[[], DataFrame]


class RunningTotal(StatefulProcessor):
    """Count and sum per key, with the same processor for both."""

    def init(self, handle: Any) -> None:
        """Declare one value state."""
        self._total = handle.getValueState("total", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows of one key."""
        n, total = self._total.get() or (0, 0.0)
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
        n, total = self._total.get() or (0, 0.0)
        for frame in rows:
            n += len(frame)
            total += frame["value"].sum()
        self._total.update((n, total))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


def running_total(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Count and sum of one key, for applyInPandasWithState."""
    n, total = state.get if state.exists else (0, 0.0)
    for frame in frames:
        n += len(frame)
        total += float(frame["value"].sum())
    state.update((n, total))
    yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


@dataclass(frozen=True, slots=True)
class Peer:
    """
    One way to keep the totals.

    Args:
        title: Its name on the page.
        frame: Makes the stream of totals of the grouped events; statelog also calls a function with
            its report of each micro-batch.  None: the floor, which keeps no totals.
        provider: Spark's state store; "" for statelog, which has none.
        missing: Why this version does not have it; "" if it does.
        slow: Whether it takes seconds for each 100,000 events: measured once, in the first round.
    """

    title: str
    frame: Callable[[Any, Report], Any] | None
    provider: str = ""
    missing: str = ""
    slow: bool = False


def _statelog(transform: Any, processor: Any, delivery: str) -> Callable[[Any, Report], Any]:
    def frame(grouped: Any, report: Report) -> Any:
        options: dict[str, Any] = {"delivery": delivery, "on_progress": report}
        return transform(grouped, processor(), OUTPUT, "Update", "None", **options)

    return frame


def _aggregation(grouped: Any, report: Report) -> Any:
    return grouped.agg(count("*").alias("n"), sum("value").alias("total"))


def _apply_in_pandas(grouped: Any, report: Report) -> Any:
    return grouped.applyInPandasWithState(running_total, OUTPUT, STATE, "update", "NoTimeout")


_in_rows = partial(_statelog, transform_with_state, RunningTotal)
_in_pandas = partial(_statelog, transform_with_state_in_pandas, RunningTotalInPandas)
_in_columns = partial(_statelog, transform_with_state, columns.RunningTotalInColumns)
_NO_COLUMNS = "" if columns.ColumnarProcessor else columns.NO_COLUMNS
_NO_AGGREGATE = "" if columns.aggregate else columns.NO_AGGREGATE

PEERS = {
    "floor": Peer("one Python job that does nothing", None),
    "spark-tws": Peer(
        "Spark `transformWithState`",
        lambda grouped, report: grouped.transformWithState(
            RunningTotal(), OUTPUT, "Update", "None"
        ),
        ROCKSDB,
    ),
    "spark-tws-pandas": Peer(
        "Spark `transformWithStateInPandas`",
        lambda grouped, report: grouped.transformWithStateInPandas(
            RunningTotalInPandas(), OUTPUT, "Update", "None"
        ),
        ROCKSDB,
        slow=True,
    ),
    "spark-apply-pandas": Peer(
        "Spark `applyInPandasWithState`", _apply_in_pandas, ROCKSDB, slow=True
    ),
    "spark-agg-rocksdb": Peer("Spark built-in aggregation, RocksDB", _aggregation, ROCKSDB),
    "spark-agg-heap": Peer("Spark built-in aggregation, JVM heap", _aggregation, HEAP),
    "statelog-staged": Peer("statelog, rows, staged", _in_rows("staged")),
    "statelog-direct": Peer("statelog, rows, direct", _in_rows("direct")),
    "statelog-pandas-staged": Peer("statelog, pandas, staged", _in_pandas("staged"), slow=True),
    "statelog-pandas-direct": Peer("statelog, pandas, direct", _in_pandas("direct"), slow=True),
    "statelog-columns-staged": Peer(
        "statelog, columns, staged", _in_columns("staged"), missing=_NO_COLUMNS
    ),
    "statelog-columns-direct": Peer(
        "statelog, columns, direct", _in_columns("direct"), missing=_NO_COLUMNS
    ),
    "statelog-aggregate-staged": Peer(
        "statelog `aggregate`, staged",
        partial(columns.aggregated, delivery="staged"),
        missing=_NO_AGGREGATE,
    ),
    "statelog-aggregate-direct": Peer(
        "statelog `aggregate`, direct",
        partial(columns.aggregated, delivery="direct"),
        missing=_NO_AGGREGATE,
    ),
}


def run(spark: SparkSession, peer: Peer, events: Events, work: Path, bounds: Bounds) -> Run:
    """Run one query of a peer over all *events*."""
    if peer.provider:
        spark.conf.set(PROVIDER, peer.provider)
    reports: list[BatchProgress] = []
    stream = events()
    if peer.frame is None:
        return run_query(stream.writeStream.foreachBatch(one_python_job), work, bounds)
    frame = peer.frame(stream.groupBy("key"), reports.append)
    if peer.provider:
        writer = frame.writeStream.outputMode("update").format("noop")
    else:
        writer = frame.writeStream.foreachBatch(noop)
    facts = run_query(writer, work, bounds)
    return facts | ({"state_work": state_work(reports, facts["milliseconds"])} if reports else {})


def state_work(reports: Sequence[BatchProgress], milliseconds: Sequence[float]) -> float:
    """
    Return the median share of a micro-batch that its slowest task spent in code of ours, by the clock.

    That is everything from the start of the task to its answer but the wait for rows; of the slowest task
    in each phase, once for each wave of tasks.  Where others use the cores too, it is too much.

    Args:
        reports: All micro-batches of a query, from the first on.
        milliseconds: The time of each micro-batch but the first.
    """
    shares = []
    for report, whole in zip(reports[1:], milliseconds, strict=False):
        phases = dict(report.task_milliseconds)
        ours = math.fsum(phases.values()) - 2 * phases.get("wait", 0.0)  # `input` has the wait, too
        shares.append(-(-report.tasks // CORES) * ours / whole)
    return round(statistics.median(shares), 4)


def expected_totals(folder: Path) -> dict[int, tuple[int, float]]:
    """Return count and sum of each key in some files."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])
    made = table.group_by("key").aggregate([("value", "count"), ("value", "sum")])
    columns_ = (made[name].to_pylist() for name in ("key", "value_count", "value_sum"))
    return {key: (n, total) for key, n, total in zip(*columns_, strict=True)}


def last_totals(rows: Iterable[tuple[Any, ...]]) -> dict[int, tuple[int, float]]:
    """Return count and sum of each key in its last row: that with the highest count."""
    found: dict[int, tuple[int, float]] = {}
    for key, n, total in rows:
        found[key] = max(found.get(key, (0, 0.0)), (n, total))
    return found


def wrong_totals(
    found: dict[int, tuple[int, float]], expected: dict[int, tuple[int, float]]
) -> list[int]:
    """Return the keys whose totals are missing, wrong, or too many."""
    return [
        key
        for key in sorted(found.keys() | expected.keys())
        if key not in found
        or key not in expected
        or found[key][0] != expected[key][0]
        or not math.isclose(found[key][1], expected[key][1], abs_tol=1e-4)
    ]


def check(spark: SparkSession, peer: Peer, workload: str, work: Path) -> str:
    """Return why the totals of a peer over a small input are not those of the files; "" if they are."""
    data, (schema, table_of) = work / "small", WORKLOADS[workload]
    write_files(data, table_of(150), 4, 200)
    if peer.provider:
        spark.conf.set(PROVIDER, peer.provider)
    try:
        grouped = file_stream(spark, data, schema).groupBy("key")
        frame = peer.frame(grouped, lambda report: None)
        rows = rows_of(frame, work / f"checked-{time.monotonic_ns()}", sys.maxsize)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    wrong = wrong_totals(last_totals(rows), expected_totals(data))
    return f"wrong totals of the keys {wrong[:5]}" if wrong else ""


def measure(
    spark: SparkSession, results: Results, options: argparse.Namespace, work: Path
) -> list[str]:
    """Measure the chosen peers in turns, and return those that failed."""
    data = work / "input"
    say(f"writing {2 * options.batches} files of {options.events // 2:,} events")
    schema, table_of = WORKLOADS[options.workload]
    write_files(data, table_of(), 2 * options.batches, options.events // 2)
    bounds = Bounds(options.seconds)
    say("checking the totals of each, and warming up")
    events = partial(file_stream, spark, data, schema)
    parts, failed = [], list[str]()
    # The floor has one task, as few rows have; for many it says little.
    usual = [name for name, peer in PEERS.items() if peer.frame]
    for name in options.peers.split(",") if options.peers else usual:
        peer = PEERS[name]
        if peer.missing:
            say(f"  {name}: left out, {peer.missing}")
            results.skip(name, peer.missing, title=peer.title)
            continue
        if len(results.runs(name)) >= (1 if peer.slow else options.rounds):
            continue
        # Twice: a busy machine.
        args = spark, peer, options.workload, work
        if peer.frame and (reason := check(*args) and check(*args)):
            say(f"  {name} failed: {reason}")
            results.failed(name, reason, title=peer.title)
            failed.append(name)
            continue

        def one(peer: Peer = peer, name: str = name, bounds: Bounds = bounds) -> Run:
            place = work / f"{name}-{time.monotonic_ns()}"
            return run(spark, peer, events, place, bounds)

        attempt(name, partial(one, bounds=warm_up(options.seconds)))
        parts.append((name, 1 if peer.slow else options.rounds, one))
    facts = {name: {"title": peer.title} for name, peer in PEERS.items()}
    return failed + in_turns(
        results, parts, facts=facts, deadline=time.monotonic() + options.minutes * 60
    )


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--name", default="peers-100k", help="name of the result")
    parser.add_argument("--events", type=int, default=100_000, help="of a micro-batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--workload", choices=WORKLOADS, default="w1zipf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=45, help="of a query")
    parser.add_argument("--minutes", type=float, default=15, help="no further round after these")
    parser.add_argument("--peers", default="", help=f"of: {', '.join(PEERS)}")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    if unknown := set(filter(None, options.peers.split(","))) - set(PEERS):
        parser.error(f"no such peers: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    arguments = {name: getattr(options, name) for name in ("events", "batches", "rounds")}
    results = Results(options.json, options.name, arguments, resume=options.resume)
    with session() as (spark, work):
        failed = measure(spark, results, options, work)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
