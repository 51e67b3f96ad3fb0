"""Processors whose keys are recorded: they do what their rows say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.recorded_job import RecordedJob

from statelog.spark.query.record import Record

COLUMNS = "k string, op string, n long"
OUTPUT = "k string, what string, n long"
OPERATIONS = (
    "add", "append", "put", "remove", "clear", "expire", "timer", "untimer", "yield", "fail", "misfit",
)  # fmt: skip


class Steps(StatefulProcessor):
    """Does what each row says, on state of all kinds."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, text string")
        self.short = handle.getValueState("short", "n long", ttlDurationMs=300)
        self.big = handle.getValueState("big", "n long")
        self.items = handle.getListState("items", "n long")
        self.recent = handle.getListState("recent", "n long", ttlDurationMs=500)
        self.counts = handle.getMapState("counts", "k long", "n long")
        self.seen = handle.getMapState("seen", "k long", "at double", ttlDurationMs=400)

    def do(self, op: str, n: int, now: int) -> None:
        before = self.total.get()
        if op == "add":
            self.total.update(((before[0] if before else 0) + n, f"t{n}"))
            self.short.update((n,))
        elif op == "append":
            self.items.appendValue((n,))
            self.recent.appendValue((n,))
        elif op == "put":
            self.counts.updateValue((n % 3,), (n,))
            self.seen.updateValue((n % 4,), (n / 2,))
        elif op == "remove":
            self.counts.removeKey((n % 3,))
        elif op == "clear":
            (self.total, self.items, self.counts)[n % 3].clear()
        elif op == "expire":
            self.recent.put([(n,), (n + 1,)])
        elif op == "timer":
            self.handle.registerTimer(now + 100 * (n % 5))
        elif op == "untimer":
            for time in list(self.handle.listTimers())[:1]:
                self.handle.deleteTimer(time)
        elif op == "fail":
            raise ArithmeticError(f"cannot do {n}")
        elif op == "misfit":
            self.big.update((1 << 70,))

    def facts(self) -> int:
        total, short = self.total.get(), self.short.get()
        return (
            (total[0] if total else 0)
            + (short[0] if short else 0)
            + sum(item[0] for item in self.items.get())
            + sum(item[0] for item in self.recent.get())
            + sum(count[0] for count in self.counts.values())
            + len(list(self.seen.keys()))
        )

    def time(self, times: Any) -> int:
        now = times.getCurrentProcessingTimeInMs()
        return int(now) if now >= 0 else 0

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self.do(row.op, row.n, self.time(timerValues))
            if row.op == "yield":
                yield Row(k=key[0], what="row", n=self.facts())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        time = expiredTimerInfo.getExpiryTimeInMs()
        self.items.appendValue((time,))
        yield Row(k=key[0], what=f"timer {time}", n=self.facts())


class FrameSteps(Steps):
    """The same over frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            for op, n in zip(frame["op"], frame["n"], strict=True):
                self.do(op, int(n), self.time(timerValues))
            yielded = pd.DataFrame({"k": [key[0]], "what": ["frame"], "n": [self.facts()]})
            yield yielded
            yielded["n"] = -1  # what was yielded was copied

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])


class OtherSteps(Steps):
    """The same with a planted bug: a list is cleared where a map should be."""

    def facts(self) -> int:
        return super().facts() + 1


def steps_job(
    folder: Path | str,
    processor: StatefulProcessor | None = None,
    record: Record | None = None,
    **options: Any,
) -> RecordedJob:
    """Return a job of `Steps`, or of a different processor that takes its rows."""
    return RecordedJob(str(folder), processor or Steps(), COLUMNS, OUTPUT, record, **options)
