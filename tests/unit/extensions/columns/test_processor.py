"""Processors of docs/how-to/columnar.md and examples/columns.py do what those for single keys do."""

import datetime as dt
import random
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql.types import DataType, StructField, StructType, VariantType
from tests.support.values.time_zones import ZONES, in_session_types

from statelog.extensions.columns.slots import zoned_table
from statelog.spark import ColumnarProcessor
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.rows.types import arrow_schema
from statelog.testing import ProcessorTester

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "how-to" / "columnar.md"
EPOCH = dt.datetime(2024, 5, 1)


def page() -> dict[str, Any]:
    """Run the code blocks of the page that need no query; return what they and the example define."""
    names: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "columns.py"))
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if "groupBy" not in block:
            exec(block, names)
    return names


def batches(key: str, seed: int) -> list[list[dict[str, Any]]]:
    rng = random.Random(seed)
    keys = ["a", "b", "c", "d"] if key != "id" else [1, 2, 3, 4]
    drawn = []
    for batch in range(10):
        rows = []
        for _ in range(rng.randrange(1, 7)):
            at = EPOCH + dt.timedelta(seconds=batch * 1300 + rng.randrange(2600))
            if key == "account":
                at = EPOCH + dt.timedelta(seconds=batch * 40 + rng.randrange(60))
            row = {key: rng.choice(keys), "at": at, "amount": rng.choice([0.5, 20.0, 900.0])}
            rows.append(row if key == "account" else {**row, "version": rng.randrange(20)})
        drawn.append(rows)
    return drawn


@pytest.mark.parametrize(
    ("example", "name", "key", "mode"),
    [
        ("latest", "Latest", "id", "None"),
        ("deduplicate", "FirstOfEachId", "id", "ProcessingTime"),
        ("fraud", "FraudRule", "account", "EventTime"),
        ("sessions", "Sessions", "user", "EventTime"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_columns_and_single_keys_agree(
    example: str, name: str, key: str, mode: str, seed: int
) -> None:
    processors = runpy.run_path(str(ROOT / "examples" / f"{example}.py"))
    schema = f"{key} {'long' if key == 'id' else 'string'}"
    options = {"timeMode": mode, "keySchema": schema}
    alone = ProcessorTester(processors[name](), eventTimeExtractor=lambda row: 1 << 60, **options)
    columns = ProcessorTester(
        page()[name](), eventTimeExtractor=lambda table: [1 << 60] * len(table), **options
    )
    for number, batch in enumerate(batches(key, seed)):
        expected: list[Any] = []
        for value in dict.fromkeys(row[key] for row in batch):
            rows = [Row(**row) for row in batch if row[key] == value]
            expected += alone.test(value, rows)
        table = columns.testColumns(pa.Table.from_pylist(batch))
        assert in_order(table.to_pylist()) == in_order([row.asDict() for row in expected])
        if mode == "EventTime":
            watermark_ms = int(EPOCH.replace(tzinfo=dt.UTC).timestamp()) * 1000 + number * 1_300_000
            expected, table = alone.setWatermark(watermark_ms), columns.setWatermark(watermark_ms)
            assert in_order(table.to_pylist()) == in_order([row.asDict() for row in expected])
        if number % 3 == 2:
            columns.restart()


def in_order(rows: list[dict[str, Any]]) -> list[Any]:
    """Return rows in an order, with times without a zone."""

    def plain(value: Any) -> Any:
        return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value

    cells = [sorted((name, plain(value)) for name, value in row.items()) for row in rows]
    return sorted(cells, key=repr)


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


def as_output(ddl: str, moments: list[int | None]) -> list[Any]:
    """Return the values as the output has them."""
    (field,) = arrow_schema(StructType([StructField("x", type_of(ddl))]))
    return pa.array(values(ddl, moments), field.type).to_pylist()


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
