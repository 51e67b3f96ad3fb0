"""Processors of docs/how-to/columnar.md and examples/columns.py do what those for single keys do."""

import datetime as dt
import random
import re
import runpy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

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
