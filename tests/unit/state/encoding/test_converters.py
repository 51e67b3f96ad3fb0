"""Values of columns are those of Arrow's `to_pylist`, for every type, null, zone and slice."""

import datetime as dt
import decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given

from statelog.state.encoding.converters import to_python

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "+05:30", "Pacific/Apia")
LEAST, MOST = dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29)  # in every zone
EPOCH = dt.datetime(1970, 1, 1)


def micros(moment: dt.datetime) -> int:
    """Return a naive datetime as microseconds since the epoch."""
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


NUMBERS = st.datetimes(LEAST, MOST).map(micros)
SPANS = st.timedeltas(dt.timedelta(days=-100_000_000), dt.timedelta(days=100_000_000))
DECIMALS = st.decimals(
    allow_nan=False, allow_infinity=False, places=4, max_value=10**8, min_value=-(10**8)
)


@st.composite
def leaves(draw: st.DrawFn) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """Draw a type that is no nested one, and its values."""
    return draw(
        st.sampled_from(
            [
                (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
                (pa.int8(), st.integers(-128, 127)),
                (pa.float64(), st.floats(allow_nan=False)),
                (pa.bool_(), st.booleans()),
                (pa.string(), st.text(max_size=5)),
                (pa.binary(), st.binary(max_size=5)),
                (pa.date32(), st.dates()),
                (pa.timestamp("us"), NUMBERS),
                (pa.timestamp("ms"), st.integers(-(10**12), 10**12)),
                (pa.duration("us"), SPANS),
                (pa.decimal128(20, 4), DECIMALS),
                *((pa.timestamp("us", zone), NUMBERS) for zone in ZONES),
            ]
        )
    )


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """Draw a column of any type, with nulls, and maybe a slice of it."""
    kind, values = draw(leaves())
    for nest in draw(st.lists(st.sampled_from(["list", "struct"]), max_size=2)):
        inner = st.none() | values
        if nest == "list":
            kind, values = pa.list_(kind), st.lists(inner, max_size=3)
        else:
            kind = pa.struct([("a", kind), ("b", pa.int32())])
            values = st.fixed_dictionaries({"a": inner, "b": st.none() | st.integers(0, 9)})
    column = pa.array(draw(st.lists(st.none() | values, max_size=8)), kind)
    start = draw(st.integers(0, len(column)))
    return column.slice(start, draw(st.integers(0, len(column))))


def shown(value: Any) -> Any:
    """Return a value in a form in which zone, fold and type count too."""
    if isinstance(value, list):
        return [shown(part) for part in value]
    if isinstance(value, dict):
        return {name: shown(part) for name, part in value.items()}
    if isinstance(value, dt.datetime):
        return repr(value), value.utcoffset()
    return type(value), repr(value)


@given(columns())
@example(
    pa.array(
        [micros(dt.datetime(2025, 10, 26, 0, 30)), micros(dt.datetime(2025, 10, 26, 1, 30))],
        pa.timestamp("us", "Europe/Berlin"),
    )
)
@example(
    pa.StructArray.from_arrays(
        [pa.array([1, 2], pa.timestamp("us", "UTC"))], ["a"], mask=pa.array([True, False])
    )
)
def test_values_are_those_of_arrow(column):
    assert shown(to_python(column)) == shown(column.to_pylist())
    chunked = pa.chunked_array([column, column], column.type)
    assert shown(to_python(chunked)) == shown(chunked.to_pylist())


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (pa.date32(), 2**31 - 1),
        (pa.timestamp("us"), 2**63 - 1),
        (pa.timestamp("us", "UTC"), -(2**63)),
        (pa.timestamp("us", "Europe/Berlin"), 2**63 - 1),
    ],
)
def test_a_time_that_python_cannot_hold_is_an_error(kind, number):
    storage = pa.int32() if kind == pa.date32() else pa.int64()
    with pytest.raises((OverflowError, ValueError)):
        to_python(pa.array([number], storage).view(kind))


def test_the_least_and_the_most_of_each_type_are_those_of_arrow():
    ends = [micros(dt.datetime.min), micros(dt.datetime.max)]
    for column in (
        pa.array(ends, pa.timestamp("us")),
        pa.array(ends, pa.timestamp("us", "UTC")),
        pa.array([dt.date.min, dt.date.max], pa.date32()),
        pa.array([-(2**63), 2**63 - 1], pa.int64()).view(pa.duration("us")),
        pa.array([decimal.Decimal("9" * 38), None], pa.decimal128(38, 0)),
    ):
        assert shown(to_python(column)) == shown(column.to_pylist())
