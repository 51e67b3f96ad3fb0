"""With direct delivery each partition is its own task: what merges partitions is refused in every batch."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from tests.support.spark.streams import BatchSource, wait

from statelog.spark import (
    ColumnarProcessor,
    StatefulProcessor,
    aggregate,
    transform_with_state,
)
from statelog.spark import functions as F
from statelog.state.heap import StateBackendConfig

KEYS = range(8)
INPUT = "key bigint, at timestamp"
OUTPUT = "key bigint, what string"
TIMER_MS = 1_704_067_265_000
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

Events = Callable[[DataFrame], DataFrame]


class Timers(StatefulProcessor):
    """Registers one timer for each key."""

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        self.handle.registerTimer(TIMER_MS)
        return iter([self.row(key, "rows")])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return iter([self.row(key, "timer")])

    def row(self, key, what):
        return Row(key=key[0], what=what)


class ColumnarTimers(ColumnarProcessor):
    def init(self, handle):
        self.timers = handle.timers

    def process(self, keys, rows, times):
        self.timers.register(keys, [TIMER_MS] * len(keys))
        yield {"key": keys["key"], "what": ["rows"] * len(keys)}

    def expired(self, keys, expiry_ms, times):
        yield {"key": keys["key"], "what": ["timer"] * len(keys)}


class Passing(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key, rows, timerValues):
        return iter(list(rows))


def by_rows(events: DataFrame, **settings: Any) -> DataFrame:
    grouped = events.groupBy("key")
    return transform_with_state(grouped, Timers(), OUTPUT, timeMode="EventTime", **settings)


def by_columns(events: DataFrame, **settings: Any) -> DataFrame:
    processor: Any = ColumnarTimers()
    grouped = events.groupBy("key")
    return transform_with_state(grouped, processor, OUTPUT, timeMode="EventTime", **settings)


def by_windows(events: DataFrame, **settings: Any) -> DataFrame:
    windows = events.groupBy("key", sf.window("at", "5 seconds"))
    ended = aggregate(windows, F.count().alias("n"), outputMode="Append", **settings)
    return ended.select("key", sf.lit("timer").alias("what"))


def after_another(events: DataFrame, **settings: Any) -> DataFrame:
    """An operator whose upstream yields rows in the first micro-batch only."""
    passed = transform_with_state(
        events.groupBy("key"),
        Passing(),
        INPUT,
        timeMode="EventTime",
        eventTimeColumnName="at",
        **settings,
    )
    return by_rows(passed)


def distinct(events: DataFrame) -> DataFrame:
    """An input with state of Spark's, which is read in micro-batches without data too."""
    return events.dropDuplicates(["key", "at"])


def same(events: DataFrame) -> DataFrame:
    return events


def in_rows(later: int, *keys: int) -> list[tuple[int, dt.datetime]]:
    return [(key, START + dt.timedelta(seconds=later)) for key in keys]


CASES: dict[str, tuple[Callable[..., DataFrame], Events, list[tuple[int, dt.datetime]]]] = {
    "no rows": (by_rows, same, []),
    "no rows of an input that is read": (by_rows, distinct, []),
    "late rows": (by_rows, same, in_rows(0, *KEYS)),
    "rows of one key": (by_rows, same, in_rows(90, 0)),
    "columns": (by_columns, same, []),
    "windows": (by_windows, same, []),
    "after another": (after_another, same, []),
}


@pytest.mark.parametrize("case", CASES)
def test_merged_partitions_are_refused(spark, tmp_path, case):
    operator, events, later = CASES[case]
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add(in_rows(60, *KEYS))
    source.add(in_rows(80, 100))  # the watermark passes the timers
    if later:
        source.add(later)
    delivered: list[tuple[int, str]] = []

    def sink(frame: DataFrame, batch_id: int) -> None:
        merged = frame.coalesce(1) if batch_id == 2 and is_merging else frame
        delivered.extend((row.key, row.what) for row in merged.collect())

    def run() -> None:
        stream = events(source.frame().withWatermark("at", "10 seconds"))
        frame = operator(stream, tasks=2, delivery="direct")
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "query"))
        wait(writer.foreachBatch(sink).trigger(availableNow=True).start())

    is_merging = True
    with pytest.raises(StreamingQueryException, match="changes the partitions of the frame"):
        run()
    is_merging = False
    delivered = [(key, what) for key, what in delivered if what == "rows"]
    run()
    timers = [key for key, what in delivered if what == "timer"]
    assert [*KEYS] == sorted(key for key in timers if key in KEYS)


def test_merged_partitions_are_refused_in_parts_too(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(StateBackendConfig, "input_bytes", 2_000)
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add(in_rows(60, *range(500)))
    frame = by_rows(source.frame().withWatermark("at", "10 seconds"), tasks=2, delivery="direct")
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "query"))
    writer = writer.foreachBatch(lambda frame, _: frame.coalesce(1).collect())
    with pytest.raises(StreamingQueryException, match="changes the partitions of the frame"):
        wait(writer.trigger(availableNow=True).start())
