"""Whoever calls a public method can read what it promises."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
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


FACES = (
    "statelog",
    "statelog.changelog",
    "statelog.checkpoint",
    "statelog.errors",
    "statelog.exporters",
    "statelog.options",
    "statelog.spark",
    "statelog.spark.functions",
    "statelog.store",
    "statelog.testing",
    "statelog.types",
)
SEAMS = (
    "checkpoint/attachments.py",
    "checkpoint/edit.py",
    "spark/driver/extension.py",
    "spark/query/face.py",
    "spark/query/session.py",
    "spark/worker/extension.py",
    "state/reader",
)
LIKE_PUBLIC = ("spark/rows/stateful_processor.py", "extensions/read", "testing")
"""Spark's classes where Spark lacks them, what `open` returns, and the contracts of tests."""

SECTION = re.compile(r"^(Args|Raises|Blocks):", re.MULTILINE)


@cache
def public_names() -> frozenset[tuple[str, str]]:
    """Return (module, name) of the public functions and classes, with their bases."""
    values = [
        getattr(module, name)
        for module in map(importlib.import_module, FACES)
        for name in dir(module)
        if not name.startswith("_")
    ]
    kinds = [kind for value in values if isinstance(value, type) for kind in value.__mro__]
    functions = [value for value in values if inspect.isroutine(value)]
    return frozenset((value.__module__, value.__qualname__) for value in [*kinds, *functions])


def sections_of_internals(
    parent: ast.Module | ast.ClassDef, module: str, prefix: str = "", *, is_public: bool = False
) -> Iterator[str]:
    """Name the internal functions and classes whose docstring has a section for callers."""
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | Function):
            continue
        name = f"{prefix}{node.name}"
        is_inner = node.name.startswith("_") and node.name != "__init__"
        public = (module, name) in public_names() or (is_public and not is_inner)
        if isinstance(node, ast.ClassDef):
            yield from sections_of_internals(node, module, f"{name}.", is_public=public)
        if not public and not has_fields(node) and SECTION.search(ast.get_docstring(node) or ""):
            yield f"{name}, line {node.lineno}"


def has_fields(node: ast.AST) -> bool:
    """Say whether a node is a class of data: `Args:` tells the units of its fields."""
    return isinstance(node, ast.ClassDef) and (
        any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        or any("Struct" in ast.unparse(base) for base in node.bases)
        or any(ast.unparse(base) in ("NamedTuple", "TypedDict") for base in node.bases)
    )


def test_internals_have_no_sections_for_callers() -> None:
    inner = [
        path
        for path in modules()
        if not path.relative_to(SRC / "statelog" if "statelog" in path.parts else SRC)
        .as_posix()
        .startswith((*SEAMS, *LIKE_PUBLIC))
    ]
    assert {} == breaches(
        inner, lambda path: sections_of_internals(tree_of(path), module_name(path))
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
