"""The messages that the page on troubleshooting quotes exist: in the sources, or in Spark."""

import ast
import functools
import importlib.util
import json
import re
import zipfile
from pathlib import Path

import pytest
from tests.house.sources import ROOT, modules, tree_of

PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
GAP = "…"

OURS, SPARKS = "Message", "Condition"
"""How the first cell of the heading of a table begins: what its rows quote."""


@functools.cache
def messages() -> frozenset[str]:
    """Return every text in the sources, with a gap for each value that is put into it."""
    found: set[str] = set()
    for path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(_part(value) for value in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found)


def _part(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    # A value that is itself one of two texts, as in f"{'missing' if missing else 'damaged'}".
    return GAP


def is_said(quoted: str) -> bool:
    """Whether a message of the page is in the sources."""
    if re.fullmatch(r"`\w+Error`", quoted):
        name = quoted.strip("`")
        errors = tree_of(ROOT / "src" / "statelog" / "errors.py").body
        return any(isinstance(node, ast.ClassDef) and node.name == name for node in errors)
    pattern = re.compile(".*".join(re.escape(part) for part in quoted.split(GAP)), re.DOTALL)
    return any(pattern.search(message) for message in messages())


def quoted(text: str, heading: str) -> list[str]:
    """Return the first cells of the rows of the tables with such a heading."""
    cells: list[str] = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = table.splitlines()
        if head.startswith(f"| {heading}"):
            cells += [row.split(" | ")[0].removeprefix("| ") for row in rows]
    return cells


def conditions_of_spark() -> frozenset[str]:
    """Return the names of the error conditions of the PySpark that is installed."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    jars = sorted((Path(spec.origin).parent / "jars").glob("spark-common-utils_*.jar"))
    if not jars:
        pytest.skip("this PySpark comes without the jars of Spark")
    with zipfile.ZipFile(jars[0]) as jar:
        known = json.loads(jar.read("error/error-conditions.json"))
    parts = [f"{name}.{part}" for name in known for part in known[name].get("subClass", {})]
    return frozenset([*known, *parts])


def test_each_message_of_the_page_is_in_the_sources() -> None:
    messages = quoted(PAGE.read_text(encoding="utf-8"), OURS)
    assert len(messages) > 40
    assert [] == [message for message in messages if not is_said(message)]


def test_each_condition_of_the_page_is_sparks() -> None:
    cells = quoted(PAGE.read_text(encoding="utf-8"), SPARKS)
    names = {name for cell in cells for name in re.findall(r"`([A-Z_.]{8,})`", cell)}
    assert len(names) > 8
    assert set() == names - conditions_of_spark()


def test_the_check_finds_what_it_is_for() -> None:
    assert not is_said("a message that no module " + "has")
    table = "| Message | Do |\n|---|---|\n| … failed | nothing |\n"
    assert ["… failed"] == quoted(table, OURS)
    assert "NO_CONDITION" not in conditions_of_spark()
