"""Whoever calls a public method can read what it promises."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import SRC, Function, breaches, has_docstring, modules, name_of, tree_of

PUBLIC_ROOMS = ("changelog", "checkpoint", "state", "store")
EXCUSED_BY = {"overload", "override", "setter", "deleter"}


def public_modules() -> list[Path]:
    return [
        path
        for path in modules()
        if path.relative_to(SRC).parts[0] == "statelog"
        and path.relative_to(SRC).parts[1] in PUBLIC_ROOMS
    ]


def is_excused(node: Function) -> bool:
    names = set()
    for decorator in node.decorator_list:
        expression = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(expression, ast.Attribute):
            names.add(expression.attr)
        elif isinstance(expression, ast.Name):
            names.add(expression.id)
    return bool(names & EXCUSED_BY)


def undocumented(parent: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    """Name the public functions, and the public methods of public classes, without a docstring."""
    for node in parent.body:
        if isinstance(node, ast.ClassDef | Function) and node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node, f"{prefix}{node.name}.")
        elif isinstance(node, Function) and not has_docstring(node) and not is_excused(node):
            yield f"{prefix}{node.name}, line {node.lineno}"


def test_public_methods_have_docstrings() -> None:
    assert {} == breaches(public_modules(), lambda path: undocumented(tree_of(path)))


def test_a_module_begins_by_saying_its_idea() -> None:
    assert [] == [name_of(path) for path in modules() if not has_docstring(tree_of(path))]


def test_the_check_finds_what_it_is_for() -> None:
    source = """
class Shown:
    def bare(self): ...
    def _inner(self): ...
    @typing.overload
    def excused(self): ...
    def told(self):
        "Tells."
class _Hidden:
    def bare(self): ...
"""
    assert ["Shown.bare, line 3"] == list(undocumented(ast.parse(source)))
