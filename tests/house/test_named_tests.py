"""The tests that the pages of parity and of security name exist."""

import re

import pytest
from tests.house.sources import ROOT, is_there, text_of

PARITY = text_of(ROOT / "tests" / "parity.md")
ATTACKS = text_of(ROOT / "SECURITY.md").partition("## Attacks")[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\|(?! (?:Spark|Case|#)|---).*$", re.MULTILINE)


@pytest.mark.parametrize(("text", "rows"), [(PARITY, 61), (ATTACKS, 20)], ids=["parity", "attacks"])
def test_each_row_names_tests_that_exist(text: str, rows: int) -> None:
    table_rows = ROW.findall(text)
    assert len(table_rows) >= rows
    assert [] == [row for row in table_rows if not NAMED.search(row)]
    missing = [f"{file}::{test}" for file, test in NAMED.findall(text) if not is_there(file, test)]
    assert [] == missing


def test_the_check_finds_what_it_is_for() -> None:
    file = "tests/house/test_named_tests.py"
    assert is_there(file, "test_each_row_names_tests_that_exist")
    assert not is_there(file, "test_that_nobody_wrote")
    assert not is_there("tests/house/test_nothing.py", "test_that_nobody_wrote")
