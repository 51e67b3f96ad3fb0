"""Columns in the types of another time zone, or of NOT NULL fields."""

from typing import Any

import pyarrow as pa
import pytest

from statelog.extensions.columns.slots.keys import zoned, zoned_field
from statelog.spark.rows.types import known_zone
from statelog.state.encoding.converters import relabelled

IN_UTC, IN_BERLIN = pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")


def pair_of(at: pa.DataType, *, nullable: bool) -> pa.DataType:
    return pa.struct([pa.field("at", at, nullable=nullable), pa.field("n", pa.int32())])


def kinds(at: pa.DataType, *, nullable: bool) -> list[pa.DataType]:
    pair = pair_of(at, nullable=nullable)
    return [
        at,
        pair,
        pa.list_(pa.field("element", pair, nullable=nullable)),
        pa.map_(pa.field("key", at, nullable=False), pa.field("value", pair, nullable=nullable)),
    ]


PAIR = {"at": 5, "n": None}
VALUES: list[list[Any]] = [
    [1, None, 2, 3],
    [PAIR, None, PAIR, None],
    [[PAIR], None, [], [PAIR, PAIR]],
    [[(1, PAIR)], None, [], [(2, PAIR), (3, PAIR)]],
]


@pytest.mark.parametrize("which", range(4), ids=["time", "struct", "list", "map"])
@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_values_stay_and_types_change(which: int, start: int) -> None:
    strict = kinds(IN_BERLIN, nullable=False)[which]
    stored = kinds(IN_UTC, nullable=True)[which]
    column = pa.array(VALUES[which], strict).slice(start)
    in_utc = zoned(column, "UTC")
    assert stored == in_utc.type == zoned_field(pa.field("x", strict), "UTC").type
    assert pa.array(VALUES[which][start:], stored).to_pylist() == in_utc.to_pylist()
    back = relabelled(in_utc, strict)
    back.validate(full=False)
    assert strict == back.type
    assert column.to_pylist() == back.to_pylist()


def test_a_local_time_has_no_zone() -> None:
    column = pa.array([1, None], pa.timestamp("us"))
    assert zoned(column, "Europe/Berlin") is column


def test_a_time_zone_that_only_java_knows_is_utc() -> None:
    known = ["UTC", "Etc/UTC", "Europe/Berlin", "+00:00", "-08:00"]
    assert known == list(map(known_zone, known))
    assert ["UTC"] * 4 == list(map(known_zone, ["Z", "PST", "GMT+1", "no zone"]))
