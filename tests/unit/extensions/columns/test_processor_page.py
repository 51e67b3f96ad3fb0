"""
The processors of docs/how-to/columnar.md and examples/columns.py do what the examples for single
keys do.
"""

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


def test_the_page_runs() -> None:
    assert page()["first"].num_rows == 2


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
    made = runpy.run_path(str(ROOT / "examples" / f"{example}.py"))
    schema = f"{key} {'long' if key == 'id' else 'string'}"
    timed = {"timeMode": mode, "keySchema": schema}
    alone = ProcessorTester(made[name](), eventTimeExtractor=lambda row: 1 << 60, **timed)
    columns = ProcessorTester(
        page()[name](), eventTimeExtractor=lambda table: [1 << 60] * len(table), **timed
    )
    for number, batch in enumerate(batches(key, seed)):
        expected: list[Any] = []
        for value in dict.fromkeys(row[key] for row in batch):
            rows = [Row(**row) for row in batch if row[key] == value]
            expected += alone.test(value, rows)
        by_columns = columns.testColumns(pa.Table.from_pylist(batch)).to_pylist()
        assert shown(by_columns) == shown([row.asDict() for row in expected])
        if mode == "EventTime":
            watermark = (
                int((EPOCH - dt.datetime(1970, 1, 1)).total_seconds() * 1000) + number * 1_300_000
            )
            expected, table = alone.setWatermark(watermark), columns.setWatermark(watermark)
            assert shown(table.to_pylist()) == shown([row.asDict() for row in expected])
        if number % 3 == 2:
            columns.restart()


def shown(rows: list[dict[str, Any]]) -> list[Any]:
    """Return rows in an order, with times without a zone."""
    plain = [
        {
            name: value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    return sorted((sorted(row.items()) for row in plain), key=repr)
