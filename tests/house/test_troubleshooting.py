"""The messages that the page on troubleshooting quotes exist in the sources."""

import ast
import functools
import re

from tests.house.sources import ROOT, modules, tree_of

PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
QUOTED = re.compile(r"^> (.+)$", re.MULTILINE)
GAP = "…"


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


def test_each_message_of_the_page_is_in_the_sources() -> None:
    quoted = QUOTED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(quoted) > 30
    assert [] == [message for message in quoted if not is_said(message)]


def test_the_check_finds_what_it_is_for() -> None:
    assert not is_said("a message that no module " + "has")
