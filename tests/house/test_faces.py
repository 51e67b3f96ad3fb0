"""
What a processor or a state is, the engine asks its face: `spark/query/face` has the one table.

A test of a class elsewhere is one more place that a new face must be added to, and an import of an
extension makes each reader and each worker of the engine load it.
"""

import ast
from collections.abc import Iterator

from tests.house.sources import SRC, breaches, modules, text_of, tree_of

CLASSES = {"ColumnarProcessor", "SlotState", "KeyedState"}
STATELOG = SRC / "statelog"
EXTENSIONS = STATELOG / "extensions"
NAMING = {
    STATELOG / "spark" / "extension_table.py",
    STATELOG / "spark" / "functions.py",  # public names
    STATELOG / "spark" / "query" / "face.py",
}


def class_tests(tree: ast.AST) -> Iterator[str]:
    """Yield each test for a class of a face."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("isinstance" | "issubclass"), [_, kinds]):
                if any(
                    isinstance(part, ast.Name) and part.id in CLASSES for part in ast.walk(kinds)
                ):
                    yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.MatchClass(ast.Name(name)) if name in CLASSES:
                yield f"a pattern: {name}"


def test_no_module_asks_for_the_class_of_a_processor_or_a_state() -> None:
    assert {} == breaches(modules(), lambda path: class_tests(tree_of(path)))


def test_the_rule_sees_each_form() -> None:
    code = "isinstance(a, KeyedState)\nisinstance(a, int | SlotState)\nisinstance(a, int)"
    assert 2 == len(list(class_tests(ast.parse(code))))
    match = "match a:\n    case ColumnarProcessor(): pass\n    case Row(): pass"
    assert 1 == len(list(class_tests(ast.parse(match))))


def test_only_tables_of_the_engine_name_extensions() -> None:
    above = {
        STATELOG / "cli",
        STATELOG / "demo",
        STATELOG / "testing",
        STATELOG / "types.py",
        EXTENSIONS,
        SRC / "pyspark_statelog",
    }
    below = [path for path in modules() if not above & {path, *path.parents}]
    naming = {path for path in below if "statelog.extensions" in text_of(path)}
    assert NAMING == naming
