"""A processor with initial state from a frame, through the operator of statelog's own tester."""

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
from statelog.extensions.migration import initial_state
from statelog.extensions.migration.initial_state import plain_struct
from statelog.spark import StatefulProcessor, with_initial_state
from statelog.spark.query.ddl import parse_ddl
from statelog.testing import ProcessorTester

HOUR = 3_600_000
OUTPUT = "key string, shown string"


class Shows(StatefulProcessor):
    """Shows its state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n bigint", HOUR)
        self.items = handle.getListState("items", "item string", HOUR)
        self.counts = handle.getMapState("counts", "item string", "n int", HOUR)
        handle.getListState("dropped", "n int")
        handle.deleteIfExists("dropped")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        parts = [
            self.total.get(),
            [item for (item,) in self.items.get()],
            {item: n for (item,), (n,) in self.counts.iterator()},
            list(self.handle.listTimers()),
        ]
        yield Row(key=key[0], shown=repr(parts))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key[0], shown=f"fired at {expiredTimerInfo.getExpiryTimeInMs()}")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        raise AssertionError("the processor's own method is not for this frame")

    def close(self) -> None:
        pass


STATE = {
    "total": {"n": 7},
    "items": [{"item": "pen"}, {"item": "ink"}],
    "counts": [
        {"key": {"item": "pen"}, "value": {"n": 1}},
        {"key": {"item": "ink"}, "value": {"n": 2}},
    ],
}


def row_of(live_ms: int, gone_ms: int, **changes: Any) -> dict[str, Any]:
    return {
        "key": "a", "statelog_state": STATE, "statelog_timers": [HOUR, 2 * HOUR],
        "statelog_expiry": {
            "total": live_ms,
            "items": [gone_ms, live_ms],
            "counts": [live_ms, gone_ms],
        },
        "statelog_checkpoint": 3, **changes,
    }  # fmt: skip


def starting(row: dict[str, Any]) -> ProcessorTester:
    return ProcessorTester(
        with_initial_state(Shows()), timeMode="ProcessingTime", outputStructType=OUTPUT,
        initialStateRow=[("a", Row(**row))],
    )  # fmt: skip


def shown_with(row: dict[str, Any]) -> str:
    """Return the state of the key after its initial state, as text."""
    (shown,) = starting(row).test("a", [Row(key="a")])
    return str(shown.shown).replace("Row(n=7)", "(7,)")


def test_state_that_has_not_expired_is_restored_in_its_order() -> None:
    timers = [HOUR, 2 * HOUR]
    for row, state in (
        (row_of(HOUR, 0), [(7,), ["ink"], {"pen": 1}, timers]),  # the tester's time is 0
        (row_of(0, 0), [None, [], {}, timers]),
    ):
        assert shown_with(row) == repr(state)
    row = row_of(0, 0, statelog_timers=None, statelog_state={**STATE, "items": None})
    del row["statelog_expiry"]
    assert shown_with(row) == repr([(7,), [], {"pen": 1, "ink": 2}, []])


def test_list_elements_are_put_one_by_one_for_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_state, "lists_are_sent_as_frames", lambda: True)
    assert "['pen', 'ink']" in shown_with(row_of(2**62, 2**62))


def test_timers_fire() -> None:
    tester = starting(row_of(1, 1))
    assert tester.setProcessingTime(HOUR + 1) == [Row(key="a", shown=f"fired at {HOUR}")]


@pytest.mark.parametrize(
    ("state", "match"),
    [
        ({"dropped": [{"n": 1}]}, "the variable 'dropped', which init"),
        ({"total": [{"n": 1}]}, "the kind of 'total' in the initial state differs"),
        ({"items": {"n": 1}}, "the kind of 'items' in the initial state differs"),
        ({"total": {"n": 1, "m": 2}}, r"fields \(n, m\) in 'total', but init"),
        (
            {"counts": [{"key": {"n": 1}, "value": {"n": 1}}]},
            r"fields \(n\) in 'counts.key', but init\(\) declares \(item\)",
        ),
    ],
)
def test_state_that_the_processor_does_not_declare_is_rejected(
    state: dict[str, Any], match: str
) -> None:
    row = row_of(0, 0, statelog_state=state)
    del row["statelog_expiry"]
    with pytest.raises(Exception, match=match) as raised:
        starting(row)
    assert isinstance(raised.value.__cause__, UsageError)


def test_a_frame_of_something_else_is_rejected() -> None:
    with pytest.raises(Exception, match="the column statelog_state; it has key, n; pass the frame"):
        starting({"key": "a", "n": 1})


def test_types_that_cannot_be_read_from_text_are_asked_for() -> None:
    variable = initial_state._ValueVariable("total", None, "n uncommon")
    for is_utc in (False, True):
        with pytest.raises(UsageError, match="Declare them as a StructType"):
            variable.value({"n": 7}, is_utc)


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


def test_whole_numbers_come_back_from_floats_or_are_refused() -> None:
    schema = T.StructType([T.StructField("tags", T.ArrayType(T.LongType()))])
    convert = plain_struct(schema, is_utc=False, path="total")
    assert ([1, None, 2**53 - 1],) == convert({"tags": np.array([1, np.nan, 2**53 - 1])})
    assert ([2**60 + 1],) == convert({"tags": np.array([2**60 + 1])})
    with pytest.raises(UsageError, match=r"1\.152\d+e\+18.* in an array with nulls"):
        convert({"tags": np.array([2**60 + 1, np.nan])})
