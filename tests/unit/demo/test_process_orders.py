"""Order lines from a seed, in files that Spark's file stream reads in their order."""

import csv
import hashlib
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from statelog.demo.job import ORDER_LINES
from statelog.demo.process import write_orders

COLUMNS = [column.split()[0] for column in ORDER_LINES.split(", ")]


def lines_of(folder: Path) -> list[dict[str, str]]:
    rows = []
    for file in sorted(folder.glob("*.csv")):
        with open(file, newline="", encoding="utf-8") as opened:
            rows += list(csv.DictReader(opened, COLUMNS, strict=True))
    return rows


def digest(folder: Path) -> str:
    content = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    return hashlib.sha256(content).hexdigest()


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_orders(tmp_path / name, orders=200, days=24, seed=seed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    # On every machine and for ever: what is measured on it can be compared.
    assert digest(tmp_path / "a").startswith("f786495e")


def test_the_lines_have_what_makes_real_ones_hard(tmp_path):
    write_orders(tmp_path / "in", orders=1500, days=12)
    rows = lines_of(tmp_path / "in")
    assert 12 == len(list((tmp_path / "in").iterdir()))
    assert set(COLUMNS) == set(rows[0])
    assert 1500 == len({row["invoice"] for row in rows})
    returned = [row for row in rows if int(row["quantity"]) < 0]
    assert 0.03 < len(returned) / len(rows) < 0.15
    assert {3} == {-int(Decimal(row["price"]).as_tuple().exponent) for row in rows}
    times = [row["ordered_at"] for row in rows]
    assert sorted(times) == times
    orders: dict[str, set[str]] = {}
    countries: dict[str, set[str]] = {}
    for row in rows:
        orders.setdefault(row["customer"], set()).add(row["invoice"])
        countries.setdefault(row["customer"], set()).add(row["country"])
    counts = sorted(map(len, orders.values()))
    assert 1 == counts[0] < counts[-1] // 20
    assert any(len(seen) > 1 for seen in countries.values())


def test_the_files_are_in_the_order_of_names_by_their_times(tmp_path):
    write_orders(tmp_path / "in", orders=20, days=5)
    files = sorted((tmp_path / "in").iterdir(), key=lambda file: file.stat().st_mtime)
    assert sorted(files) == files
    assert 5 == len({file.stat().st_mtime for file in files})
