"""The rules of parity with Spark's transformWithState name tests that exist."""

import re

from tests.house.sources import ROOT, is_there

PAGE = ROOT / "tests" / "parity.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
TEST_ROW = re.compile(r"^\|(?! (?:Spark|Case)|---)", re.MULTILINE)


def named_tests() -> list[tuple[str, str]]:
    return NAMED.findall(PAGE.read_text(encoding="utf-8"))


def test_each_test_that_the_page_names_exists() -> None:
    assert [] == [f"{file}::{test}" for file, test in named_tests() if not is_there(file, test)]


def test_each_row_of_the_page_names_a_test() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if TEST_ROW.match(line)]
    assert len(rows) > 60
    assert [] == [row for row in rows if not NAMED.search(row)]


def test_the_check_finds_what_it_is_for() -> None:
    file = "tests/house/test_parity_page.py"
    assert is_there(file, "test_each_test_that_the_page_names_exists")
    assert not is_there(file, "test_that_nobody_wrote")
    assert not is_there("tests/house/test_nothing.py", "test_that_nobody_wrote")
