"""
Verify `statelog demo` with a batch query over the same files.

Three results must be equal to the last digit: the answer of a batch query, made by Spark SQL with
window functions and without statelog; the rows in the sink, folded by batch id; and the state read
from the newest checkpoint.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from statelog.demo.job import CSV_OPTIONS, ORDER_LINES, JobConfig, purchases
from statelog.model import JsonObject
from statelog.state.reader import StateReader

FIELDS = ("revenue", "orders", "sessions", "lines", "country", "last_order")
DIFFERENCES_MAX = 20
"""Most differences that are listed."""

Totals = dict[str, tuple[Any, ...]]
"""By customer: the values of `FIELDS`."""

_SESSIONS = """
  WITH marked AS (
    SELECT *, lag(ordered_at) OVER (PARTITION BY customer ORDER BY ordered_at) AS before
    FROM purchases
  ), numbered AS (
    SELECT *, count_if(before IS NULL OR ordered_at > before + make_interval(0,0,0,0,0,0,{gap}))
      OVER (PARTITION BY customer ORDER BY ordered_at) AS number
    FROM marked
  )
  SELECT customer, number, min(ordered_at) AS start, max(ordered_at) AS end
  FROM numbered GROUP BY customer, number ORDER BY customer, number
"""
_TOTALS = """
  SELECT customer, CAST(sum(amount) AS decimal(18,4)) AS revenue,
    count(DISTINCT invoice) AS orders, count(*) AS lines,
    max(struct(ordered_at, invoice, country)).country AS country, max(ordered_at) AS last_order
  FROM purchases GROUP BY customer
"""
_ORDERS = "SELECT customer, array_sort(collect_set(invoice)) AS orders FROM purchases GROUP BY 1"


class Verdict(msgspec.Struct, kw_only=True):
    """
    The result of the comparison.

    Args:
        exact: Whether all results are equal.
        differences: Descriptions of the first differences.
        difference_count: Number of all differences.
        lines, dropped_lines: Number of order lines in the input, and of those without a customer.
        customers, sessions, orders: Totals of the batch query.
        revenue: Total revenue of the batch query, as a decimal number.
        total_all_lines: Quantity times price over all lines, dropped ones too.
        batches: Number of micro-batches in the sink.
        deliveries: Number of calls of the sink; higher than *batches* if one was delivered twice.
        state_customers: Number of keys in the state that was read.
        state_checkpoint: The checkpoint it was read from.
        top: The customers with the highest revenue.
    """

    exact: bool = False
    differences: list[str] = []
    difference_count: int = 0
    lines: int = 0
    dropped_lines: int = 0
    customers: int = 0
    sessions: int = 0
    orders: int = 0
    revenue: str = "0"
    total_all_lines: str = "0"
    batches: int = 0
    deliveries: int = 0
    state_customers: int = 0
    state_checkpoint: int = -1
    top: list[JsonObject] = []


class _Findings:
    """Collects the first differences and counts all of them."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.count = 0

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.shown) < DIFFERENCES_MAX:
            self.shown.append(text)

    def compare(
        self, where: str, expected: Mapping[str, object], totals: Mapping[str, object]
    ) -> None:
        for customer in sorted({*expected, *totals}):
            if customer not in totals:
                self.add(f"{where}: customer {customer} is missing")
            elif customer not in expected:
                self.add(f"{where}: customer {customer} is unexpected")
            elif expected[customer] != totals[customer]:
                self.add(
                    f"{where}: customer {customer} has {_text(totals[customer])}, the batch query "
                    f"{_text(expected[customer])}"
                )


def _text(value: object) -> str:
    if isinstance(value, tuple):
        pairs = zip(FIELDS, value, strict=False)
        return ", ".join(f"{name} {each}" for name, each in pairs)
    return f"{value!s:.120}"


def verify(session: SparkSession, config: JobConfig) -> Verdict:
    """
    Compare the job's output and state with a batch query.

    Blocks: For a few Spark jobs.
    """
    read = session.read.schema(ORDER_LINES).options(**CSV_OPTIONS).csv(config.input)
    lines = read.drop("StockCode", "Description").cache()  # so that the files are parsed once
    purchases(lines).createOrReplaceTempView("purchases")
    totals, sessions = _batch_answer(session, config.session_gap_seconds)
    orders = {row.customer: row.orders for row in session.sql(_ORDERS).collect()}
    verdict = Verdict(customers=len(totals), sessions=sum(map(len, sessions.values())))
    verdict.revenue = str(sum((row[0] for row in totals.values()), Decimal(0)))
    verdict.orders = sum(row[1] for row in totals.values())
    _count_lines(lines, verdict)
    findings = _Findings()
    _check_output(Path(config.output), config.delivery, totals, verdict, findings)
    _check_state(config.location, totals, sessions, orders, verdict, findings)
    lines.unpersist()
    best = sorted(totals, key=lambda customer: totals[customer][0], reverse=True)[:10]
    verdict.top = [
        {
            "customer": each,
            **{name: _plain(v) for name, v in zip(FIELDS, totals[each], strict=True)},
        }
        for each in best
    ]
    verdict.differences, verdict.difference_count = findings.shown, findings.count
    verdict.exact = not findings.count
    return verdict


def _plain(value: object) -> int | str:
    return value if isinstance(value, int) else str(value)


def _count_lines(lines: DataFrame, verdict: Verdict) -> None:
    row = lines.selectExpr(
        "count(*)", "count_if(CustomerID IS NULL)", "sum(Quantity * UnitPrice)"
    ).collect()[0]
    verdict.lines, verdict.dropped_lines = row[0], row[1]
    verdict.total_all_lines = str(row[2] or 0)


def _batch_answer(
    session: SparkSession, gap_seconds: float
) -> tuple[Totals, dict[str, list[tuple[dt.datetime, dt.datetime]]]]:
    """Return the totals and the sessions of each customer."""
    sessions: dict[str, list[tuple[dt.datetime, dt.datetime]]] = {}
    for row in session.sql(_SESSIONS.format(gap=f"{gap_seconds:.6f}")).collect():
        sessions.setdefault(row.customer, []).append((row.start, row.end))
    totals = {}
    for row in session.sql(_TOTALS).collect():
        values = {**row.asDict(), "sessions": len(sessions[row.customer])}
        totals[row.customer] = tuple(values[name] for name in FIELDS)
    return totals, sessions


def _check_output(
    folder: Path, delivery: str, totals: Totals, verdict: Verdict, findings: _Findings
) -> None:
    """Fold the batches of the sink; find missing, repeated and changed ones."""
    files = {int(path.stem.partition("=")[2]): path for path in folder.glob("batch=*.parquet")}
    verdict.batches = len(files)
    if sorted(files) != list(range(len(files))):
        findings.add(f"output: the batches are {sorted(files)}, not 0 to {len(files) - 1}")
    upserted: Totals = {}
    added: dict[str, tuple[Decimal, int]] = {}
    for batch_id in sorted(files):
        rows = pq.read_table(files[batch_id]).to_pylist()
        repeated = [name for name, n in Counter(r["customer"] for r in rows).items() if n > 1]
        if repeated:
            findings.add(f"output: batch {batch_id} has customer {repeated[0]} twice")
        for row in rows:
            upserted[row["customer"]] = tuple(row[name] for name in FIELDS)
            revenue, lines = added.get(row["customer"], (Decimal(0), 0))
            added[row["customer"]] = revenue + row["added_revenue"], lines + row["added_lines"]
    findings.compare("output", totals, upserted)
    # A batch that is missing or repeated in the sink may not change the newest totals, but it
    # changes the sums over all batches.
    sums = {customer: (row[0], row[3]) for customer, row in totals.items()}
    findings.compare("sum over all batches of the output", sums, added)
    _check_deliveries(folder / "deliveries.jsonl", delivery, verdict, findings)


def _check_deliveries(log: Path, delivery: str, verdict: Verdict, findings: _Findings) -> None:
    digests: dict[int, str] = {}
    lines = log.read_bytes().splitlines() if log.exists() else []
    for line in lines:
        # A kill may truncate a line or prevent it: the files are the result.
        try:
            note = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        verdict.deliveries += 1
        first = digests.setdefault(note["batch"], note["digest"])
        if delivery == "staged" and first != note["digest"]:
            findings.add(f"output: batch {note['batch']} was delivered twice, with different rows")


def _check_state(
    location: str,
    totals: Totals,
    sessions: Mapping[str, list[tuple[dt.datetime, dt.datetime]]],
    orders: Mapping[str, list[str]],
    verdict: Verdict,
    findings: _Findings,
) -> None:
    """Compare the state in the newest checkpoint, all three variables of it."""
    with StateReader.open(location) as reader:
        verdict.state_checkpoint = reader.checkpoint_id
        rows = {name: table.to_pylist() for name, table in reader.tables().items()}
    sums: Totals = {}
    found_sessions: dict[str, list[tuple[dt.datetime, dt.datetime]]] = {}
    for row in rows["sessions"]:
        ended = row["value.start"], row["value.end"]
        found_sessions.setdefault(row["key.customer"], []).append(ended)
    for row in rows["account"]:
        customer = row["key.customer"]
        sums[customer] = tuple(row[f"value.{name}"] for name in FIELDS)
        last = row["value.session_start"], row["value.last_order"]
        found_sessions.setdefault(customer, []).append(last)
    verdict.state_customers = len(sums)
    findings.compare("state", totals, sums)
    findings.compare("state, sessions", sessions, found_sessions)
    found_orders: dict[str, list[str]] = {}
    for row in rows["orders"]:
        found_orders.setdefault(row["key.customer"], []).append(row["user_key.invoice"])
    for invoices in found_orders.values():
        invoices.sort()
    findings.compare("state, orders", orders, found_orders)
