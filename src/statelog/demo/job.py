"""
The job of `statelog demo`, written as a user would write it.

It reads the order lines of a shop, and keeps for each customer the running revenue, the orders, the
last country and the sessions of purchases.  `CustomerTotals` does not depend on statelog: it runs
unmodified on Spark's own `transformWithState`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from operator import attrgetter
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, regexp_replace
from pyspark.sql.streaming.query import StreamingQuery

from statelog.options import SnapshotPolicy
from statelog.spark import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from statelog.spark.api import transform_with_state
from statelog.spark.query.progress import BatchProgress
from statelog.spark.rows.spark_versions import arrow_of
from statelog.spark.rows.types import arrow_schema

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
    """Return the order lines of customers, as the job uses them."""
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

    A session ends after a pause longer than the gap.  The batches are in the order of time; the
    processor sorts the lines within a batch.

    Args:
        session_gap: Longest pause within a session.
    """

    def __init__(self, session_gap: dt.timedelta) -> None:
        self._gap = session_gap

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Create the state: account, orders seen, ended sessions."""
        self._account = handle.getValueState("account", _ACCOUNT)
        self._orders = handle.getMapState("orders", "invoice string", "ordered_at timestamp_ntz")
        self._ended = handle.getListState("sessions", "start timestamp_ntz, end timestamp_ntz")

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Add the new lines of one customer and yield the new totals."""
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
        """Do nothing: there is nothing to release."""


class BatchFiles:
    """
    A sink with one file per micro-batch.

    A batch that is delivered twice is stored once.  Every delivery is also logged in
    `deliveries.jsonl`, to find out whether a batch was delivered twice, and with the same rows.

    Args:
        folder: Folder for the files; created.
        order: The column by which rows are sorted.
    """

    def __init__(self, folder: Path, order: str = "customer") -> None:
        self._folder = folder
        self._order = order

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        rows = arrow_of(frame, arrow_schema(frame.schema)).sort_by(self._order).combine_chunks()
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
    The configuration of one run of the job.

    Args:
        input: Folder of the CSV files.
        checkpoint: Spark's checkpointLocation.
        location: State location, a path or URL.
        output: Folder of the sink.
        tasks: Number of tasks of the stateful operator.
        delivery: "staged" or "direct".
        files_per_trigger: CSV files in a micro-batch.
        session_gap_seconds: Longest pause within a session.
        inline_bytes: Most bytes that a task sends to the driver instead of writing a file.
        max_log_handles: Most log handles after a snapshot; a small number makes many snapshots.
        master: Spark's master.
        verify: Whether to compare with a batch query at the end.
        time_mode: Time mode of the operator; the demonstration itself uses none.
        state_backend: Where the workers keep the state: "auto", "memory" or "disk".
        local_directory: Folder for "disk"; None for the default.
        connect: Whether to run on a session of Spark Connect.
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
    connect: bool = False


def start_job(
    session: SparkSession,
    config: JobConfig,
    on_progress: Callable[[BatchProgress], None] | None,
    processor: StatefulProcessor | None = None,
    output: str = OUTPUT,
) -> StreamingQuery:
    """
    Start the streaming query over all files of the input.

    Args:
        session: Spark.
        config: The run.
        on_progress: Called after each micro-batch; None on Spark Connect.
        processor: The processor; None for `CustomerTotals`.
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
