"""Processors whose rows may be poison, and a model of what is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import FrameSteps, Steps

import statelog as sl
from statelog.extensions.bad_records.policy import ErrorPolicy, MaxErrors
from statelog.spark.rows.types import from_ipc
from statelog.spark.worker.protocol import NEVER_MS, TaskAck

KEYS = [f"k{number}" for number in range(6)]
SAFE = ("add", "append", "put", "remove", "clear", "expire", "timer", "untimer", "yield")
POISON = ("fail", "misfit", "late", "misrow", "norow", "value")
LETTERS = ErrorPolicy(keeps_letters=True, most=MaxErrors(1000))
SKIP = ErrorPolicy(keeps_letters=False, most=MaxErrors(1000))
Batch = tuple[int, list[tuple[str, str, int]]]
operations = st.tuples(st.sampled_from(KEYS), st.sampled_from(SAFE * 4 + POISON), st.integers(0, 9))
histories = st.lists(
    st.tuples(st.integers(1, 400), st.lists(operations, max_size=30)), min_size=1, max_size=5
)


class Poisoned(Steps):
    """`Steps` with more ways to fail, each after it changed the state."""

    def do(self, op: str, n: int, now: int) -> None:
        if op in POISON and op != "misfit":
            for other in ("add", "append", "put", "timer"):
                super().do(other, n, now)
        if op == "value":
            self.total.update(("no number", 5))
        elif op not in ("late", "misrow", "norow"):
            super().do(op, n, now)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self.do(row.op, row.n, self.time(timerValues))
            if row.op in ("yield", "late", "misrow"):
                yield Row(k=key[0], what="row", n=self.facts())
            if row.op == "late":
                raise ArithmeticError("after a row was yielded")
            if row.op == "misrow":
                yield Row(k=key[0], what="row", n="a text")
            if row.op == "norow":
                yield {"k": key[0]}

    def bad_timer(self, time: int) -> str:
        """Return how the call for a timer fails, or ""."""
        return {1: "raise", 2: "misrow", 3: "misfit"}.get(time // 10 % 7, "")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        time = expiredTimerInfo.getExpiryTimeInMs()
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)
        self.handle.registerTimer(time + 1_000_000)
        bad = self.bad_timer(time)
        if bad == "raise":
            raise KeyError("of a timer")
        if bad == "misrow":
            yield self.misrow(key)
        if bad == "misfit":
            self.big.update((1 << 70,))

    def misrow(self, key: Any) -> Any:
        return Row(k=key[0], what=5.5, n="a text")


class PoisonedFrames(FrameSteps, Poisoned):
    """The same over frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            for op, n in zip(frame["op"], frame["n"], strict=True):
                self.do(op, int(n), self.time(timerValues))
                if op in ("yield", "late", "misrow"):
                    yielded = pd.DataFrame({"k": [key[0]], "what": ["frame"], "n": [self.facts()]})
                    yield yielded
                    yielded["n"] = -1  # what was yielded was copied
                if op == "late":
                    raise ArithmeticError("after a frame was yielded")
                if op == "misrow":
                    yield pd.DataFrame({"k": [key[0]], "what": ["row"], "n": ["a text"]})
                if op == "norow":
                    yield {"k": key[0]}

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        for row in Poisoned.handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            yield row if isinstance(row, pd.DataFrame) else pd.DataFrame([row.asDict()])

    def misrow(self, key: Any) -> Any:
        return pd.DataFrame({"k": [key[0]], "what": [5.5], "n": ["a text"]})


class Model(Poisoned):
    """Does nothing for the timers that fail."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        if not self.bad_timer(expiredTimerInfo.getExpiryTimeInMs()):
            yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)


class ModelOfFrames(Model, PoisonedFrames):
    """The same over frames."""


def fresh(folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    return str(folder)


def output_of(job: RecordedJob, acks: list[TaskAck]) -> list[str]:
    rows = []
    for ack in acks:
        parts = ack.output.staged if isinstance(ack.output.staged, tuple) else ()
        data = [bytes(job.store.get(part.path)) for part in parts]
        data += [ack.output.staged] if isinstance(ack.output.staged, bytes) else []
        rows += [repr(row) for part in data for row in from_ipc(part).to_pylist()]
    return sorted(rows)


def state_of(job: RecordedJob) -> dict[str, list[str]]:
    if job.base is None:
        return {}
    with sl.open(job.location) as state:
        return {
            variable.name: sorted(map(repr, state.table(variable.name).to_pylist()))
            for variable in state.variables()
        }


def first_timer(job: RecordedJob) -> int:
    """Return when the earliest timer of the newest checkpoint is due."""
    with sl.open(job.location) as state:
        return min(state.table("$timers")["fires_at_ms"].to_pylist(), default=NEVER_MS)


def failed_in(rows: list[tuple[str, str, int]]) -> set[str]:
    return {key for key, op, _ in rows if op in POISON}


def letters_of(job: RecordedJob) -> list[dict[str, Any]]:
    with sl.open(job.location) as state:
        letters: list[dict[str, Any]] = state.dead_letters().to_pylist()
        return letters


class Initial(StatefulProcessor):
    """Counts rows; a value below zero is poison."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long, total double")

    def add(self, value: float, n: int) -> None:
        before, total = self.total.get() or (0, 0.0)
        self.total.update((before + n, total + value))
        if value == -1:
            raise ValueError("poison")
        if value == -2:
            self.total.update((1 << 70, total))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.add(initialState.value, 100)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.add(row.value, 1)
        yield Row(key=key[0], n=self.total.get()[0], total=self.total.get()[1])
