"""A query whose timers fire while no row arrives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from tests.support.spark.streams import BatchSource, Job

from statelog.spark import StatefulProcessor, StatefulProcessorHandle

INPUT = "key bigint, wait_ms bigint"
OUTPUT = "key bigint, kind string, due bigint, now bigint, kept string"
TTL_MS = 300


class Alarm(StatefulProcessor):
    """Each row sets a timer; when it fires, the value with a time to live should be gone."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "wait_ms bigint", TTL_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            self.value.update((row.wait_ms,))
            self.handle.registerTimer(now + row.wait_ms)
            yield self.tell(key, "set", now + row.wait_ms, now)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        now = timerValues.getCurrentProcessingTimeInMs()
        yield self.tell(key, "rang", expiredTimerInfo.getExpiryTimeInMs(), now)

    def tell(self, key: Any, kind: str, due: int, now: int) -> Row:
        return Row(key=key[0], kind=kind, due=due, now=now, kept=str(self.value.get()))


def alarm_job(spark: SparkSession, folder: Path, processor: Alarm | None = None) -> Job:
    source = BatchSource(spark, folder / "in", INPUT)
    options = {"timeMode": "ProcessingTime"}
    return Job(source, folder, ["key"], processor or Alarm(), OUTPUT, options)


def told(job: Job, kind: str) -> list[Row]:
    return [row for _, rows in job.delivered for row in rows if row.kind == kind]
