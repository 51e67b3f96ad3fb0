"""Order lines from a seed, and how input is laid out for Spark's file stream."""

import csv
import hashlib
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from statelog.demo.data import COLUMNS, lay_out, write_orders
from statelog.errors import UsageError


def lines_of(folder: Path) -> list[dict[str, str]]:
    rows = []
    for file in sorted(folder.glob("*.csv")):
        with open(file, newline="", encoding="utf-8") as opened:
            rows += list(csv.DictReader(opened))
    return rows


def digest(folder: Path) -> str:
    content = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    return hashlib.sha256(content).hexdigest()


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    counts = [write_orders(tmp_path / name, orders=200, seed=3) for name in ("a", "b")]
    write_orders(tmp_path / "c", orders=200, seed=4)
    assert counts[0] == counts[1] == len(lines_of(tmp_path / "a"))
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    # On every machine and for ever: what is measured on it can be compared.
    assert digest(tmp_path / "a").startswith("b71a8957")


def test_the_lines_have_what_makes_real_ones_hard(tmp_path: Path) -> None:
    write_orders(tmp_path, orders=1500, seed=1, days=12)
    rows = lines_of(tmp_path)
    assert 12 == len(list(tmp_path.iterdir()))
    assert list(COLUMNS) == list(rows[0])
    assert 1500 == len({row["InvoiceNo"] for row in rows})
    assert 0.05 < sum(not row["CustomerID"] for row in rows) / len(rows) < 0.4
    returned = [row for row in rows if row["InvoiceNo"].startswith("C")]
    assert returned
    assert all(int(row["Quantity"]) < 0 for row in returned)
    assert {2, 3} == {-int(Decimal(row["UnitPrice"]).as_tuple().exponent) for row in rows}
    assert any('"' in row["Description"] for row in rows)
    assert any("," in row["Description"] for row in rows)
    times = [row["InvoiceDate"] for row in rows]
    assert sorted(times) == times
    countries = {row["CustomerID"]: set() for row in rows}
    for row in rows:
        countries[row["CustomerID"]].add(row["Country"])
    assert any(len(seen) > 1 for customer, seen in countries.items() if customer)


def test_the_copies_are_in_the_order_of_names_by_their_times(tmp_path: Path) -> None:
    write_orders(tmp_path / "in", orders=20, seed=1, days=5)
    for file in sorted((tmp_path / "in").iterdir(), reverse=True):
        file.touch()  # the newest first
    assert 5 == lay_out(tmp_path / "in", tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir(), key=lambda file: file.stat().st_mtime)
    assert sorted(files) == files
    assert 5 == len({file.stat().st_mtime for file in files})
    assert digest(tmp_path / "in") == digest(tmp_path / "out")


def test_a_folder_without_order_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no CSV files"):
        lay_out(tmp_path / "missing", tmp_path / "a")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="has the columns a, b"):
        lay_out(tmp_path, tmp_path / "b")
