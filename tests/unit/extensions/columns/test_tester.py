"""A columnar processor in `ProcessorTester`: restarts, time to live, timers, and its errors."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import ProcessorError, UsageError
from statelog.spark import ColumnarProcessor
from statelog.testing import ProcessorTester

KEY = "customer string"


class Totals(ColumnarProcessor):
    """Adds up amounts; a sum is forgotten 100 ms after the last one."""

    def __init__(self, ttl_ms: int | None = None) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle: Any) -> None:
        self.total = handle.getColumnState("total", "n long, amount double", self.ttl_ms)

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
        old = self.total.get(keys)
        amount = np.add.reduceat(rows["amount"].to_numpy(), keys.starts)
        new = {
            "n": old["n"].fill_null(0).to_numpy() + keys.counts,
            "amount": old["amount"].fill_null(0).to_numpy() + amount,
        }
        self.total.put(keys, new)
        self.total.clear(keys.take(new["amount"] < 0))
        yield {"customer": keys["customer"], **new}


def rows(*pairs: tuple[str | None, float]) -> dict[str, list[Any]]:
    return {"customer": [key for key, _ in pairs], "amount": [amount for _, amount in pairs]}


pairs = st.tuples(st.sampled_from(["a", "b", "c", "ä", "", None]), st.integers(-9, 9))
histories = st.lists(st.lists(pairs, min_size=1), min_size=1, max_size=6)


@given(batches=histories)
@settings(max_examples=40, deadline=None)
def test_totals_equal_those_of_a_dict(batches: list[list[tuple[str | None, int]]]) -> None:
    tester = ProcessorTester(
        Totals(), keySchema=KEY, outputStructType="customer string, n long, amount double"
    )
    totals: dict[str | None, tuple[int, float]] = {}
    for number, batch in enumerate(batches):
        expected = {}
        for key, amount in batch:
            n, before = totals.get(key, (0, 0.0))
            totals[key] = expected[key] = (n + 1, before + amount)
        for key in expected:
            if totals[key][1] < 0:
                del totals[key]
        if number % 2:
            tester.restart()
        out = tester.testColumns(rows(*((key, float(amount)) for key, amount in batch)))
        assert {row["customer"]: (row["n"], row["amount"]) for row in out.to_pylist()} == expected
        for key in expected:
            assert tester.peekValueState("total", key) == totals.get(key)


def test_a_processor_gets_no_other_columns_than_those_that_it_names() -> None:
    class Names(Totals):
        columns = ("amount",)

        def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
            yield {"customer": keys["customer"], "columns": [",".join(rows.column_names)]}

    tester = ProcessorTester(Names(), keySchema=KEY)
    output = tester.testColumns({"note": ["x"], "amount": [1.0], "customer": ["a"]})
    assert output["columns"].to_pylist() == ["amount,customer"]


def test_each_put_begins_the_time_to_live_again() -> None:
    tester = ProcessorTester(Totals(100), timeMode="ProcessingTime", keySchema=KEY)
    tester.setProcessingTime(10)
    tester.testColumns(rows(("a", 1.0), ("b", 2.0)))
    tester.setProcessingTime(60)
    tester.testColumns(rows(("a", 1.0)))
    tester.setProcessingTime(120)
    tester.restart()
    out = tester.testColumns(rows(("a", 1.0), ("b", 5.0)))
    assert out.to_pydict() == {"customer": ["a", "b"], "n": [3, 1], "amount": [3.0, 5.0]}


class Reminders(ColumnarProcessor):
    """Registers the timers that rows name, deletes those of negative numbers, and shows all."""

    def init(self, handle: Any) -> None:
        self.timers = handle.timers

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
        of_row = keys.take(keys.row_keys())
        due = rows["due"].to_numpy()
        self.timers.register(of_row.take(due > 0), due[due > 0])
        self.timers.delete(of_row.take(due < 0), -due[due < 0])
        yield {"customer": keys["customer"], "times": self.timers.get(keys)}

    def expired(self, keys: Any, expiry_ms: Any, times: Any) -> Iterator[Any]:
        expired = pa.array([[time] for time in expiry_ms.to_pylist()])
        yield {"customer": keys["customer"], "times": expired}


def test_timers_are_sets_of_times() -> None:
    tester = ProcessorTester(Reminders(), timeMode="ProcessingTime", keySchema=KEY)
    tester.setProcessingTime(1)
    out = tester.testColumns({"customer": ["a", "a", "b", "a"], "due": [30, 20, 25, 30]})
    assert dict(zip(*out.to_pydict().values(), strict=True)) == {"a": [20, 30], "b": [25]}
    tester.restart()
    fired = tester.setProcessingTime(26)
    assert fired.to_pydict() == {"customer": ["a", "b"], "times": [[20], [25]]}
    assert tester.testNoData().num_rows == 0
    assert tester.peekTimers("a") == [30]
    out = tester.testColumns({"customer": ["a", "b"], "due": [-30, -1]})
    assert out.to_pydict() == {"customer": ["a", "b"], "times": [None, None]}
    assert tester.setProcessingTime(99).num_rows == 0


class NoTable(ColumnarProcessor):
    """Yields a number."""

    def init(self, handle: Any) -> None:
        pass

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield 3


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table, dict])
def test_columns_come_from_any_library(frame: Any) -> None:
    class Frames(ColumnarProcessor):
        def init(self, handle: Any) -> None:
            self.last = handle.getColumnState("last", "amount double, text string")

        def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
            old = self.last.get(keys)["text"].to_pylist()
            amounts = rows["amount"].to_numpy()[keys.ends - 1]
            texts = [f"{text or ''}{amount:g}" for text, amount in zip(old, amounts, strict=True)]
            self.last.put(keys, frame({"amount": amounts, "text": texts}))
            yield frame({"text": texts})

    tester = ProcessorTester(Frames(), keySchema=KEY, outputStructType="text string")
    tester.testColumns(frame(rows(("a", 1.0), ("b", 2.0))))
    assert tester.testColumns(frame(rows(("a", 3.0)))).to_pydict() == {"text": ["13"]}
    assert tester.peekValueState("last", "b") == (2.0, "2")


class Putting(Totals):
    """Puts a table into its state, whatever the rows are."""

    def __init__(self, table: dict[str, list[Any]]) -> None:
        super().__init__()
        self.table = table

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
        self.total.put(keys, self.table)
        yield from ()


def test_what_does_not_fit_is_refused() -> None:
    for table, message in (
        ({"n": [1, 1], "amount": [1.0, 1.0]}, "2 rows for 1 keys"),
        ({"n": [1]}, "state 'total' has the columns n, amount, but the table has n"),
        ({"n": ["x"], "amount": [1.0]}, "field 'n' takes int64, not string"),
    ):
        with pytest.raises((ProcessorError, UsageError), match=message):
            ProcessorTester(Putting(table), keySchema=KEY).testColumns(rows(("a", 1.0)))
    tester = ProcessorTester(Totals(), keySchema=KEY, outputStructType="customer string, n string")
    with pytest.raises(ProcessorError, match="has the columns customer, n, but the table has"):
        tester.testColumns(rows(("a", 1.0)))
    with pytest.raises(UsageError, match="lack the column customer"):
        tester.testColumns({"amount": [1.0]})
    with pytest.raises(UsageError, match="is columnar: use testColumns"):
        tester.test("a", [])
    with pytest.raises(UsageError, match="requires keySchema"):
        ProcessorTester(Totals()).testColumns(rows(("a", 1.0)))
    with pytest.raises(ProcessorError, match=r"NoTable.process failed .*the output"):
        ProcessorTester(NoTable(), keySchema=KEY).testColumns({"customer": ["a"]})
    with pytest.raises(ProcessorError, match="timers require the ProcessingTime"):
        ProcessorTester(Reminders(), keySchema=KEY).testColumns({"customer": ["a"], "due": [1]})
