"""Each option is read by the code that it is for."""

import ast
from pathlib import Path

import pytest
from tests.house.sources import SRC, modules, tree_of

from statelog.options import OPTIONS
from statelog.options.declaration import Option

# The names under which readers hold an object of options.
HOLDERS = {"options", "policy", "checkpoint", "stream", "local_recovery"}


def holder_of(node: ast.expr) -> str:
    """Return the last name of what an attribute is read from, without leading underscores."""
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id.lstrip("_") if isinstance(node, ast.Name) else ""


def fields_read(tree: ast.Module) -> set[str]:
    """Return the attributes that code reads from objects of options."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and holder_of(node.value) in HOLDERS
    }


def readers() -> list[Path]:
    own = SRC / "statelog" / "options"
    return [path for path in modules() if own not in path.parents]


FIELDS_READ = set().union(*(fields_read(tree_of(path)) for path in readers()))


@pytest.mark.parametrize("spec", OPTIONS, ids=lambda spec: spec.key)
def test_an_option_is_read(spec: Option) -> None:
    assert spec.field in FIELDS_READ, f"{spec.key} is accepted, and not read"


def test_the_check_finds_what_it_is_for() -> None:
    source = "self._options.read\noptions.read_too\nother.unread\noptions.written = 1\n"
    assert {"read", "read_too"} == fields_read(ast.parse(source))
