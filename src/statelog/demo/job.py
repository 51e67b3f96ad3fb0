"""
The job that `statelog demo` runs, written in the way users write jobs.

It reads the order lines of a shop, and keeps for each customer the running revenue, the orders, the
last country and the sessions of orders.  `CustomerTotals` does not depend on statelog: it runs
unmodified on Spark's own `transformWithState`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from operator import attrgetter
from typing import Final

import msgspec
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from statelog.model import JsonObject
from statelog.spark import StatefulProcessor, StatefulProcessorHandle, TimerValues
from statelog.spark.api import transform_with_state
from statelog.spark.query.progress import BatchProgress

ORDER_LINES: Final = (
    "customer string, invoice string, ordered_at timestamp_ntz, country string, quantity int, "
    "price decimal(12,4)"
)
CSV_OPTIONS: Final = {"timestampNTZFormat": "yyyy-MM-dd HH:mm:ss"}
SESSION_GAP: Final = dt.timedelta(minutes=30)
"""Longest pause within a session of a customer."""
ACCOUNT: Final = (
    "revenue decimal(18,4), lines bigint, orders bigint, sessions bigint, country string, "
    "last_order timestamp_ntz"
)
OUTPUT: Final = f"customer string, {ACCOUNT}, added_lines bigint"

FIELDS: Final = ("revenue", "lines", "orders", "sessions", "country", "last_order")
_NO_ACCOUNT: Final = (Decimal(0), 0, 0, 0, None, None)
_IN_TIME: Final = attrgetter("ordered_at", "invoice", "country")


class CustomerTotals(StatefulProcessor):
    """
    Computes the revenue, orders, last country and sessions of each customer.

    The batches are in the order of time; the processor sorts the lines within a batch.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Create the state variables: account, first line of each order, start of each session."""
        self._account = handle.getValueState("account", ACCOUNT)
        self._orders = handle.getMapState("orders", "invoice string", "ordered_at timestamp_ntz")
        self._sessions = handle.getListState("sessions", "start timestamp_ntz")

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Add the new lines of one customer, and yield the new totals."""
        revenue, lines, orders, sessions, country, last = self._account.get() or _NO_ACCOUNT
        lines_before = lines
        for row in sorted(rows, key=_IN_TIME):
            if not self._orders.containsKey((row.invoice,)):
                self._orders.updateValue((row.invoice,), (row.ordered_at,))
                orders += 1
            if last is None or row.ordered_at - last > SESSION_GAP:
                self._sessions.appendValue((row.ordered_at,))
                sessions += 1
            last = row.ordered_at
            country = row.country
            revenue += row.quantity * row.price
            lines += 1
        self._account.update((revenue, lines, orders, sessions, country, last))
        yield Row(
            customer=key[0],
            revenue=revenue,
            lines=lines,
            orders=orders,
            sessions=sessions,
            country=country,
            last_order=last,
            added_lines=lines - lines_before,
        )

    def close(self) -> None:
        """Do nothing, because there is nothing to release."""


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    The configuration for one run of the job.

    Args:
        folder: Where `input` is read from, and where `spark`, the checkpointLocation, and `output`,
            the sink, are written.
        location: State location, a path or URL.
        operator: Settings of `transform_with_state`.
        master: Spark's master.
        check: Whether to compare with a batch query at the end.
    """

    folder: str
    location: str
    operator: JsonObject
    master: str = "local[2]"
    check: bool = False


def read_lines(reader: DataFrameReader | DataStreamReader, config: JobConfig) -> DataFrame:
    """Read the order lines of the input, as a batch or as a stream."""
    return reader.schema(ORDER_LINES).options(**CSV_OPTIONS).csv(f"{config.folder}/input")


def start_job(
    session: SparkSession, config: JobConfig, on_progress: Callable[[BatchProgress], None]
) -> StreamingQuery:
    """Start the streaming query on all files of the input, with one file per micro-batch."""

    def write(frame: DataFrame, batch_id: int) -> None:
        # A micro-batch that is delivered twice is stored once.
        frame.write.mode("overwrite").parquet(f"{config.folder}/output/batch={batch_id}")

    lines = read_lines(session.readStream.option("maxFilesPerTrigger", 1), config)
    totals = transform_with_state(
        lines.groupBy("customer"),
        CustomerTotals(),
        OUTPUT,
        stateLocation=config.location,
        operator="customer-totals",
        on_progress=on_progress,
        **config.operator,
    )
    writer = totals.writeStream.foreachBatch(write).trigger(availableNow=True)
    return writer.option("checkpointLocation", f"{config.folder}/spark").start()
