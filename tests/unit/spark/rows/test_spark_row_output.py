"""Rows that a processor yields become columns by name, at every depth."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.driver.delivery import one_per_task
from statelog.spark.rows.interface import MOST_NAMES, UnnamedColumns
from statelog.spark.rows.spark_row import RowOutput
from statelog.spark.worker.protocol import TaskAck, TaskPlace

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


def test_a_column_that_a_row_names_is_not_noted_in_whatever_batch_it_was() -> None:
    output = RowOutput(COLUMNS, batch_id=0)
    output.extend([Row(customer="a", n=None)])
    output.batch()
    assert output.unnamed == UnnamedColumns(("total",), ())
    output.clear()
    output.extend([Row(n=1, total=None, more=1)])  # an explicit null names its column
    output.batch()
    assert output.unnamed is None


def test_rows_with_all_columns_in_their_order_name_all_of_them() -> None:
    output = RowOutput(COLUMNS, batch_id=0)
    output.extend([Row(totl=1.0)])
    output.batch()
    output.clear()
    output.extend([Row(customer="a", total=1.0, n=1)])
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
