"""
The process that `statelog demo` starts, kills and restarts: `python -m statelog.demo.program`.

It runs the job over all input, writes a JSON line for each micro-batch to a pipe, and, if asked to,
compares the result with a batch query, which Spark SQL answers without statelog.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

import statelog
from statelog.demo.job import FIELDS, SESSION_GAP, JobConfig, read_lines, start_job
from statelog.model import JsonObject

DIFFERENCES_MAX: Final = 20
"""Maximum number of differences to list."""

_MARKED: Final = f"""
  SELECT *, coalesce(ordered_at > INTERVAL {SESSION_GAP.seconds} SECONDS
    + lag(ordered_at) OVER (PARTITION BY customer ORDER BY ordered_at), true) AS starts
  FROM lines
"""
_ANSWERS: Final = {
    "account": """
      SELECT customer, CAST(sum(quantity * price) AS decimal(18,4)), count(*),
        count(DISTINCT invoice), count_if(starts),
        max(struct(ordered_at, invoice, country)).country, max(ordered_at)
      FROM marked GROUP BY customer
    """,
    "orders": "SELECT customer, invoice, min(ordered_at) FROM marked GROUP BY customer, invoice",
    "sessions": "SELECT customer, ordered_at FROM marked WHERE starts",
}
"""The rows of each state variable, by a batch query."""

Send = Callable[..., None]
"""Sends a message to the parent process: the name of the event, and its facts."""


def check(session: SparkSession, config: JobConfig) -> JsonObject:
    """
    Compare the job's state and output with a batch query on the same files.

    Returns:
        Whether they are `exact`; the first `differences` and the `difference_count`; totals of the
        batch query; the number of `batches` in the sink; the `checkpoint` that was read.
    """
    read_lines(session.read, config).createOrReplaceTempView("lines")
    session.sql(_MARKED).createOrReplaceTempView("marked")
    answers = {name: session.sql(query).collect() for name, query in _ANSWERS.items()}
    accounts = answers["account"]
    differences = []
    with statelog.open(config.location) as state:
        checkpoint = state.reader().checkpoint_id
        for name, rows in answers.items():
            differences += _differences(f"state, {name}", rows, _rows(state.table(name)))
    newest: dict[str, tuple[object, ...]] = {}
    added: Counter[str] = Counter()
    sink = session.read.parquet(f"{config.folder}/output").orderBy("batch").collect()
    for row in sink:
        newest[row.customer] = tuple(row[name] for name in ("customer", *FIELDS))
        added[row.customer] += row.added_lines
    differences += _differences("output", accounts, newest.values())
    # A batch that is missing or repeated may not change the newest totals, but it changes the sums.
    lines = [(customer, lines) for customer, _, lines, *_ in accounts]
    differences += _differences("lines of all batches of the output", lines, added.items())
    return {
        "exact": not differences,
        "differences": differences[:DIFFERENCES_MAX],
        "difference_count": len(differences),
        "customers": len(accounts),
        "revenue": str(sum(account[1] for account in accounts)),
        "lines": sum(account[2] for account in accounts),
        "orders": len(answers["orders"]),
        "sessions": len(answers["sessions"]),
        "batches": len({row.batch for row in sink}),
        "checkpoint": checkpoint,
    }


def _rows(table: pa.Table) -> Iterable[tuple[object, ...]]:
    """Return the keys and values of a variable, in the form of `LocationState.table`."""
    parts = ("key.", "user_key.", "value.")
    names = [name for name in table.column_names if name.startswith(parts)]
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _differences(
    where: str, expected: Iterable[tuple[object, ...]], actual: Iterable[tuple[object, ...]]
) -> list[str]:
    answer = Counter(map(tuple, expected))
    result = Counter(actual)
    missing = (answer - result).elements()
    wrong = (result - answer).elements()
    return [
        *(f"{where}: missing {', '.join(map(str, row))}" for row in missing),
        *(f"{where}: wrong {', '.join(map(str, row))}" for row in wrong),
    ]


def open_session(config: JobConfig) -> SparkSession:
    """Start a small local Spark session with little logging."""
    return (
        SparkSession.builder.master(config.master)
        .appName("statelog demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", f"{config.folder}/warehouse")
        .config("spark.local.dir", f"{config.folder}/local")
        .getOrCreate()
    )


def run(config: JobConfig, send: Send) -> None:
    """Run the job on all input; if requested, compare the result with a batch query."""
    session = open_session(config)
    send("session")
    query = start_job(session, config, lambda progress: send("batch", progress=progress.to_json()))
    query.awaitTermination()
    finish(session, config, send)


def finish(session: SparkSession, config: JobConfig, send: Send) -> None:
    """Report that the query has ended and, if requested, the result of `check`; stop Spark."""
    send("finished")
    if config.check:
        send("checked", **check(session, config))
    session.stop()


def main(arguments: Sequence[str], work: Callable[[JobConfig, Send], None] = run) -> int:
    """
    Call *work* with the `JobConfig` that the argument encodes as JSON.

    Standard output is the pipe to the parent; what Spark writes to it goes to standard error.
    """
    config = msgspec.json.decode(arguments[0], type=JobConfig)
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(event: str, **facts: object) -> None:
        pipe.write(msgspec.json.encode({"event": event, **facts}) + b"\n")
        pipe.flush()

    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(config, send)
    except Exception as error:
        send("failed", message=f"{type(error).__name__}: {error}")
        raise
    return 0


def _end_with_parent() -> None:
    """End the process when standard input is closed, which means that the parent has ended."""
    os.read(0, 1)  # nothing is written to it; `sys.stdin` would be locked at exit
    os.kill(os.getpid(), signal.SIGKILL)  # the JVM and the workers end with their driver


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
