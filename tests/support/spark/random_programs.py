"""
Random programs of state, TTL and timer calls, and the processors that carry them out.

A program is a list of calls by name and sample number, and travels as JSON in an input row. Where
docs/reference/state-variables.md and docs/explanation/time.md say that Spark and statelog differ,
no program goes: no map and no timers are read in order, no iterator is held over a write, nothing is stored that does not fit its
type, no timer deletes another one that is due, and no null is in a key column of integers, which
Spark's pandas flavour shows as floats.
"""

import datetime as dt
import decimal
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.support.spark.versions import needs

from statelog.spark import transform_with_state, transform_with_state_in_pandas

INPUT = "key string, part string, at int, time timestamp, program string"
KEYS = ["key", "part"]
OUTPUT = "key string, at string, seen string"
NEVER_MS = 4_000_000_000_000
HOUR_MS = 3_600_000
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EPOCH_MS = int(EPOCH.timestamp() * 1000)
SECONDS_PER_BATCH = 30

FLAT = {
    "value": [(n, t) for n in (None, -(2**63), 2**63 - 1, 7) for t in (None, "", "x", "naïve")],
    "list": [(n,) for n in (None, 1, -(2**31), 2**31 - 1)],
    "map": [(n,) for n in (0.0, -1.5, 2.25, None)],
}
USER_KEYS = [(name, part) for name in ("a", "b", "ü", "") for part in (-1, 0, 1)]
NESTED_VALUE = (
    "time timestamp, tags array<string>, part struct<a: int, b: string>, "
    "amounts map<string, decimal(7,2)>, raw binary, day date, ratio float, is boolean"
)
NESTED_PART = "part struct<a: int, b: string>, tags array<int>"
PARTS = [({"a": 1, "b": "x"}, [1, None]), ({"a": None, "b": None}, []), (None, None)]
NESTED = {
    "value": [
        (
            EPOCH,
            ["a", None],
            {"a": 7, "b": "ü"},
            {"x": decimal.Decimal("0.50"), "y": None},
            b"\x00\xff",
            dt.date(1, 1, 1),
            0.5,
            True,
        ),
        (EPOCH, [], {"a": None, "b": None}, {}, b"", dt.date(2026, 2, 28), -1.25, False),
        (None,) * 8,
    ],
    "list": PARTS,
    "map": PARTS,
}
NESTED_KEYS = [
    ("a", dt.date(2026, 1, 1), decimal.Decimal("1.50")),
    ("", None, decimal.Decimal("-0.25")),
    (None, dt.date(1970, 1, 1), None),
]
READS = ("iterator", "keys", "values")  # of a map, in each store's own order


class Interpreter(StatefulProcessor):
    """
    Does what the rows say, and yields what it saw.

    A key that ends in 9 does not read its rows.
    """

    def __init__(self, has_ttl: bool = True) -> None:
        self.has_ttl = has_ttl

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.states: dict[str, Any] = {}
        lives = {"": None, "_long": HOUR_MS, "_short": 1} if self.has_ttl else {"": None}
        for suffix, ttl in lives.items():
            self.states["value" + suffix] = handle.getValueState(
                "value" + suffix, "number bigint, text string", ttl
            )
            self.states["list" + suffix] = handle.getListState("list" + suffix, "number int", ttl)
            self.states["map" + suffix] = handle.getMapState(
                "map" + suffix, "name string, part int", "amount double", ttl
            )
        self.states["value_nested"] = handle.getValueState("value_nested", NESTED_VALUE)
        self.states["list_nested"] = handle.getListState("list_nested", NESTED_PART)
        self.states["map_nested"] = handle.getMapState(
            "map_nested", "name string, day date, amount decimal(5,2)", NESTED_PART
        )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if key[0].endswith("9"):
            yield self.told(key, "unread", [self.do(name, "get") for name in ("value", "list")])
            return
        for row in sorted(rows, key=lambda row: row.at):
            yield self.told(key, str(row.at), [self.do(*call) for call in json.loads(row.program)])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        due = timerValues.getCurrentWatermarkInMs()
        if due < 0 or self.has_ttl:
            due = timerValues.getCurrentProcessingTimeInMs()
        seen = [self.do("value", "get"), self.do("timers", "list")]
        rng = random.Random(f"{key[0]} {at}")
        for name, method, *samples in program(rng, self.has_ttl):
            if method != "deleteTimer" or samples[0] > due:
                seen.append(self.do(name, method, *samples))
        yield self.told(key, f"timer {at}", seen)

    def told(self, key: Any, at: str, seen: list[str]) -> Any:
        return Row(key=repr(key), at=at, seen="\n".join(seen))

    def do(self, name: str, method: str, *samples: Any) -> str:
        """Do one call, and return its result as text."""
        if name == "timers":
            if method == "list":
                return repr(sorted(self.handle.listTimers()))
            return repr(getattr(self.handle, method)(*samples))
        kind, _, variant = name.partition("_")
        values, keys = (NESTED, NESTED_KEYS) if variant == "nested" else (FLAT, USER_KEYS)
        arguments: list[Any] = [
            [values[kind][number] for number in sample]
            if isinstance(sample, list)
            else (keys if kind == "map" and place == 0 else values[kind])[sample]
            for place, sample in enumerate(samples)
        ]
        seen = getattr(self.states[name], method)(*arguments)
        if method in READS:
            return repr(sorted(seen, key=repr))
        return repr(list(seen)) if kind == "list" and method == "get" else repr(seen)


class InterpreterInPandas(Interpreter):
    """The same in the pandas flavour; what a row saw is a frame of its own."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if key[0].endswith("9"):
            return super().handleInputRows(key, rows, timerValues)
        in_rows = (row for frame in rows for row in frame.itertuples())
        return super().handleInputRows(key, in_rows, timerValues)

    def told(self, key: Any, at: str, seen: list[str]) -> Any:
        return pd.DataFrame({"seen": ["\n".join(seen)], "at": [at], "key": [repr(key)]})


FLAVOURS = {
    "row": (transform_with_state, Interpreter),
    "pandas": (transform_with_state_in_pandas, InterpreterInPandas),
}
BESIDE_SPARK = [
    "row",
    pytest.param("pandas", marks=needs((4, 1), "null numbers in the list state of frames")),
]
"""The flavours, as parameters of a test that compares with Spark's own operator."""


def program(rng: random.Random, has_ttl: bool = True) -> list[list[Any]]:
    """Return a program of 1 to 12 calls."""
    return [call(rng, has_ttl) for _ in range(rng.randint(1, 12))]


def call(rng: random.Random, has_ttl: bool) -> list[Any]:
    kind = rng.choice(["value", "list", "map", "timers"])
    if kind == "timers":
        at = timer(rng, has_ttl)
        calls: list[list[Any]] = [["list"], *[["registerTimer", at]] * 2, ["deleteTimer", at]]
        return [kind, *rng.choice(calls)]
    variant = rng.choice(["", "", "nested", *(["long", "short"] if has_ttl else [])])
    values = (NESTED if variant == "nested" else FLAT)[kind]
    new = rng.randrange(len(values))
    calls = [["exists"], ["clear"]]
    match kind:
        case "value":
            calls += [["get"], ["get"], ["update", new], ["update", new]]
        case "list":
            calls += [["get"], ["get"], ["appendValue", new]]
            if variant != "nested":  # Spark infers types from the list, and fails on some
                some = [rng.randrange(len(values)) for _ in range(rng.randint(1, 3))]
                calls += [["put", some], ["appendList", some]]
        case _:
            key = rng.randrange(len(NESTED_KEYS if variant == "nested" else USER_KEYS))
            calls += [[method, key] for method in ("getValue", "containsKey", "removeKey")]
            calls += [[method] for method in READS] + [["updateValue", key, new]] * 3
    return [f"{kind}_{variant}" if variant else kind, *rng.choice(calls)]


def timer(rng: random.Random, has_ttl: bool) -> int:
    """Return a time in ms that is due for both runs, or for none, in any given micro-batch."""
    if has_ttl:  # processing time: at once, or never, because the runs have different clocks
        return rng.choice([rng.randint(1, 5), NEVER_MS + rng.randint(1, 3)])
    return EPOCH_MS + 1000 * rng.randint(-10, 6 * SECONDS_PER_BATCH)


def batch_of(
    rng: random.Random, number: int, keys: int, has_ttl: bool = True
) -> list[tuple[Any, ...]]:
    """Return the rows of one micro-batch."""
    now = number * SECONDS_PER_BATCH
    return [
        (
            f"k{key}",
            "xy"[: key % 3] or None,
            at,
            EPOCH + dt.timedelta(seconds=now - rng.choice([0, 0, 1, 15, 45, 90])),
            json.dumps(program(rng, has_ttl)),
        )
        for key in range(keys)
        if rng.random() < 0.8
        for at in range(rng.randint(1, 2))
    ]


def by_key(rows: Sequence[Row]) -> dict[str, list[tuple[str, str]]]:
    """Return what each key saw."""
    grouped: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        grouped.setdefault(row.key, []).append((row.at, row.seen))
    return {key: sorted(values) for key, values in sorted(grouped.items())}
