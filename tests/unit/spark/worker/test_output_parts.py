"""
An output that cannot be converted is reported with its processor, method, key and micro-batch.

Tasks run in this process, without Spark.
"""

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from tests.support.jobs.pandas_input import SETTINGS
from tests.support.jobs.task_query import Query, arrow_input

from statelog.errors import ProcessorError
from statelog.extensions.columns.processor import ColumnarProcessor
from statelog.extensions.columns.rows import ColumnarFormat
from statelog.spark import StatefulProcessor
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.rows.formats import PandasRowFormat, RowFormat, SparkRowFormat
from statelog.spark.rows.interface import UnnamedColumns
from statelog.spark.worker import output_parts

INPUT = "customer string, amount long"
OUTPUT = "customer string, total long"
KEY = pa.schema([("customer", pa.string())])
BAD = "c37"
ROWS = [(f"c{number}", number) for number in range(60)]
AT_ONCE = 1 << 40


class Faulty(StatefulProcessor):
    """Yields or returns a wrong item for one key."""

    def __init__(self, item: Any, how: str = "yield") -> None:
        self.item, self.how = item, how

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        if key[0] == BAD and self.how == "timer":
            self.handle.registerTimer(1)
        if key[0] == BAD and self.how == "return":
            return self.item
        return self.items(key, is_bad=key[0] == BAD and self.how == "yield")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return self.items(key, is_bad=True)

    def items(self, key: Any, *, is_bad: bool) -> Iterator[Any]:
        for total in range(int(key[0][1:]) % 3):  # several rows, one or none
            yield self.good(key[0], total)
        if is_bad:
            yield self.item

    def good(self, customer: str, total: int) -> Any:
        return Row(customer=customer, total=total)

    def close(self) -> None:
        pass


class FaultyInPandas(Faulty):
    def good(self, customer: str, total: int) -> Any:
        return pd.DataFrame({"customer": [customer], "total": [total]})


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_parts, "_FIRST_ROWS", 7)
    monkeypatch.setattr(output_parts, "_AT_ONCE", 2)


def failure(
    folder: Path, processor: Any, row_format: RowFormat, input_bytes: int = AT_ONCE, **changes: Any
) -> str:
    """Return the message of a task that fails."""
    query = Query(folder, processor, row_format, input_bytes, output=OUTPUT, key=KEY, **changes)
    with pytest.raises(ProcessorError) as raised:
        query.run(arrow_input(ROWS, INPUT, keys=1), forget=True)
    assert raised.value.batch_id == 0
    return raised.value.message


OF_ROWS = "Faulty.handleInputRows failed for key ('c37',) in batch 0: "
OF_FRAMES = "FaultyInPandas.handleInputRows failed for key ('c37',) in batch 0: "
FRAME = pd.DataFrame({"customer": ["ann"]})
UNFIT = [
    (Faulty({"customer": "ann"}), "it yields the dict {'customer': 'ann'}: write `yield Row(**values)`"),
    (Faulty(("ann", 3)), "it yields the tuple ('ann', 3): write `yield Row(customer=..., total=...)`"),
    (Faulty(Row("ann", 3)), "it yields <Row('ann', 3)> without names: write `yield Row(customer=..., "),
    (Faulty("ann"), "it yields the str 'ann': write `yield Row(customer=..., total=...)`"),
    (Faulty(None), "it yields None: write `yield Row(customer=..., total=...)`"),
    (Faulty(Row(customer="ann", total="many")), "output column 'total' (int64) cannot store 'many' of Row("
     "customer='ann', total='many')"),
    (Faulty(Row(total=3), "return"), "it returned Row(total=3), not an iterator of rows: write `yield` instead "
     "of `return`. Nothing"),
    (Faulty({"total": 3}, "return"), "it returned the dict {'total': 3}, not an iterator of rows"),
    (Faulty(5, "return"), "it returned the int 5, not an iterator of rows"),
    (FaultyInPandas({"customer": ["ann"]}), "it yields the dict {'customer': ['ann']}: write `yield pd.Data"),
    (FaultyInPandas(FRAME), "a frame of (customer str"),
    (FaultyInPandas(FRAME, "return"), "it returned a DataFrame, not an iterator"),
]  # fmt: skip


@pytest.mark.parametrize("input_bytes", [AT_ONCE, 4_000], ids=["at once", "in parts"])
@pytest.mark.parametrize(("processor", "what"), UNFIT)
def test_an_unfit_output_is_reported_with_its_key(
    tmp_path: Path, processor: Faulty, what: str, input_bytes: int
) -> None:
    is_pandas = isinstance(processor, FaultyInPandas)
    frames = PandasRowFormat(SETTINGS, parse_ddl(OUTPUT))
    row_format = frames if is_pandas else SparkRowFormat()
    message = failure(tmp_path, copy(processor), row_format, input_bytes)
    start = (OF_FRAMES if is_pandas else OF_ROWS) + what
    assert message.replace("customer object", "customer str").startswith(start)
    assert message.count("Nothing of this batch was committed; the state is unchanged") == 1


def test_a_row_of_a_timer_is_reported_with_its_key(tmp_path: Path) -> None:
    processor = Faulty(("ann", 3), "timer")
    changes = {"time_mode": "processingtime", "now_ms": 5}
    message = failure(tmp_path, processor, SparkRowFormat(), **changes)
    assert message.startswith(f"Faulty.handleExpiredTimer failed for key ('{BAD}',) in batch 0: it")


class FaultyColumns(ColumnarProcessor):
    def __init__(self, item: Any, how: str = "yield") -> None:
        self.item, self.how = item, how

    def init(self, handle: Any) -> None:
        pass

    def process(self, keys: Any, rows: Any, times: Any) -> Any:
        return iter([self.item]) if self.how == "yield" else self.item


@pytest.mark.parametrize(
    ("item", "how", "what"),
    [
        (5, "yield", "the output must be a pyarrow table, "),
        (
            pa.table({"customer": ["ann"]}),
            "yield",
            "the output has the columns customer, total, but the table has ",
        ),
        (pa.table({"customer": ["ann"]}), "return", "it returned a Table, not an iterator of tab"),
    ],
)
def test_an_unfit_table_is_reported(tmp_path: Path, item: Any, how: str, what: str) -> None:
    message = failure(tmp_path, FaultyColumns(item, how), ColumnarFormat())
    assert message.startswith("FaultyColumns.process failed for 60 keys of the key groups 0 to 31")
    assert f" in batch 0: {what}" in message


def test_calls_without_output_take_no_memory() -> None:
    calls = output_parts.OutputCalls()
    calls.begin([("a",)], 3, "handleInputRows").append(2)
    calls.finish()
    ends = calls.begin([(number,) for number in range(1000)], 4, "handleInputRows")
    ends += [2] * 999 + [3]
    calls.finish()
    ends = calls.begin([("b",)] * 1000, 5, "handleInputRows")
    ends += [3] * 1000
    calls.finish()
    calls.begin([("c",), ("d",)], 6, "handleInputRows")
    assert ends == [2, 3]
    keys = [calls.call_of(at)[:2] for at in range(4)]
    assert keys == [(("a",), 3), (("a",), 3), ((999,), 4), (("c",), 6)]
    ends.append(9)
    calls.clear()
    assert (ends, calls.call_of(5)[:2]) == ([], (("d",), 6))


@pytest.mark.parametrize("input_bytes", [AT_ONCE, 4_000], ids=["at once", "in parts"])
def test_the_answer_has_the_columns_that_no_row_names(tmp_path: Path, input_bytes: int) -> None:
    class Misspelt(Faulty):
        def good(self, customer: str, total: int) -> Any:
            return Row(customer=customer, totl=total)

    class Sometimes(Faulty):
        def good(self, customer: str, total: int) -> Any:
            return Row(total=total, customer=None) if self.is_first() else Row(customer=customer)

        def is_first(self) -> bool:
            self.seen = getattr(self, "seen", 0) + 1
            return self.seen == 1

    answers = []
    silent = ROWS[::3]  # keys that get no output row
    for number, (kind, rows) in enumerate(
        [(Misspelt, ROWS), (Sometimes, ROWS), (Misspelt, silent)]
    ):
        processor = kind(None, "never")
        query = Query(
            tmp_path / str(number), processor, SparkRowFormat(), input_bytes, output=OUTPUT, key=KEY
        )
        query.run(arrow_input(rows, INPUT, keys=1), forget=True)
        answers.append(query.acks[-1].output.unnamed)
    assert answers == [UnnamedColumns(("total",), ("totl",)), None, None]
