"""Each attack on the page of security has a test, which exists."""

import ast
import re

import pytest
from tests.house.sources import ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.partition("## Attacks")[2].splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:30])
def test_the_tests_of_a_row_exist(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
    assert named
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        names = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        assert name in names, f"{file} has no {name}"
