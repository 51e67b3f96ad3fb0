"""The examples do what they say, over restarts, run as their readers run them."""

import json
import runpy
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.house.sources import ROOT

EXAMPLES = ROOT / "examples"
MAX_LINES = 59
"""Of a program."""
MAX_LINES_OF_A_PROCESSOR = 32
"""In a module of processors alone."""


@pytest.fixture
def run(spark, tmp_path):
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


def click(user: str, time: str) -> dict[str, Any]:
    return {"user": user, "at": f"2024-05-01T{time}Z", "page": "/"}


def test_sessions_end_with_the_gap_and_take_late_clicks(spark, run):
    run("sessions.py", click("a", "10:00:00"), click("a", "10:35:00"), click("b", "10:05:00"))
    # Late, but within the watermark: it joins what looked like two sessions.
    run("sessions.py", click("a", "10:27:00"), click("a", "10:52:00"))
    out = run("sessions.py", click("c", "12:00:00"))  # and a batch that sees the watermark move
    assert [("a", "10:00:00", "10:52:00", 4), ("b", "10:05:00", "10:05:00", 1)] == rows(spark, out)


def test_a_payment_counts_once(spark, run):
    first = {"id": "p1", "account": "a", "amount": 5.0}
    other = {"id": "p2", "account": "a", "amount": 5.0}
    run("deduplicate.py", first, first)
    out = run("deduplicate.py", first, other)
    assert [("p1", "a", 5.0), ("p2", "a", 5.0)] == rows(spark, out)


def payment(account: str, time: str, amount: float) -> dict[str, Any]:
    return {"account": account, "at": f"2024-05-01T{time}Z", "amount": amount}


def test_a_large_payment_soon_after_a_tiny_one_is_an_alert(spark, run):
    run("fraud.py", payment("a", "10:00:00", 0.5), payment("b", "10:00:00", 0.5))
    run("fraud.py", payment("a", "10:00:40", 900.0), payment("b", "10:00:20", 20.0))
    run("fraud.py", payment("b", "10:00:30", 900.0), payment("c", "10:05:00", 0.2))
    out = run("fraud.py", payment("c", "10:07:00", 900.0))  # later than a minute
    assert [("a", "10:00:40", 900.0)] == rows(spark, out)


def test_the_table_holds_the_newest_version(run):
    run("latest.py", {"id": 1, "version": 3, "name": "Ada"}, {"id": 2, "version": 1, "name": "Bo"})
    out = run(
        "latest.py", {"id": 1, "version": 2, "name": "A."}, {"id": 2, "version": 2, "name": "Bob"}
    )
    with closing(sqlite3.connect(out)) as table:
        rows_of_table = table.execute(
            "SELECT id, version, name FROM customers ORDER BY id"
        ).fetchall()
    assert [(1, 3, "Ada"), (2, 2, "Bob")] == rows_of_table


def test_state_is_served_over_http(run, tmp_path, monkeypatch):
    run("deduplicate.py", {"id": "p1", "account": "a", "amount": 1.0})
    monkeypatch.setenv("STATE", str(tmp_path / "checkpoint"))
    app = runpy.run_path(str(EXAMPLES / "serve.py"))["app"]
    with TestClient(app) as client:
        assert client.get("/seen/p1").json() == {"seen": True}
        assert client.get("/seen/p2").status_code == 404
        unknown = client.get("/sean/p1")
        assert unknown.status_code == 404
        assert "sean" in unknown.json()["detail"]
        assert client.get("/").json()["checkpoint"] >= 1


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short(example):
    text = (EXAMPLES / example).read_text(encoding="utf-8")
    is_program = "def main(" in text or "__main__" in text
    of_processors = 0 if is_program else MAX_LINES_OF_A_PROCESSOR * text.count("\nclass ")
    assert max(MAX_LINES, of_processors) >= len(text.splitlines())
