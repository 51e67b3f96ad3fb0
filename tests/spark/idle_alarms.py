"""A query whose timers fire while no row arrives."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import Row
from tests.spark.streams import Job, workers_get_by_value

from statelog.spark import StatefulProcessor, StatefulProcessorHandle

workers_get_by_value(__name__)

INPUT = "key bigint, wait_ms bigint"
OUTPUT = "key bigint, kind string, due bigint, now bigint, kept string"
TTL_MS = 300
PATIENCE_SECONDS = 60


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

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        yield self.tell(key, "rang", expiredTimerInfo.getExpiryTimeInMs(), now)

    def tell(self, key: Any, kind: str, due: int, now: int) -> Row:
        return Row(key=key[0], kind=kind, due=due, now=now, kept=str(self.value.get()))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)


def told(job: Job, kind: str) -> list[Row]:
    return [row for _, rows in job.delivered for row in rows if row.kind == kind]
