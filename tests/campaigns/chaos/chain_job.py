"""
A job with two stateful operators to be killed: totals by customer, and behind them by region.

Run as a program, as `python -m statelog.demo.program` is.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.functions import col
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from tests.campaigns.chaos.batch_files import BatchFiles, log_everything
from tests.campaigns.chaos.job import SNAPSHOTS
from tests.campaigns.chaos.request_log import log_requests_if_asked

from statelog.demo.job import JobConfig
from statelog.demo.program import Send, finish, main, open_session
from statelog.spark import transform_with_state

INPUT = "customer int, amount bigint"
TOTALS = "customer int, total bigint, orders bigint"
OUTPUT = "region int, customers bigint, changes bigint, total bigint"
REGIONS = 4


class Totals(StatefulProcessor):
    """Yields the new total of each customer that ordered."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.account = handle.getValueState("account", "total bigint, orders bigint")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        total, orders = self.account.get() or (0, 0)
        for row in rows:
            total, orders = total + row.amount, orders + 1
        self.account.update((total, orders))
        yield Row(customer=key[0], total=total, orders=orders)


class Regions(StatefulProcessor):
    """Keeps the newest total of each customer; an older one than before ends the job."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.customers = handle.getMapState("customers", "customer int", "total bigint, orders int")
        self.changes = handle.getValueState("changes", "changes bigint")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        changes = (self.changes.get() or (0,))[0]
        for row in rows:
            before = (self.customers.getValue((row.customer,)) or (0, 0))[1]
            if row.orders <= before:
                raise AssertionError(f"{row} after {before} orders: the operators disagree")
            self.customers.updateValue((row.customer,), (row.total, row.orders))
            changes += 1
        self.changes.update((changes,))
        totals = [total for _, (total, _) in self.customers.iterator()]
        yield Row(region=key[0], customers=len(totals), changes=changes, total=sum(totals))


def work(config: JobConfig, send: Send) -> None:
    session = open_session(config)
    send("session")
    reader = session.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    orders = reader.parquet(f"{config.folder}/input")
    totals = transform_with_state(
        orders.groupBy("customer"),
        Totals(),
        TOTALS,
        stateLocation=config.location,
        operator="customers",
        **SNAPSHOTS,
        on_progress=lambda progress: send("batch", progress=progress.to_json()),
        **config.operator,
    )
    regions = transform_with_state(
        # In the third part of the micro-batches no row passes, and the operator is skipped.
        totals.where("total >= 0").groupBy((col("customer") % REGIONS).alias("region")),
        Regions(),
        OUTPUT,
        operator="regions",
    )
    query = (
        regions.writeStream.foreachBatch(BatchFiles(Path(config.folder) / "output", "region"))
        .option("checkpointLocation", f"{config.folder}/spark")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    finish(session, config, send)


if __name__ == "__main__":
    log_everything()
    log_requests_if_asked()
    sys.exit(main(sys.argv[1:], work))
