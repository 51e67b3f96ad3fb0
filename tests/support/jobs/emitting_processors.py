"""Processors that emit to side outputs, and a model of what they emit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.poisoned_keys import Model, ModelOfFrames, Poisoned, PoisonedFrames
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import COLUMNS, OUTPUT

import statelog as sl

OPERATIONS = "k string, op string, n long"
LATE = "k string NOT NULL, at timestamp"


class Emits(Poisoned):
    """`Poisoned`, which emits each operation, before it may fail; timers to another side output."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.operations = handle.sideOutput("operations", OPERATIONS)
        self.timers = handle.sideOutput("timers", "k string, time long")

    def emit(self, output: Any, **values: object) -> None:
        output.emit(Row(**values))

    def do(self, op: str, n: int, now: int) -> None:
        self.emit(self.operations, k=self.key, op=op, n=n)
        super().do(op, n, now)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.key = key[0]
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self.emit(self.timers, k=key[0], time=expiredTimerInfo.getExpiryTimeInMs())
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)


class EmitsFrames(Emits, PoisonedFrames):
    """The same over frames."""

    def emit(self, output: Any, **values: object) -> None:
        output.emit(pd.DataFrame([values]))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.key = key[0]
        yield from PoisonedFrames.handleInputRows(self, key, rows, timerValues)


class CleanTimers:
    """Emits for the timers only that do not fail."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        time = expiredTimerInfo.getExpiryTimeInMs()
        if not self.bad_timer(time):  # type: ignore[attr-defined]
            self.emit(self.timers, k=key[0], time=time)  # type: ignore[attr-defined]
        yield from self.Timers.handleExpiredTimer(  # type: ignore[attr-defined]
            self, key, timerValues, expiredTimerInfo
        )


class EmitsModel(CleanTimers, Emits, Model):
    """The model of `Emits`."""

    class Timers(Model):
        """Its timers without the rows that it emits."""


class EmitsModelOfFrames(CleanTimers, EmitsFrames, ModelOfFrames):
    """The model of `EmitsFrames`."""

    class Timers(ModelOfFrames):
        """Its timers without the rows that it emits."""


def rows_of(location: str, name: str, **arguments: Any) -> list[tuple[Any, ...]]:
    with sl.open(location) as state:
        table = state.side_output(name, **arguments)
    return sorted(tuple(row.values()) for row in table.to_pylist())


def in_batches(location: str, name: str) -> list[tuple[Any, ...]]:
    """Return the rows with their micro-batch, without the checkpoint, which kills change."""
    return sorted(row[1:] for row in rows_of(location, name))


class Late(StatefulProcessor):
    """Emits what a row says."""

    schema = LATE

    def init(self, handle: Any) -> None:
        self.late = handle.sideOutput("late", self.schema)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.late.emit(self.item(key[0], row.op, row.n))
            yield Row(k=key[0], what="row", n=row.n)

    def item(self, key: str, op: str, n: int) -> Any:
        at = pd.Timestamp(n, unit="s", tz="UTC").to_pydatetime()
        return {
            "row": Row(k=key, at=at),
            "order": Row(at=at, k=key),
            "tuple": (key, at),
            "short": Row(k=key),
            "null": Row(at=at),
            "type": Row(k=key, at="a text"),
            "name": Row(key=key, at=at),
            "dict": {"k": key, "at": at},
            "long": (key, at, 1),
        }[op]


def late_job(folder: Path, processor: Any = None, **options: Any) -> RecordedJob:
    return RecordedJob(str(folder), processor or Late(), COLUMNS, OUTPUT, None, "none", **options)
