"""Keys, rows, state values and output of every type are what Spark's operator makes of them."""

import datetime as dt
import decimal
import math
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark.streams import BatchSource, Job, configured, run_on_spark

ATOMIC = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [0.5, -math.inf],
    "double": [0.1, 1e300],
    "decimal(10,2)": [decimal.Decimal("-0.10"), decimal.Decimal("12345678.90")],
    "decimal(38,18)": [decimal.Decimal("1.000000000000000001"), decimal.Decimal(-7)],
    "string": ["", "Grüße 🌍"],
    "binary": [b"", b"\x00\xff"],
    "date": [dt.date(1, 1, 1), dt.date(2011, 12, 9)],
    "timestamp": [
        dt.datetime(2011, 12, 9, 12, 50, 0, 123456, dt.UTC),
        dt.datetime(1999, 7, 1, 4, 30, tzinfo=dt.UTC),
    ],
    "timestamp_ntz": [dt.datetime(2011, 12, 9, 12, 50), dt.datetime(1969, 12, 31, 23, 59, 59, 1)],
}
NESTED = {
    "struct<a: int, b: string>": [{"a": 1, "b": None}, {"a": None, "b": "x"}],
    "array<int>": [[], [1, None, -3]],
    "array<struct<at: timestamp, is: boolean>>": [
        [{"at": dt.datetime(2011, 12, 9, tzinfo=dt.UTC), "is": True}],
        [None],
    ],
    "map<string, decimal(5,1)>": [{}, {"a": decimal.Decimal("0.5"), "b": None}],
    "map<string, array<date>>": [{"a": [dt.date(2020, 2, 29), None]}, {"": None}],
    "struct<s: struct<m: map<string, bigint>>>": [{"s": {"m": {"k": 1}}}, {"s": None}],
}
KINDS = [*ATOMIC, *NESTED]
COLUMNS = [f"c{number}" for number in range(len(KINDS))]
FIELDS = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, KINDS, strict=True))
KEYS = COLUMNS[: len(ATOMIC)]


def rows() -> list[tuple[Any, ...]]:
    """Return rows with either value, and null, in every column."""
    values = {**ATOMIC, **NESTED}
    first, second = ([values[kind][sample] for kind in KINDS] for sample in (0, 1))
    return [(1, *first), (1, *first), (2, *second), (3, *([None] * len(KINDS)))]


class Witness(StatefulProcessor):
    """Yields what it was given, as text."""

    def init(self, handle):
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key, rows, timerValues):
        texts = sorted(map(repr, rows))
        count = (self.count.get() or (0,))[0] + len(texts)
        self.count.update((count,))
        yield Row(key=repr(key), rows="\n".join(texts), count=count)


WITNESSED = "key string, rows string, count bigint"


def source_of(spark: SparkSession, tmp_path: Path) -> BatchSource:
    source = BatchSource(spark, tmp_path / "in", f"id int, {FIELDS}")
    source.add(rows())
    return source


def test_keys_and_rows_are_those_of_spark(spark, tmp_path, zone):
    check_over_a_restart(Job(source_of(spark, tmp_path), tmp_path, KEYS, Witness(), WITNESSED))


def check_over_a_restart(job: Job) -> None:
    """Check that two runs with different numbers of tasks give what Spark's operator gives."""
    job.run(tasks=2)
    job.source.add(rows())
    job.run(tasks=3)
    expected = [sorted(batch) for batch in run_on_spark(job)]
    assert expected == [sorted(batch) for batch in job.take()]


class Keeper(StatefulProcessor):
    """Keeps a sample for each id in states of every kind, and yields what they held before."""

    def __init__(self, samples: dict[int, tuple[Any, ...]]) -> None:
        self.samples = samples

    def init(self, handle):
        self.value = handle.getValueState("value", FIELDS)
        self.list = handle.getListState("list", FIELDS)
        self.map = handle.getMapState("map", MAP_KEY, FIELDS)

    def handleInputRows(self, key, rows, timerValues):
        seen = [
            repr(self.value.get()),
            repr(list(self.list.get())),
            repr(sorted(self.map.keys(), key=repr)),
            repr(sorted(self.map.values(), key=repr)),
            repr(sorted(self.map.iterator(), key=repr)),
        ]
        values = self.samples[key[0]]
        self.value.update(values)
        self.list.appendValue(values)
        user_key = values[: len(ATOMIC)]
        self.map.updateValue(user_key, values)
        seen += [repr(self.value.get()), repr(self.map.getValue(user_key))]
        yield Row(id=key[0], seen="\n".join(seen))


MAP_KEY = ", ".join(f"k{number} {kind}" for number, kind in enumerate(ATOMIC))


def test_state_values_come_back_as_on_spark(spark, tmp_path):
    samples = {row[0]: row[1:] for row in rows()}
    source = source_of(spark, tmp_path)
    check_over_a_restart(Job(source, tmp_path, ["id"], Keeper(samples), "id int, seen string"))


OUTPUT_KINDS = {
    **{kind: values[0] for kind, values in ATOMIC.items()},
    "decimal(7,2)": 12,  # an int for a decimal
    "decimal(20,3)": decimal.Decimal("1.5"),  # fewer digits
    "double": 3,
    "float": 1e-3,
    "timestamp": dt.datetime(2011, 12, 9, 12, 50),  # no zone
    "timestamp_ntz": dt.datetime(2011, 7, 9, 12, 50),
    "binary": bytearray(b"bytes"),
    "string": "x" * 300_000,
    "struct<b: string, a: int>": Row(a=1, b="by name"),
    "struct<b: int, a: struct<d: int, c: int>>": Row(a=Row(c=1, d=2), b=3),
    "array<struct<b: int, a: int>>": [Row(a=1, b=2), None, {"b": 4, "a": 3}],
    "map<string, struct<b: int, a: int>>": {"k": Row(a=1, b=2), "n": None},
    "struct<a: int, b: string>": (5, "by position"),
    "map<int, array<map<string, double>>>": {1: [{"x": 0.5, "y": None}]},
    "array<decimal(5,1)>": [decimal.Decimal("1.5"), 2],
}
OUTPUT_COLUMNS = [f"c{number}" for number in range(len(OUTPUT_KINDS))]
OUTPUTS = ", ".join(
    f"{name} {kind}" for name, kind in zip(OUTPUT_COLUMNS, OUTPUT_KINDS, strict=True)
)


class Yielder(StatefulProcessor):
    """Yields a row of every type, in and out of the order of the columns, and with gaps."""

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        values = dict(zip(OUTPUT_COLUMNS, OUTPUT_KINDS.values(), strict=True))
        yield Row(id=key[0], how="in order", **values)
        yield Row(how="turned", **dict(reversed(values.items())), id=key[0], unknown=7)
        yield Row(id=key[0], how="gaps")
        yield Row(id=key[0], how="nulls", **dict.fromkeys(OUTPUT_COLUMNS))


def test_yielded_rows_become_those_of_spark(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", "id int")
    source.add([(1,), (2,)])
    job = Job(source, tmp_path, ["id"], Yielder(), f"id int, how string, {OUTPUTS}")
    with configured(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        expected = [sorted(batch, key=repr) for batch in run_on_spark(job)]
        for number, settings in enumerate(
            ({}, {"stream.data-inline-threshold": 0}, {"delivery": "direct"})
        ):
            job.run(
                tasks=2,
                stateLocation=str(tmp_path / f"state{number}"),
                checkpointLocation=str(tmp_path / f"query{number}"),
                **settings,
            )
            assert expected == [sorted(batch, key=repr) for batch in job.take()]
    assert 8 == len(expected[0])
