"""Values as a worker gets them, in every form of Spark's, become those that a state takes."""

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from statelog.errors import UsageError
from statelog.extensions.migration.initial_state import plain_struct
from statelog.spark import StatefulProcessor, with_initial_state
from statelog.spark.query.ddl import parse_ddl
from statelog.testing import ProcessorTester

MOMENT = dt.datetime(2024, 10, 27, 1, 30, 0, 250_000)
UTC_MOMENT = MOMENT.replace(tzinfo=dt.UTC)
SCHEMA = (
    "n bigint, s struct<a:int,b:array<string>>, m map<string,bigint>, ats array<timestamp>, "
    "raw binary, gap interval day to second, plain timestamp_ntz, by map<struct<x:int>,int>, text string"
)
CONVERTED = (
    2**60 + 1, (1, ["x", None]), {"p": 2**60 + 1, "q": None}, [UTC_MOMENT, None], b"\0\1",
    dt.timedelta(seconds=5), MOMENT, {(1,): 2}, "NaT",
)  # fmt: skip

PYTHON = [
    2**60 + 1, {"a": 1, "b": ["x", None]}, [("p", 2**60 + 1), ("q", None)], [MOMENT, None],
    bytearray(b"\0\1"), dt.timedelta(seconds=5), MOMENT, [({"x": 1}, 2)], "NaT",
]  # fmt: skip
PANDAS = [
    np.int64(2**60 + 1), Row(a=np.int32(1), b=np.array(["x", None], dtype=object)),
    {"p": 2**60 + 1, "q": None}, np.array([MOMENT, None], dtype="datetime64[ns]"), b"\0\1",
    pd.Timedelta(seconds=5), pd.Timestamp(MOMENT), {Row(x=1): 2}, "NaT",
]  # fmt: skip
NUMPY = [
    *PANDAS[:3], [np.datetime64(MOMENT, "ns"), None], b"\0\1", np.timedelta64(5, "s"),
    np.datetime64(MOMENT, "us"), [(Row(x=1), np.int32(2))], "NaT",
]  # fmt: skip
AWARE = [*PYTHON[:3], [UTC_MOMENT, None], *PYTHON[4:]]


@pytest.mark.parametrize("values", [PYTHON, PANDAS, NUMPY, AWARE])
def test_every_form_of_a_struct_becomes_one(values: list[Any]) -> None:
    convert = plain_struct(parse_ddl(SCHEMA), is_utc=True, path="total")
    names = parse_ddl(SCHEMA).names
    fields = dict(zip(names, values, strict=True))
    reordered = {name: fields[name] for name in sorted(names)}
    for struct in (fields, Row(**fields), reordered, Row(**reordered)):
        converted = convert(struct)
        assert converted == CONVERTED
        assert list(map(type, converted)) == list(map(type, CONVERTED))
    assert convert(dict.fromkeys(names)) == (None,) * len(names)


def test_a_timestamp_of_another_zone_is_left_to_spark() -> None:
    convert = plain_struct(T.StructType().add("at", T.TimestampType()), is_utc=False, path="total")
    assert convert({"at": MOMENT}) == (MOMENT,)
    assert convert({"at": pd.Timestamp(MOMENT)}) == (MOMENT,)
    assert convert({"at": pd.NaT}) == (None,)


def test_fields_are_found_by_their_names_at_every_depth() -> None:
    inner = "struct<a:int,b:int>"
    schema = f"s {inner}, l array<{inner}>, m map<{inner},array<{inner}>>"
    convert = plain_struct(parse_ddl(schema), is_utc=True, path="total")
    by_name, row = {"b": 2, "a": 1}, Row(b=2, a=1)
    converted = ((1, 2), [(1, 2), None, (1, 2)], {(1, 2): [(1, 2)]})
    for pairs in ({row: [by_name]}, [(by_name, [row])]):
        assert convert({"m": pairs, "l": [by_name, None, row], "s": by_name}) == converted


@pytest.mark.parametrize(
    ("struct", "path", "stored"),
    [
        ({"s": None}, "total", "s"),
        ({"s": None, "m": None, "l": None, "x": None}, "total", "s, m, l, x"),
        ({"s": None, "m": None, "x": None}, "total", "s, m, x"),
        ((None, None, None), "total", ""),
        ({"s": {"a": 1, "c": 2}, "m": None, "l": None}, "total.s", "a, c"),
        ({"s": None, "m": None, "l": [{"b": 1}]}, "total.l.element", "b"),
        ({"s": None, "m": [({"b": 1}, 1)], "l": None}, "total.m.key", "b"),
        ({"s": None, "m": [({"a": 1, "b": 1}, {"A": 1, "b": 2})], "l": None}, "total.m.value",
         "A, b"),
    ],
)  # fmt: skip
def test_other_fields_are_refused_by_their_names(struct: Any, path: str, stored: str) -> None:
    inner = "struct<a:int,b:int>"
    schema = parse_ddl(f"s {inner}, l array<{inner}>, m map<{inner},{inner}>")
    with pytest.raises(UsageError, match=re.escape(f"fields ({stored}) in {path!r}, but init")):
        plain_struct(schema, is_utc=True, path="total")(struct)


def test_spark_sends_what_it_would_send_for_the_values_of_a_processor() -> None:
    schema = parse_ddl(SCHEMA)
    of_processor = (
        PYTHON[0], Row(a=1, b=["x", None]), dict(PYTHON[2]), [UTC_MOMENT, None], b"\0\1",
        *PYTHON[5:7], {Row(x=1): 2}, PYTHON[8],
    )  # fmt: skip
    convert = plain_struct(schema, is_utc=True, path="total")
    converted = convert(dict(zip(schema.names, PYTHON, strict=True)))
    assert schema.toInternal(converted) == schema.toInternal(of_processor)


class Nested(StatefulProcessor):
    """Shows a value with a struct in it."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "last struct<item:string,at:timestamp>, n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        last, n = self.seen.get()
        yield Row(item=last.item, at=last.at, n=n)

    def close(self) -> None:
        pass


def test_statelog_takes_the_structs_too() -> None:
    state = {"seen": {"last": {"item": "pen", "at": MOMENT}, "n": 7}}
    row = Row(key="a", statelog_state=state, statelog_timers=None, statelog_checkpoint=3)
    tester = ProcessorTester(
        with_initial_state(Nested()),
        initialStateRow=[("a", row)],
        outputStructType="item string, at timestamp, n int",
    )
    local = UTC_MOMENT.astimezone().replace(tzinfo=None)
    assert tester.test("a", [Row(key="a")]) == [Row(item="pen", at=local, n=7)]


def test_whole_numbers_come_back_from_floats_or_are_refused() -> None:
    schema = T.StructType([T.StructField("tags", T.ArrayType(T.LongType()))])
    convert = plain_struct(schema, is_utc=False, path="total")
    assert ([1, None, 2**53 - 1],) == convert({"tags": np.array([1, np.nan, 2**53 - 1])})
    assert ([2**60 + 1],) == convert({"tags": np.array([2**60 + 1])})
    with pytest.raises(UsageError, match=r"1\.152\d+e\+18.* in an array with nulls"):
        convert({"tags": np.array([2**60 + 1, np.nan])})
