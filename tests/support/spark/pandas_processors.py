"""Processors of frames, and what they read."""

import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row

from statelog.spark import StatefulProcessor

INPUT = (
    "key string, `order id` bigint, small tinyint, ratio float, flag boolean, at timestamp, "
    "ntz timestamp_ntz, price decimal(10,2), tags array<string>, extra struct<x:int,y:string>, "
    "counts map<string,int>, raw binary, day date"
)
OUTPUT = "key string, n bigint, total double, latest timestamp, seen string, prices decimal(12,2)"
INITIAL = "who string, n bigint, note string"


class Describing(StatefulProcessor):
    """Keeps totals, and tells exactly what it was given."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, total double, latest timestamp")
        self.notes = handle.getListState("notes", "note string, n int")
        self.days = handle.getMapState("days", "day date", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        n, total, _ = self.total.get() or (0, 0.0, None)
        self.total.update((n + initialState["n"].sum(), total, None))
        described = f"{list(initialState.columns)} {list(initialState.index)}"
        self.notes.appendValue(
            (f"{key} {described} {list(initialState['note'])}", len(initialState))
        )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n, total, latest = self.total.get() or (0, 0.0, None)
        seen = [f"{note} {count}" for note, count in self.notes.get()]
        prices = decimal.Decimal(0)
        for frame in rows:
            n += frame["small"].count()
            total += frame["ratio"].sum()
            latest = frame["at"].max()
            prices += frame["price"].sum()
            for day in frame["day"]:
                self.days.updateValue((day,), ((self.days.getValue((day,)) or (0,))[0] + 1,))
            dtypes = {name: str(kind) for name, kind in frame.dtypes.items()}
            cells = [
                [f"{type(c).__name__} {c}" for c in row] for row in frame.to_numpy(dtype=object)
            ]
            seen.append(f"{dtypes} {list(frame.index)} {cells}")
        self.total.update((n, total, latest))
        days = sorted((str(day), count) for (day,), (count,) in self.days.iterator())
        yield pd.DataFrame(
            {
                "seen": [f"{key} {seen} {days}"],
                "key": [key[0]],
                "n": [n],
                "total": [total],
                "latest": [latest],
                "prices": [prices],
            }
        )

    def close(self) -> None:
        pass


def order(key: str, number: int) -> tuple[Any, ...]:
    at = dt.datetime(2024, 7, 1, 12, number, tzinfo=dt.UTC)
    return (
        key,
        number,
        number,
        number / 4,
        None if number == 3 else number % 2 == 0,
        at,
        dt.datetime(2024, 7, 1, 3, number),
        decimal.Decimal(number) / 4,
        ["a", None] if number % 2 else [],
        {"x": number, "y": "z"},
        [("a", number)],
        b"\0raw",
        dt.date(2024, 7, 1 + number % 3),
    )


BATCHES = [
    [order("a", 1), order("b", 2), order("a", 3), order("c", 4), order("a", 5)],
    [order("d", 6), order("b", 7), order("a", 8), order("a", 9)],
]
INITIAL_ROWS = [("a", 10, "one"), ("z", 20, None), ("a", 30, "two"), ("d", 40, "three")]


class Opening(StatefulProcessor):
    """Row flavour: opening balances from initial state, some with a timer."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.balance = handle.getValueState("balance", "balance bigint")
        self.calls = handle.getListState("calls", "call string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        (balance,) = self.balance.get() or (0,)
        self.balance.update((balance + initialState.n,))
        self.calls.appendValue((f"{key} {initialState!r}",))
        if initialState.note == "timer":
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (balance,) = self.balance.get() or (0,)
        balance += sum(row.amount for row in rows)
        if self.fails:
            raise OSError("out of order")
        self.balance.update((balance,))
        yield Row(key=key[0], balance=balance, calls=sorted(call for (call,) in self.calls.get()))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key[0], balance=self.balance.get()[0], calls=["timer"])

    def close(self) -> None:
        pass


ROW_OUTPUT = "key int, balance bigint, calls array<string>"
OPENINGS = [(1, 100, "a"), (3, 7, "timer"), (1, 11, "timer"), (2, 5, None)]
