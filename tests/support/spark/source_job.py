"""A job with all kinds of state, read by the Spark source."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark.streams import BatchSource, Job

from statelog.checkpoint.listing import CheckpointSummary, list_checkpoints
from statelog.store import open_store

HOUR = 3_600_000
INPUT = "customer string, item string, n int, at timestamp"
OUTPUT = "customer string, n bigint"
START = dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC)


class Everything(StatefulProcessor):
    """All kinds of state, of many types, with and without a time to live, and timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n bigint, amount decimal(20,4), none string")
        self.seen = handle.getValueState(
            "seen", "at timestamp, last struct<item:string,n:int,at:timestamp>", HOUR
        )
        self.items = handle.getListState("items", "item string, tags array<bigint>, raw binary")
        self.recent = handle.getListState("recent", "item string, ntz timestamp_ntz", HOUR)
        self.by_day = handle.getMapState(
            "by_day", "day date, n int", "counts map<string,bigint>, ats array<timestamp>"
        )
        self.gone = handle.getValueState("gone", "n int", 1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n, amount, _ = self.total.get() or (0, 0, None)
        for row in rows:
            n, amount = n + 1, amount + row.n
            self.items.appendValue((row.item, [n, None, 2**60], bytes([n, 0])))
            self.recent.appendValue((row.item, dt.datetime(2024, 1, 1, 0, 0, 0, row.n)))
            day = (dt.date(2024, 7, 1 + row.n % 9), row.n % 2)
            self.by_day.updateValue(day, ({row.item: 2**60, "none": None}, [row.at, None]))
            self.seen.update((row.at, (row.item, row.n, row.at)))
        self.total.update((n, amount, None))
        self.gone.update((n,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + HOUR + n)
        yield Row(customer=key[0], n=n)

    def close(self) -> None:
        pass


def order(customer: str, item: str, n: int) -> tuple[Any, ...]:
    return customer, item, n, START + dt.timedelta(minutes=20 * n, microseconds=n)


def everything_job(spark: SparkSession, folder: Path, **options: Any) -> Job:
    source = BatchSource(spark, folder / "in", INPUT)
    for batch in range(4):
        source.add([order(f"c{n % 7}", f"item {batch}", n) for n in range(batch, batch + 10)])
    settings = {"timeMode": "ProcessingTime", "maxParallelism": 8, "retainedCheckpoints": 3}
    return Job(source, folder, ["customer"], Everything(), OUTPUT, {**settings, **options})


def read(spark: SparkSession, location: object, **options: object) -> DataFrame:
    reader = spark.read.format("statelog")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(location))


def flat(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as a reader of state has them, with dots in names."""
    rows = []
    for row in frame.toArrow().to_pylist():
        flat_row: dict[str, Any] = {}
        for name, value in row.items():
            if name in ("key", "user_key", "value"):
                flat_row |= {f"{name}.{part}": content for part, content in value.items()}
            else:
                flat_row[name] = value
        rows.append(flat_row)
    return sorted(rows, key=repr)


def summaries(location: Path) -> list[CheckpointSummary]:
    return list_checkpoints(open_store(location))


def retained(location: Path) -> list[int]:
    return [summary.checkpoint_id for summary in summaries(location) if summary.is_retained]
