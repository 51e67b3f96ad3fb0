"""The order of a task's rows, beside one found row by row."""

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.spark.rows.key_order import key_order
from statelog.state.encoding.values import KeyCodec


def nan_of(bits: int) -> float:
    """Return a NaN with these bits."""
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    assert math.isnan(value)
    return value


PARTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [0, 1, -1, 2**63 - 1, None]),
    "text": (pa.string(), ["", "a", "b", "å", None]),
    "bytes": (pa.binary(), [b"", b"\0", b"\0\0", None]),
    "double": (
        pa.float64(),
        [0.0, -0.0, 1.5, math.inf, math.nan, nan_of(0xFFF8 << 48), nan_of(0x7FF0 << 48 | 1), None],
    ),
    "float": (pa.float32(), [0.0, -0.0, 0.5, math.nan, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "date": (pa.date32(), [dt.date(2020, 1, 1), dt.date(1969, 12, 31), None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("-1.10"), None]),
    "list": (pa.list_(pa.int64()), [[], [1], [1, None], None]),
    "struct": (
        pa.struct([("x", pa.float64()), ("y", pa.string())]),
        [{"x": -0.0, "y": "a"}, {"x": 0.0, "y": "a"}, {"x": math.nan, "y": None}, None],
    ),
}


@st.composite
def keyed_rows(draw: st.DrawFn) -> tuple[pa.Schema, list[tuple[Any, ...]]]:
    names = draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3))
    schema = pa.schema([(f"k{at}", PARTS[name][0]) for at, name in enumerate(names)])
    row = st.tuples(*[st.sampled_from(PARTS[name][1]) for name in names])
    return schema, draw(st.lists(row, min_size=1, max_size=60))


def group_of(key: tuple[Any, ...]) -> int:
    return sum(map(ord, repr(key))) % 5 * 7


@given(keyed_rows())
def test_rows_are_in_order_of_arrival(drawn: tuple[pa.Schema, list[tuple[Any, ...]]]) -> None:
    schema, rows = drawn
    codec = KeyCodec(schema)
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    # As Arrow gives them back: a float32 is not the float it was made from.
    keys = [
        codec.to_hashable(key)
        for key in zip(*[column.to_pylist() for column in columns], strict=True)
    ]
    model: dict[int, dict[tuple[Any, ...], list[int]]] = {}
    for at, key in enumerate(keys):
        model.setdefault(group_of(key), {}).setdefault(key, []).append(at)
    order = key_order(np.array([group_of(key) for key in keys], np.int32), columns, codec)
    assert list(order.ranges) == list(model)
    for group, (first, end) in order.ranges.items():
        arrived = [
            order.rows[order.bounds[at] : order.bounds[at + 1]].tolist() for at in range(first, end)
        ]
        assert arrived == list(model[group].values())
        assert order.firsts[first:end].tolist() == [rows[0] for rows in model[group].values()]


@pytest.mark.parametrize("rows", [1, 70_000])
def test_many_keys_of_several_columns_do_not_run_into_each_other(rows: int) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
    columns = [pa.array(np.arange(rows) // step) for step in (1, 2, 3)]
    order = key_order(np.zeros(rows, np.int32), columns, KeyCodec(schema))
    assert order.rows.tolist() == list(range(rows))
    assert order.bounds == list(range(rows + 1))
