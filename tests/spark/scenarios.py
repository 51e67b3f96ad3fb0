"""Processors with all kinds of state, and with timers."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.spark.streams import workers_get_by_value

workers_get_by_value(__name__)

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
        """Lengthen the lists; return what iterators that take turns show of them before and after."""
        before = [n for n, _ in self.numbers.get()]
        more = [(n, None) for n in range(len(before), len(before) + (90 if before else MANY))]
        self.numbers.appendList(more)
        self.other.put([*self.other.get(), *more])
        one, two = self.numbers.get(), self.other.get()
        shown = [next(one) for _ in range(2)] + [next(two) for _ in range(2)]
        third = self.numbers.get()
        shown += [next(third), next(one)]
        rest = sum(n for n, _ in one) + sum(n for n, _ in two) + sum(n for n, _ in third)
        return str(before[-3:]), f"{[n for n, _ in shown]} {rest}"

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        said = ""
        try:
            self.gone.exists()
        except PySparkRuntimeError as error:
            said = str(error)[: len("Error checking value state exists")]
        (total,) = self.total.get() or (0,)
        for row in rows:
            total += int(row["amount"].sum()) if self.pandas else row.amount
        self.total.update((total,))
        before, after = self.gather()
        text = "a" * LARGE
        self.large.updateValue(("text",), (text + "b",))
        self.large.updateValue(("other",), (str(total),))
        kept = len(self.large.getValue(("text",))[0])
        names, by_name, deep, _ = self.nested.get() or ([], {"k": [1]}, {"e": {"f": 5}}, None)
        by_name[str(total)] = [total]
        deep["e"][str(total)] = total
        self.nested.update(([*names, key[0]], by_name, deep, (total, "b")))
        initial = sorted(value for (value,) in self.initial.get())
        shown = {
            "first": key[0],
            "second": key[1],
            "text": f"{said} {total} {before} {after} {kept} {initial} {len(by_name)} {len(deep)}",
            "names": list(self.nested.get()[0]),
            "nested": {"x": {"a": total, "b": ["c", str(total)]}},
        }
        yield pd.DataFrame([shown]) if self.pandas else Row(**shown)


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

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        self.handle.deleteTimer(expiredTimerInfo.getExpiryTimeInMs())
        yield Row(first=f"{key[0]} expired", n=self.value.get()[0])
