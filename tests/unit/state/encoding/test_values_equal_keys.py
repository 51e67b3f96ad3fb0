"""Keys that are equal in Spark have one form, whatever their bytes and their time zone."""

import datetime as dt
import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from tests.support.values.time_zones import REPEATED_HOURS, ZONES

from statelog.state.encoding.converters import with_equal_floats
from statelog.state.encoding.values import KeyCodec, MapKeyCodec

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
    "timestamp": (lambda at: at, lambda value: value),
    "struct": (
        lambda at: pa.struct([("start", at), ("end", at)]),
        lambda x: {"start": x, "end": x},
    ),
    "list": (lambda at: pa.list_(at), lambda x: [x]),
}


def bits(value: Any) -> str:
    """Return a value as text that shows the sign of zeros."""
    return repr(value)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("start", [0, 1, 3])
def test_both_zeros_are_0_and_all_nans_are_one(name: str, start: int) -> None:
    kind, value = FLOATS[name]
    codec = KeyCodec(pa.schema([("k", kind)]))
    found = pa.array([value(one) for one in NEGATIVE], kind).slice(start)
    expected = pa.array([value(one) for one in POSITIVE], kind).slice(start)
    assert bits(expected.to_pylist()) == bits(with_equal_floats(found).to_pylist())
    keys = codec.decode([found])
    assert bits(codec.decode([expected])) == bits(keys)
    assert codec.decode([expected]) == keys  # one NaN: it equals itself as the same object
    assert keys == [codec.to_hashable((one,)) for one in found.to_pylist()]
    assert bits(expected.to_pylist()) == bits(codec.encode(keys)[0].to_pylist())


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("name", MOMENTS)
def test_a_moment_is_one_key_in_every_time_zone(zone: str, name: str) -> None:
    kind_of, value = MOMENTS[name]
    codec = KeyCodec(pa.schema([("k", kind_of(pa.timestamp("us", "UTC")))]))
    moments = REPEATED_HOURS[zone]
    in_utc = pa.array([value(moment) for moment in moments], kind_of(pa.timestamp("us", "UTC")))
    in_zone = pa.array([value(moment) for moment in moments], kind_of(pa.timestamp("us", zone)))
    from_log, from_rows = codec.decode([in_utc]), codec.decode([in_zone])
    assert from_log == from_rows
    assert len(moments) == len({*from_log, *from_rows})
    assert from_log == [codec.to_hashable((one,)) for one in in_zone.to_pylist()]
    assert in_utc.to_pylist() == codec.encode(from_rows)[0].to_pylist()


def test_a_time_without_a_zone_is_local() -> None:
    codec = KeyCodec(pa.schema([("k", pa.timestamp("us", "UTC"))]))
    moment = dt.datetime(2024, 5, 6, 7, 8, 9)
    assert codec.to_hashable((moment,)) == codec.to_hashable((moment.astimezone(),))
    local = KeyCodec(pa.schema([("k", pa.timestamp("us"))]))
    assert local.to_hashable((moment,)) == (moment,)


@pytest.mark.parametrize("name", ["double", "float", "struct"])
def test_a_key_of_a_map_has_one_zero_and_one_nan(name: str) -> None:
    kind, value = FLOATS[name]
    codec = MapKeyCodec(pa.schema([("k", kind)]))
    negative = [codec.normalize((value(one),)) for one in NEGATIVE]
    positive = [codec.normalize((value(one),)) for one in POSITIVE]
    assert bits(positive) == bits(negative)
    assert len(POSITIVE) == len({*positive, *negative})
    written = pa.array([value(one) for one in NEGATIVE], kind)
    assert positive == codec.decode([written])
    assert bits(positive) == bits(codec.decode([written]))
