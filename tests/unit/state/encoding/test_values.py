"""Types through Arrow and back, copies, and keys: those that are equal in Spark have one form."""

import datetime as dt
import decimal
import math
import struct
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.support.values.time_zones import REPEATED_HOURS, ZONES

from statelog.errors import UsageError
from statelog.state.encoding.converters import with_equal_floats
from statelog.state.encoding.values import KeyCodec, MapKeyCodec, StructCodec

NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.bool_(), True),
        (pa.int32(), -5),
        (pa.float64(), 0.1),
        (pa.float32(), 0.5),
        (pa.string(), "ä"),
        (pa.binary(), b"\x00\xff"),
        (pa.decimal128(10, 2), decimal.Decimal("1.25")),
        (pa.date32(), dt.date(2011, 12, 9)),
        (pa.timestamp("us"), dt.datetime(2011, 12, 9, 12, 30, 0, 5)),
        (pa.timestamp("us", "UTC"), dt.datetime(2011, 12, 9, 12, 30)),
        (pa.duration("us"), dt.timedelta(seconds=3)),
        (NESTED, (1, ["x", None])),
        (pa.list_(NESTED), [(1, None), None]),
        (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": None}),
        (pa.map_(pa.string(), NESTED), {"a": (1, [])}),
    ],
)
def test_a_value_comes_back_as_it_was_normalized(kind, value):
    codec = StructCodec(pa.schema([("f", kind)]))
    normal = codec.normalize((value,))
    assert (value,) == normal
    assert [normal, (None,)] == codec.decode(codec.encode([normal, (None,)]))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.float64(), 3, 3.0),
        (pa.int64(), np.int64(4), 4),
        (pa.string(), 5, "5"),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.binary(), bytearray(b"x"), b"x"),
        (pa.decimal128(10, 2), 2, decimal.Decimal(2)),
        (NESTED, {"b": ["x"], "a": 1}, (1, ["x"])),
        (pa.bool_(), np.bool_(True), True),
        (pa.float64(), np.float32(0.5), 0.5),
        (pa.string(), np.str_("x"), "x"),
        (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
        (pa.list_(pa.int64()), (1, np.int8(2)), [1, 2]),
        (pa.map_(pa.string(), pa.int64()), {"a": np.int16(1)}, {"a": 1}),
        (pa.timestamp("us"), pd.Timestamp("2011-12-09 12:30"), dt.datetime(2011, 12, 9, 12, 30)),
        (
            pa.timestamp("us"),
            np.datetime64("2011-12-09T12:30", "us"),
            dt.datetime(2011, 12, 9, 12, 30),
        ),
        (pa.date32(), np.datetime64("2011-12-09"), dt.date(2011, 12, 9)),
        (pa.duration("us"), pd.Timedelta("3s"), dt.timedelta(seconds=3)),
        (pa.duration("us"), np.timedelta64(3, "s"), dt.timedelta(seconds=3)),
    ],
)
def test_similar_values_take_the_field_type(kind, value, expected):
    codec = StructCodec(pa.schema([("f", kind)]))
    (normal,) = codec.normalize((value,))
    assert (expected, type(expected)) == (normal, type(normal))
    assert [(expected,)] == codec.decode(codec.encode([(normal,)]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), True),
        (pa.int64(), 1.0),
        (pa.int64(), "1"),
        (pa.float64(), "1"),
        (pa.string(), b"x"),
        (pa.date32(), dt.datetime(2020, 1, 1)),
        (pa.list_(pa.int64()), "12"),
        (pa.timestamp("us"), 1),
    ],
)
def test_a_value_of_another_type_is_refused(kind, value):
    codec = StructCodec(pa.schema([("f", kind)]), what="state 's'")
    with pytest.raises(UsageError, match="state 's': field 'f' takes"):
        codec.normalize((value,))


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.duration("us")])
def test_pandas_sign_of_a_null_is_a_null(kind):
    codec = StructCodec(pa.schema([("f", kind)]))
    assert (None,) == codec.normalize((pd.NaT,))


@pytest.mark.parametrize("value", ["ab", b"ab", {"a": 1, "b": 2}, 5, object()])
def test_a_value_that_is_no_tuple_is_refused(value):
    codec = StructCodec(pa.schema([("a", pa.string()), ("b", pa.string())]), what="state 's'")
    with pytest.raises(UsageError, match=r"state 's' takes a tuple of \(a, b\)"):
        codec.normalize(value)


def test_text_with_a_letter_for_each_field_is_a_map_key_as_on_spark():
    single = MapKeyCodec(pa.schema([("a", pa.string())]), what="a map key of state 's'")
    pair = MapKeyCodec(pa.schema([("a", pa.string()), ("b", pa.string())]))
    assert ("x",) == single.normalize("x") == single.normalize(("x",))
    assert ("x", "y") == pair.normalize("xy")
    for refused in ("", "xy", b"x", {"x": 1}):
        with pytest.raises(UsageError, match=r"a map key of state 's' takes a tuple of \(a\)"):
            single.normalize(refused)
    number = MapKeyCodec(pa.schema([("a", pa.int64())]), what="a map key of state 's'")
    with pytest.raises(UsageError, match="field 'a' takes int64, not str '5'"):
        number.normalize("5")


def test_none_is_refused_where_the_schema_has_not_null():
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    codec = StructCodec(
        pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", inner)]), what="s"
    )
    assert (1, None) == codec.normalize((1, None))
    for value in [(None, None), (1, (None,)), (None, None)]:
        with pytest.raises(UsageError, match="NOT NULL"):
            codec.normalize(value)


def test_a_struct_without_fields_is_refused():
    with pytest.raises(UsageError, match="without fields"):
        StructCodec(pa.schema([("f", pa.list_(pa.struct([])))]))


def test_a_stored_list_does_not_follow_the_users_list():
    codec = StructCodec(pa.schema([("f", pa.list_(pa.int64()))]))
    values = [1, 2]
    stored = codec.normalize((values,))
    values.append(3)
    assert ([1, 2],) == stored


OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
NEGATIVE = [-0.0, OTHER_NAN, None, 1.5]
POSITIVE = [0.0, math.nan, None, 1.5]
FLOATS: dict[str, tuple[pa.DataType, Any]] = {
    "double": (pa.float64(), lambda value: value),
    "float": (pa.float32(), lambda value: value),
    "struct": (pa.struct([("x", pa.float64()), ("n", pa.int32())]), lambda x: {"x": x, "n": 1}),
    "list": (pa.list_(pa.float64()), lambda x: [x, 2.0]),
    "struct of lists": (pa.struct([("x", pa.list_(pa.float32()))]), lambda x: {"x": [x]}),
}
MOMENTS: dict[str, Any] = {
    "timestamp": (lambda moment: moment, lambda value: value),
    "struct": (
        lambda moment: pa.struct([("start", moment), ("end", moment)]),
        lambda x: {"start": x, "end": x},
    ),
    "list": (lambda moment: pa.list_(moment), lambda x: [x]),
}


# `repr` shows the sign of a zero.
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("start", [0, 1, 3])
def test_both_zeros_are_0_and_all_nans_are_one(name, start):
    kind, value = FLOATS[name]
    codec = KeyCodec(pa.schema([("k", kind)]))
    negative = pa.array([value(number) for number in NEGATIVE], kind).slice(start)
    expected = pa.array([value(number) for number in POSITIVE], kind).slice(start)
    assert repr(expected.to_pylist()) == repr(with_equal_floats(negative).to_pylist())
    keys = codec.decode([negative])
    assert repr(codec.decode([expected])) == repr(keys)
    assert codec.decode([expected]) == keys  # one NaN: it equals itself as the same object
    assert keys == [codec.to_hashable((key,)) for key in negative.to_pylist()]
    assert repr(expected.to_pylist()) == repr(codec.encode(keys)[0].to_pylist())


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("name", MOMENTS)
def test_a_moment_is_one_key_in_every_time_zone(zone, name):
    kind_of, value = MOMENTS[name]
    codec = KeyCodec(pa.schema([("k", kind_of(pa.timestamp("us", "UTC")))]))
    moments = REPEATED_HOURS[zone]
    in_utc = pa.array([value(moment) for moment in moments], kind_of(pa.timestamp("us", "UTC")))
    in_zone = pa.array([value(moment) for moment in moments], kind_of(pa.timestamp("us", zone)))
    from_log, from_rows = codec.decode([in_utc]), codec.decode([in_zone])
    assert from_log == from_rows
    assert len(moments) == len({*from_log, *from_rows})
    assert from_log == [codec.to_hashable((key,)) for key in in_zone.to_pylist()]
    assert in_utc.to_pylist() == codec.encode(from_rows)[0].to_pylist()


def test_a_time_without_a_zone_is_local():
    codec = KeyCodec(pa.schema([("k", pa.timestamp("us", "UTC"))]))
    moment = dt.datetime(2024, 5, 6, 7, 8, 9)
    assert codec.to_hashable((moment,)) == codec.to_hashable((moment.astimezone(),))
    local = KeyCodec(pa.schema([("k", pa.timestamp("us"))]))
    assert local.to_hashable((moment,)) == (moment,)


@pytest.mark.parametrize("name", ["double", "float", "struct"])
def test_a_key_of_a_map_has_one_zero_and_one_nan(name):
    kind, value = FLOATS[name]
    codec = MapKeyCodec(pa.schema([("k", kind)]))
    negative = [codec.normalize((value(number),)) for number in NEGATIVE]
    positive = [codec.normalize((value(number),)) for number in POSITIVE]
    assert repr(positive) == repr(negative)
    assert len(POSITIVE) == len({*positive, *negative})
    written = pa.array([value(number) for number in NEGATIVE], kind)
    assert positive == codec.decode([written])
    assert repr(positive) == repr(codec.decode([written]))
