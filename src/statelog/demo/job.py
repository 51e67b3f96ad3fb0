"""
The job of `statelog demo`, written as a user would write it.

Order lines of a shop come in; for each customer the job keeps the running revenue, the orders, the
last country and the sessions of purchases.  `CustomerTotals` knows nothing of statelog: it runs as
it is on Spark's own `transformWithState`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, regexp_replace
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from statelog.options import SnapshotPolicy
from statelog.spark.api import transform_with_state
from statelog.spark.query.progress import BatchProgress

ORDER_LINES = (
    "InvoiceNo string, StockCode string, Description string, Quantity int, "
    "InvoiceDate timestamp_ntz, UnitPrice decimal(12,4), CustomerID string, Country string"
)
CSV_OPTIONS = {"header": "true", "escape": '"', "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss"}
OUTPUT = (
    "customer string, revenue decimal(18,4), orders bigint, sessions bigint, lines bigint, "
    "country string, last_order timestamp_ntz, added_lines bigint, added_revenue decimal(18,4)"
)

_ACCOUNT = (
    "revenue decimal(18,4), lines bigint, orders bigint, sessions bigint, country string, "
    "session_start timestamp_ntz, last_order timestamp_ntz"
)
_NO_ACCOUNT = (Decimal(0), 0, 0, 0, None, None, None)
_IN_TIME = attrgetter("ordered_at", "invoice", "country")


def purchases(lines: DataFrame) -> DataFrame:
    """Return the order lines that belong to a customer, with names and types to work with."""
    return lines.where(col("CustomerID").isNotNull()).select(
        regexp_replace("CustomerID", r"\.0$", "").alias("customer"),
        col("InvoiceNo").alias("invoice"),
        col("InvoiceDate").alias("ordered_at"),
        (col("Quantity") * col("UnitPrice")).cast("decimal(18,4)").alias("amount"),
        col("Country").alias("country"),
    )


class CustomerTotals(StatefulProcessor):
    """
    Revenue, orders, last country and sessions of each customer.

    A session ends when nothing is ordered for longer than the gap.  Lines come in the order of
    time from batch to batch; within a batch they are put into it here.

    Args:
        session_gap: Longest pause within a session.
    """

    def __init__(self, session_gap: dt.timedelta) -> None:
        self._gap = session_gap

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state: an account, the orders seen, and the sessions that have ended."""
        self._account = handle.getValueState("account", _ACCOUNT)
        self._orders = handle.getMapState("orders", "invoice string", "ordered_at timestamp_ntz")
        self._ended = handle.getListState("sessions", "start timestamp_ntz, end timestamp_ntz")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Add the new lines of one customer and tell the new totals."""
        account = self._account.get() or _NO_ACCOUNT
        revenue, lines, orders, sessions, country, start, last = account
        lines_before, revenue_before = lines, revenue
        for row in sorted(rows, key=_IN_TIME):
            if not self._orders.containsKey((row.invoice,)):
                self._orders.updateValue((row.invoice,), (row.ordered_at,))
                orders += 1
            if last is None or row.ordered_at - last > self._gap:
                if last is not None:
                    self._ended.appendValue((start, last))
                start = row.ordered_at
                sessions += 1
            last = row.ordered_at
            country = row.country
            revenue += row.amount
            lines += 1
        self._account.update((revenue, lines, orders, sessions, country, start, last))
        yield Row(
            customer=key[0],
            revenue=revenue,
            orders=orders,
            sessions=sessions,
            lines=lines,
            country=country,
            last_order=last,
            added_lines=lines - lines_before,
            added_revenue=revenue - revenue_before,
        )

    def close(self) -> None:
        """Nothing to give back."""


class BatchFiles:
    """
    A sink that honours the batch id: one file per micro-batch, replaced as a whole.

    A batch that is delivered twice lies there once.  Every delivery is also noted in
    `deliveries.jsonl`, so that it can be seen whether one came twice, and with the same rows.

    Args:
        folder: Where the files go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        rows = frame.toArrow().sort_by("customer").combine_chunks()
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".batch={batch_id}.{os.getpid()}"
        pq.write_table(rows, temporary)
        os.replace(temporary, self._folder / f"batch={batch_id}.parquet")
        digest = hashlib.sha256(repr(rows.to_pylist()).encode()).hexdigest()
        line = {"batch": batch_id, "rows": rows.num_rows, "digest": digest}
        with open(self._folder / "deliveries.jsonl", "ab") as log:
            log.write(msgspec.json.encode(line) + b"\n")


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one run of the job is told.

    Args:
        input: Folder of the CSV files.
        checkpoint: Spark's checkpointLocation.
        location: State location, a path or URL.
        output: Folder of the sink.
        tasks: Number of tasks of the stateful operator.
        delivery: "staged" or "direct".
        files_per_trigger: CSV files in a micro-batch.
        session_gap_seconds: Longest pause within a session.
        inline_bytes: What a task may hand to the driver instead of writing a file.
        max_log_handles: Log pieces behind a snapshot at most; small makes many snapshots.
        master: Spark's master.
        verify: Whether to compare with the batch answer at the end.
        time_mode: The operator's; the demonstration itself keeps no time.
        state_backend: Where the workers keep the state: "auto", "memory" or "disk".
        local_directory: Where "disk" keeps it; None for the default.
    """

    input: str
    checkpoint: str
    location: str
    output: str
    tasks: int
    delivery: str = "staged"
    files_per_trigger: int = 1
    session_gap_seconds: float = 1800.0
    inline_bytes: int = 1024 * 1024
    max_log_handles: int = 250
    master: str = "local[2]"
    verify: bool = False
    time_mode: str = "None"
    state_backend: str = "auto"
    local_directory: str | None = None


def start_job(
    session: SparkSession,
    config: JobConfig,
    on_progress: Callable[[BatchProgress], None],
    processor: StatefulProcessor | None = None,
    output: str = OUTPUT,
) -> StreamingQuery:
    """
    Start the streaming query over all files that are there.

    Args:
        session: Spark.
        config: The run.
        on_progress: Called after each micro-batch.
        processor: Another one than `CustomerTotals`.
        output: The schema of its output rows.

    Raises:
        CheckpointError: The state location belongs to another query, or cannot be used.
    """
    lines = (
        session.readStream.schema(ORDER_LINES)
        .options(**CSV_OPTIONS)
        .option("maxFilesPerTrigger", config.files_per_trigger)
        .csv(config.input)
    )
    totals = transform_with_state(
        purchases(lines).groupBy("customer"),
        processor or CustomerTotals(dt.timedelta(seconds=config.session_gap_seconds)),
        outputStructType=output,
        outputMode="Update",
        timeMode=config.time_mode,
        stateLocation=config.location,
        delivery=config.delivery,
        tasks=config.tasks,
        operatorId="customer-totals",
        inlineBytes=config.inline_bytes,
        stateBackend=config.state_backend,
        localDirectory=config.local_directory,
        snapshotPolicy=SnapshotPolicy(max_log_handles=config.max_log_handles),
        onProgress=on_progress,
    )
    return (
        totals.writeStream.foreachBatch(BatchFiles(Path(config.output)))
        .option("checkpointLocation", config.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
