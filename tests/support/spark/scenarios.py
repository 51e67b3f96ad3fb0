"""Processors with all kinds of state, and with timers."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.support.spark.streams import BatchSource
from tests.support.spark.versions import row_operator

INPUT = "first string, amount int, second string"
MANY = 100
LARGE = 512 * 1024


class Everything(StatefulProcessor):
    """Uses every kind of state, with composite, long and large values, and one that is deleted."""

    def __init__(self, pandas: bool) -> None:
        self.pandas = pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "value int")
        self.gone = handle.getValueState("gone", "value int")
        handle.deleteIfExists("gone")
        self.initial = handle.getListState("initial", "value int")
        self.numbers = handle.getListState("numbers", "n int, none int")
        self.other = handle.getListState("other", "n int, none int")
        self.large = handle.getMapState("large", "name string", "text string")
        self.nested = handle.getValueState(
            "nested",
            "names array<string>, by_name map<string, array<int>>, "
            "deep map<string, map<string, int>>, s struct<a: int, b: string>",
        )

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        values = initialState["begin"]
        for value in values.tolist() if self.pandas else [values]:
            self.initial.appendValue((int(value),))

    def gather(self) -> tuple[str, str]:
        """Lengthen the lists; return what iterators that are read in turns yield before and after."""
        before = [n for n, _ in self.numbers.get()]
        more = [(n, None) for n in range(len(before), len(before) + (90 if before else MANY))]
        self.numbers.appendList(more)
        self.other.put([*self.other.get(), *more])
        first, other = self.numbers.get(), self.other.get()
        read = [next(first) for _ in range(2)] + [next(other) for _ in range(2)]
        later = self.numbers.get()
        read += [next(later), next(first)]
        rest = sum(n for n, _ in first) + sum(n for n, _ in other) + sum(n for n, _ in later)
        return str(before[-3:]), f"{[n for n, _ in read]} {rest}"

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        message = ""
        try:
            self.gone.exists()
        except PySparkRuntimeError as error:
            message = str(error)[: len("Error checking value state exists")]
        (total,) = self.total.get() or (0,)
        for row in rows:
            total += int(row["amount"].sum()) if self.pandas else row.amount
        self.total.update((total,))
        before, after = self.gather()
        text = "a" * LARGE
        self.large.updateValue(("text",), (text + "b",))
        self.large.updateValue(("other",), (str(total),))
        length = len(self.large.getValue(("text",))[0])
        names, by_name, deep, _ = self.nested.get() or ([], {"k": [1]}, {"e": {"f": 5}}, None)
        by_name[str(total)] = [total]
        deep["e"][str(total)] = total
        self.nested.update(([*names, key[0]], by_name, deep, (total, "b")))
        initial = sorted(value for (value,) in self.initial.get())
        output = {
            "first": key[0],
            "second": key[1],
            "text": f"{message} {total} {before} {after} {length} {initial} {len(by_name)} {len(deep)}",
            "names": list(self.nested.get()[0]),
            "nested": {"x": {"a": total, "b": ["c", str(total)]}},
        }
        yield pd.DataFrame([output]) if self.pandas else Row(**output)


EVERYTHING = (
    "first string, second string, text string, names array<string>, "
    "nested map<string, struct<a: int, b: array<string>>>"
)


class WithTimers(StatefulProcessor):
    """A timer for each row of initial state, due at once."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n int")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.value.update((initialState.begin,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (n,) = self.value.get() or (0,)
        n += sum(row.amount for row in rows)
        self.value.update((n,))
        yield Row(first=key[0], n=n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self.handle.deleteTimer(expiredTimerInfo.getExpiryTimeInMs())
        yield Row(first=f"{key[0]} expired", n=self.value.get()[0])


EVERYTHING_BATCHES = [
    [("0", 123, "1"), ("0", 46, "1"), ("1", 146, "2"), ("1", 346, "2")],
    [("0", 67, "1"), ("3", 12, "2")],
]
TIMER_BATCHES = [
    [("0", 123, "x"), ("0", 46, "x"), ("1", 146, "x")],
    [("0", 67, "x"), ("3", 12, "x")],
]


def everything(session: SparkSession, source: BatchSource, pandas: bool) -> DataFrame:
    """Run `Everything` by Spark's own call, with initial state of keys with and without rows."""
    rows = [(789, "0", "1"), (1, "0", "1"), (987, "3", "2"), (5, "9", "9")]
    initial = session.createDataFrame(rows, "begin int, first string, second string")
    grouped = source.frame().groupBy("first", "second")  # there is a column between them
    call = grouped.transformWithStateInPandas if pandas else row_operator(grouped)
    return call(
        Everything(pandas), EVERYTHING, "Update", "None",
        initialState=initial.groupBy("first", "second"),
    )  # fmt: skip


def with_timers(session: SparkSession, source: BatchSource) -> DataFrame:
    """Run `WithTimers` by Spark's own call."""
    initial = session.createDataFrame([("0", 789), ("3", 987)], "first string, begin int")
    call = row_operator(source.frame().groupBy("first"))
    return call(
        WithTimers(), "first string, n int", "Update", "ProcessingTime",
        initialState=initial.groupBy("first"),
    )  # fmt: skip
