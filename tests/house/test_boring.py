"""Features of Python that hide what runs: each use is in a list, with its reason."""

import ast
from pathlib import Path

from tests.house.sources import modules, name_of, tree_of

FIRST_USE = "public names at their first use"
ATTRIBUTES = {
    "changelog/__init__.py": FIRST_USE,
    "store/__init__.py": FIRST_USE,
    "cli/main.py": "the verbs, whose modules take longer to import than most verbs take to run",
    "spark/extension_table.py": "methods that extensions add to a handle",
    "spark/query/progress.py": "figures of extensions",
    "spark/query/state_variables.py": "what a processor may not use",
    "spark/stream/stateful_stream.py": "columns of a frame",
}
"""Modules that define `__getattr__`."""
GLOBALS = {
    "store/requests.py": "the count of repeated requests of this process",
    "store/object_store.py": "the process that made the client of stores",
}
"""Modules in which a function sets a global."""
METACLASSES = {
    "changelog/upload/scheduler.py": "Flink's static methods of the interface, which are not in the protocol",
}


def package_name(path: Path) -> str:
    return name_of(path).removeprefix("src/statelog/")


def sets_global(node: ast.AST) -> bool:
    return isinstance(node, ast.Global)


def defines_getattr(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"


def has_metaclass(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        keyword.arg == "metaclass" for keyword in node.keywords
    )


def modules_with(kind) -> set[str]:
    return {package_name(path) for path in modules() if any(map(kind, ast.walk(tree_of(path))))}


def test_a_global_is_of_what_a_process_has_once() -> None:
    assert GLOBALS.keys() == modules_with(sets_global)


def test_getattr_is_used_where_python_has_nothing_else() -> None:
    assert ATTRIBUTES.keys() == modules_with(defines_getattr)


def test_there_is_one_metaclass() -> None:
    assert METACLASSES.keys() == modules_with(has_metaclass)
