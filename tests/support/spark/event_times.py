"""A processor of event times, and a model of it."""

import datetime as dt
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.spark.streams import BatchSource, Job

from statelog.spark import StatefulProcessor, StatefulProcessorHandle

SCHEMA = "key bigint, at timestamp"
OUTPUT = "key bigint, kind string, seen string"
KEYS = 8
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DELAY_SECONDS = 20
SEED = 1_2026


def at(seconds: float) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=seconds)


def ms(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000)


class Timekeeper(StatefulProcessor):
    """Registers timers before, at and behind the times of its rows, and tells all it sees."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.fired = handle.getListState("fired", "at bigint")

    def tell(self, key: Any, kind: str, timers: Any, *facts: Any) -> Row:
        timers_set = sorted(self.handle.listTimers())
        fired = sorted(time for (time,) in self.fired.get())
        seen = [timers.getCurrentWatermarkInMs(), timers_set, fired, *facts]
        return Row(key=key[0], kind=kind, seen=json.dumps(seen))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        times = sorted(ms(row.at) if row.at is not None else -1 for row in rows)
        for time in times:
            if time >= 0:
                for more in (-30_000, 0, 15_000):
                    self.handle.registerTimer(time + more)
            if time % 7 == 0:
                self.handle.deleteTimer(time + 15_000)
        watermark = timerValues.getCurrentWatermarkInMs()
        for time in (watermark - 1, watermark, watermark + 1):
            self.handle.registerTimer(time)
        yield self.tell(key, "rows", timerValues, times)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        time = expiredTimerInfo.getExpiryTimeInMs()
        self.fired.appendValue((time,))
        if time % 3 == 0:  # due already: it waits for the next batch
            self.handle.registerTimer(time - 2)
        yield self.tell(key, f"timer {time}", timerValues)


class Failing(Timekeeper):
    """A `Timekeeper` whose timers fail in one micro-batch."""

    def __init__(self, batch_id: int) -> None:
        self.batch_id = str(batch_id)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        context = TaskContext.get()
        if context is not None:
            assert context.getLocalProperty("streaming.sql.batchId") != self.batch_id, "no timers"
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)


class EventTimes(BatchSource):
    """A `BatchSource` with a watermark."""

    def frame(self) -> DataFrame:
        return super().frame().withWatermark("at", f"{DELAY_SECONDS} seconds")


def batch_of(rng: random.Random, now: int) -> list[tuple[int, dt.datetime | None]]:
    rows: list[tuple[int, dt.datetime | None]] = [
        (rng.randrange(KEYS), at(now - rng.choice([0, 1, 5, DELAY_SECONDS, 40, 41, 60, 100])))
        for _ in range(14)
    ]
    strays = [None, dt.datetime.fromtimestamp(0, dt.UTC), dt.datetime(1969, 1, 1, tzinfo=dt.UTC)]
    return rows + [(KEYS + place, stray) for place, stray in enumerate(strays)]


def seen_by_key(rows: list[Row]) -> list[tuple[int, list[tuple[str, str]]]]:
    """Return what was seen by key, in the order in which it was seen."""
    by_key: dict[int, list[tuple[str, str]]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append((row.kind, row.seen))
    return sorted(by_key.items())


def event_job(spark: SparkSession, folder: Path, **options: Any) -> Job:
    source = EventTimes(spark, folder / "in", SCHEMA)
    return Job(source, folder, ["key"], Timekeeper(), OUTPUT, {"timeMode": "EventTime", **options})
