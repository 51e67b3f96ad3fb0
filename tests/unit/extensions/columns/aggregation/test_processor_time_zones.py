"""Rows of a session in any time zone are combined with state, which is stored in UTC."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import DataType, StringType, StructField, StructType, VariantType
from tests.support.values.time_zones import ZONES, in_session_types

from statelog.extensions.columns.aggregation.kinds import AggregateKind, Extreme, ValueBy
from statelog.extensions.columns.aggregation.processor import (
    AggregateProcessor,
    Merge,
    NamedAggregate,
)
from statelog.extensions.columns.slots import zoned_table
from statelog.spark import ColumnarProcessor
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.rows.types import arrow_schema
from statelog.testing import ProcessorTester

# The hour that autumn repeats in New York, and those of Berlin and of Lord Howe (half an hour).
MOMENTS = [
    1_730_611_800_000_000, 1_730_615_400_000_000, 1_729_987_200_000_000, 1_712_415_600_000_000,
]  # fmt: skip

TYPES = {
    "timestamp": lambda at: at,
    "timestamp_ntz": lambda at: at,
    "struct<at timestamp not null, n int not null>": lambda at: {"at": at, "n": 1},
    "struct<days array<timestamp>>": lambda at: {"days": [at, None]},
    "array<timestamp>": lambda at: [at, at + 1],
    "map<string, timestamp>": lambda at: [("k", at)],
    "map<int, struct<at timestamp not null>>": lambda at: [(1, {"at": at})],
    "variant": lambda at: {"value": str(at).encode(), "metadata": b"m"},
}
"""By type: a value made of a moment; fields that Spark declares NOT NULL stay so."""


def values(ddl: str, moments: list[int | None]) -> list[Any]:
    return [None if at is None else TYPES[ddl](at) for at in moments]


def type_of(ddl: str) -> DataType:
    return VariantType() if ddl == "variant" else parse_ddl(f"x {ddl}")["x"].dataType


class OneAggregate:
    """One aggregate of partial results, micro-batch after micro-batch."""

    def __init__(self, kind: AggregateKind, parts: dict[str, DataType], zone: str) -> None:
        state = StructType([StructField(f"p_{part}", parts[part]) for part in parts])
        result_type = parts.get("value", next(iter(parts.values())))
        output = StructType([StructField("key", StringType()), StructField("r", result_type)])
        self.zone = zone
        self.rows = StructType([StructField("key", StringType()), *state])
        names = tuple((part, f"p_{part}", f"p_{part}") for part in parts)
        merge = Merge((NamedAggregate("r", kind, names),), arrow_schema(output))
        self.tester = ProcessorTester(
            AggregateProcessor(merge, state, None, is_append=False),
            keySchema="key string",
            outputStructType=output,
            timeZone=zone,
        )

    def add(self, keys: list[str], *parts: list[Any]) -> dict[str, Any]:
        table = pa.table([keys, *parts], schema=arrow_schema(self.rows))
        out = self.tester.testColumns(in_session_types(table, self.rows, self.zone))
        self.tester.restart()
        return {row["key"]: row["r"] for row in out.to_pylist()}


def as_output(ddl: str, moments: list[int | None]) -> list[Any]:
    """Return the values as the output has them."""
    (field,) = arrow_schema(StructType([StructField("x", type_of(ddl))]))
    return pa.array(values(ddl, moments), field.type).to_pylist()


@pytest.mark.parametrize("zone", [*ZONES, "Etc/UTC", "GMT", "+00:00", "-08:00"])
@pytest.mark.parametrize("is_least", [True, False])
def test_the_extreme_moment_is_kept_over_micro_batches(zone: str, is_least: bool) -> None:
    function = OneAggregate(Extreme(is_least), {"": type_of("timestamp")}, zone)
    function.add(["a", "b", "c"], [MOMENTS[0], MOMENTS[1], None])
    results = function.add(["c", "a", "b"], [MOMENTS[2], MOMENTS[1], MOMENTS[0]])
    extreme = (min if is_least else max)(MOMENTS[:2])
    expected = as_output("timestamp", [extreme, extreme, MOMENTS[2]])
    assert dict(zip("abc", expected, strict=True)) == results


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("ddl", TYPES)
def test_the_value_of_the_latest_row_has_any_type(zone: str, ddl: str) -> None:
    kind = ValueBy("last", is_least=False)
    function = OneAggregate(kind, {"value": type_of(ddl), "by": type_of("timestamp")}, zone)
    first, second = values(ddl, MOMENTS[:1])[0], values(ddl, MOMENTS[1:2])[0]
    function.add(["a", "b", "c"], [first, first, None], MOMENTS[1:2] * 3)
    results = function.add(["a", "b", "c"], [second] * 3, [MOMENTS[0], MOMENTS[1], MOMENTS[2]])
    expected = as_output(ddl, [MOMENTS[0], MOMENTS[1], None])
    assert dict(zip("abc", expected, strict=True)) == results


class Latest(ColumnarProcessor):
    """Keeps the latest time and value of each key, from rows or from state."""

    def __init__(self, schema: StructType) -> None:
        self.schema = schema

    def init(self, handle: Any) -> None:
        self.latest = handle.getColumnState("latest", self.schema)

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
        newest = rows.take(pa.array(keys.ends - 1))
        old = self.latest.get(keys)
        is_new = pc.fill_null(pc.greater(newest["at"], old["at"]), True)
        latest = {name: pc.if_else(is_new, newest[name], old[name]) for name in ("at", "value")}
        self.latest.put(keys, latest)
        assert newest.schema.field("value").type == old.schema.field("value").type
        since = pc.subtract(newest["at"], keys["moment"])
        yield {"moment": keys["moment"], **latest, "since": since}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("ddl", TYPES)
def test_a_processor_of_columns_combines_rows_with_state_and_keys(zone: str, ddl: str) -> None:
    at, value = StructField("at", type_of("timestamp")), StructField("value", type_of(ddl))
    rows = StructType([StructField("moment", type_of("timestamp")), at, value])
    tester = ProcessorTester(
        Latest(StructType([at, value])), keySchema="moment timestamp", timeZone=zone
    )

    def add(at: list[int], value: list[Any]) -> pa.Table:
        table = pa.table([MOMENTS[:2], at, value], schema=arrow_schema(rows))
        return tester.testColumns(in_session_types(table, rows, zone))

    first, second = values(ddl, MOMENTS[:2])
    add([MOMENTS[1], MOMENTS[1]], [first, first])
    tester.restart()
    out = add([MOMENTS[0], MOMENTS[1] + 1], [second, second])
    assert {pa.timestamp("us", zone)} == {out[name].type for name in ("moment", "at")}
    in_utc = zoned_table(out, "UTC")  # a moment of the repeated hour differs from itself in UTC
    assert as_output(ddl, MOMENTS[:2]) == in_utc["value"].to_pylist()
    assert [MOMENTS[1], MOMENTS[1] + 1] == out["at"].cast(pa.int64()).to_pylist()
