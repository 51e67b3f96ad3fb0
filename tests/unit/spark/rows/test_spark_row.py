"""The Rows of each key, and the columns that yielded Rows become by name, at every depth."""

import datetime as dt
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.driver.delivery import one_per_task
from statelog.spark.rows import spark_row
from statelog.spark.rows.interface import MOST_NAMES, UnnamedColumns
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.spark_row import RowInput, RowOutput
from statelog.spark.worker.protocol import TaskAck, TaskPlace
from statelog.state.encoding.values import KeyCodec

KEY = KeyCodec(pa.schema([("key", pa.int64())]))
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def batches(rows: int) -> list[pa.RecordBatch]:
    """Return rows of seven columns with nulls, in small batches."""
    numbers = np.arange(rows)
    keys = (numbers * 7) % max(rows // 3, 1)
    texts = [None if number % 5 == 0 else f"text {number}" for number in range(rows)]
    table = pa.table(
        {
            "__key_group": (keys % 11).astype(np.int32),
            "key": keys,
            "number": pa.array(numbers, mask=numbers % 4 == 0),
            "text": texts,
            "at": pa.array([MOMENT] * rows, pa.timestamp("us", "UTC")),
            "parts": [[number, None] for number in range(rows)],
        }
    )
    return table.to_batches(max_chunksize=7)


@pytest.mark.parametrize("at_once", [0, 1_000])
def test_each_key_has_its_rows_in_order(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_row, "_AT_ONCE", at_once)
    arrow_batches = batches(200)
    expected: dict[int, list[dict[str, object]]] = {}
    for row in pa.Table.from_batches(arrow_batches).drop_columns(["__key_group"]).to_pylist():
        expected.setdefault(row["key"], []).append(row)
    rows_read = RowInput(InputLayout((1,), 1), KEY)
    rows_read.read(arrow_batches)
    seen = []
    for key_group in rows_read.key_groups():
        for key, shown, rows in rows_read.keys(key_group):
            assert key == shown
            assert key[0] % 11 == key_group
            assert [row.asDict() for row in rows] == expected[key[0]]
            seen.append(key[0])
        # A second look at a key group gives the same rows again.
        assert [key for key, _, _ in rows_read.keys(key_group)] == rows_read.table_keys(key_group)
    assert sorted(seen) == sorted(expected)
    assert rows_read.row_count == 200
    assert list(rows_read.keys(5_000)) == []


@pytest.mark.parametrize("at_once", [0, 1_000])
def test_rows_are_rows_of_spark(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_row, "_AT_ONCE", at_once)
    rows_read = RowInput(InputLayout((1,), 1), KEY)
    rows_read.read(batches(1))
    ((_, _, rows),) = rows_read.keys(0)
    (row,) = rows
    expected = Row(key=0, number=None, text=None, at=MOMENT, parts=[0, None])
    assert isinstance(row, Row)
    assert isinstance(row, tuple)
    assert row == expected
    assert repr(row).replace(repr(row.at), "") == repr(expected).replace(repr(MOMENT), "")
    assert pickle.loads(pickle.dumps(row)) == expected
    assert row.asDict() == expected.asDict()


def test_an_input_without_rows_has_no_keys() -> None:
    rows_read = RowInput(InputLayout((1,), 1), KEY)
    rows_read.read([batches(1)[0].slice(0, 0)])
    assert rows_read.key_groups() == []
    assert list(rows_read.keys(0)) == []


INNER = pa.struct([("b", pa.int64()), ("a", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (INNER, Row(a=1, b=2), {"b": 2, "a": 1}),
        (INNER, {"a": 1}, {"b": None, "a": 1}),
        (INNER, (5, 6), {"b": 5, "a": 6}),
        (INNER, None, None),
        (pa.list_(INNER), [Row(a=1, b=2), None], [{"b": 2, "a": 1}, None]),
        (pa.map_(pa.string(), INNER), {"k": Row(a=1, b=2)}, [("k", {"b": 2, "a": 1})]),
        (pa.struct([("x", pa.list_(INNER)), ("y", INNER)]), Row(y=Row(a=1, b=2), x=[Row(a=3, b=4)]),
         {"x": [{"b": 4, "a": 3}], "y": {"b": 2, "a": 1}}),
    ],
)  # fmt: skip
def test_nested_rows_go_by_name(kind: pa.DataType, value: Any, expected: Any) -> None:
    output = RowOutput(pa.schema([("id", pa.int64()), ("v", kind)]), batch_id=0)
    output.extend([Row(id=1, v=value)])  # in the order of the columns
    assert [expected] == output.batch().column(1).to_pylist()
    output.extend([Row(v=value, id=2)])
    assert [expected] * 2 == output.batch().column(1).to_pylist()


COLUMNS = pa.schema([("customer", pa.string()), ("total", pa.float64()), ("n", pa.int64())])


def test_columns_that_no_row_names_are_noted_with_the_names_that_rows_have() -> None:
    output = RowOutput(COLUMNS, batch_id=0)
    output.extend([Row(cust="a", totl=1.0, n=1), Row(cust="b", totl=2.0, n=2)])
    assert [None, None] == output.batch().column(0).to_pylist()
    assert output.unnamed == UnnamedColumns(("customer", "total"), ("cust", "totl"))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Row(customer="a", n=None), Row(n=1, total=None, more=1)),  # a null names its column
        (Row(customer="a", n=1), Row(customer="a", total=1.0, n=1)),  # all columns, in their order
    ],
)
def test_a_column_that_a_row_names_is_not_noted_in_whatever_batch_it_was(
    first: Row, then: Row
) -> None:
    output = RowOutput(COLUMNS, batch_id=0)
    output.extend([first])
    output.batch()
    assert output.unnamed == UnnamedColumns(("total",), ())
    output.clear()
    output.extend([then])
    output.batch()
    assert output.unnamed is None


def test_names_without_end_are_noted_up_to_a_bound() -> None:
    output = RowOutput(COLUMNS, batch_id=0)
    for batch in range(3):
        output.extend([Row(**{f"c{batch}_{at}": at}) for at in range(100)])
        output.batch()
        output.clear()
    assert output.unnamed is not None
    assert len(output.unnamed.other_names) == MOST_NAMES


def ack(partition: int, rows: int, spark_task: int = -1) -> TaskAck:
    place = TaskPlace(partition, KeyGroupRange(0, 127), 0, spark_task)
    return TaskAck(place, figures={"rows": rows})


def test_of_several_answers_of_a_task_one_is_taken_if_they_saw_the_same_rows() -> None:
    last = ack(1, 5)
    assert [ack(0, 2), last] == one_per_task([ack(1, 5), ack(0, 2), last])
    assert last is one_per_task([ack(1, 5), last])[0]
    with pytest.raises(UsageError, match="changes the partitions"):
        one_per_task([ack(0, 2), ack(1, 5), ack(0, 0)])


def test_one_task_of_spark_answers_once() -> None:
    twice = [ack(0, 0, 7), ack(1, 0, 8), ack(0, 0, 9)]
    assert twice[1:] == one_per_task(twice)[::-1]
    with pytest.raises(UsageError, match="changes the partitions"):
        one_per_task([ack(0, 0, 7), ack(0, 0, 7)])
