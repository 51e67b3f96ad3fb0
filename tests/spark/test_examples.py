"""The examples do what they say, over restarts, run as their readers run them."""

import json
import runpy
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MAX_LINES = 59


@pytest.fixture
def run(spark, tmp_path) -> Callable[..., Path]:
    """Return a function that runs an example over one more file of input."""
    (tmp_path / "in").mkdir()
    count = 0

    def run(name: str, *records: dict[str, Any]) -> Path:
        nonlocal count
        count += 1
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"in/{count}.json").write_text(lines, encoding="utf-8")
        main = runpy.run_path(str(EXAMPLES / name), run_name="__main__example")["main"]
        main.__globals__["__name__"] = "__main__"  # as if typed: workers get it by value
        main(str(tmp_path / "in"), str(tmp_path / "out"), str(tmp_path / "checkpoint"))
        return tmp_path / "out"

    return run


def rows(spark, folder: Path) -> list[tuple[Any, ...]]:
    table = spark.read.parquet(str(folder)).drop("batch")
    return sorted(map(tuple, table.selectExpr(*map(plain, table.schema)).collect()))


def plain(field: Any) -> str:
    name = field.name
    if field.dataType.typeName() != "timestamp":
        return f"`{name}`"
    return f"date_format(`{name}`, 'HH:mm:ss') AS `{name}`"


def test_a_payment_counts_once(spark, run):
    first = {"id": "p1", "account": "a", "amount": 5.0}
    other = {"id": "p2", "account": "a", "amount": 5.0}
    run("deduplicate.py", first, first)
    out = run("deduplicate.py", first, other)
    assert [("p1", "a", 5.0), ("p2", "a", 5.0)] == rows(spark, out)


def test_the_table_holds_the_newest_version(run):
    run("latest.py", {"id": 1, "version": 3, "name": "Ada"}, {"id": 2, "version": 1, "name": "Bo"})
    out = run(
        "latest.py", {"id": 1, "version": 2, "name": "A."}, {"id": 2, "version": 2, "name": "Bob"}
    )
    with closing(sqlite3.connect(out)) as table:
        found = table.execute("SELECT id, version, name FROM customers ORDER BY id").fetchall()
    assert [(1, 3, "Ada"), (2, 2, "Bob")] == found


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short(example):
    assert MAX_LINES >= len((EXAMPLES / example).read_text(encoding="utf-8").splitlines())
