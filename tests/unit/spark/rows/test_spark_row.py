"""The Rows of each key, made all at once or one key group at a time."""

import datetime as dt
import pickle

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row

from statelog.spark.rows import spark_row
from statelog.spark.rows.key_order import key_order
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.spark_row import RowInput
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


def test_the_order_of_many_key_groups_and_keys() -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 80_000, 150_000)
    groups = (keys % 70_001).astype(np.int32)
    order = key_order(groups, [pa.array(keys)], KEY)
    assert (np.diff(groups[order.firsts]) >= 0).all()
    starts = np.array(order.bounds[:-1])
    of_row = np.repeat(np.arange(len(starts)), np.diff(order.bounds))
    assert (keys[order.rows] == keys[order.firsts][of_row]).all()
    later = np.diff(order.rows) > 0
    assert (later | (np.diff(of_row) > 0)).all()
    assert sorted(order.rows.tolist()) == list(range(150_000))
