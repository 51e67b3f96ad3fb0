"""Modules and functions stay small enough to be read in one go."""

import ast
from pathlib import Path

import pytest
from tests.house.sources import Function, functions, has_docstring, modules, name_of

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 69
PARAMETERS_MAX = 6
"""Positional ones; keyword-only parameters are not counted."""

DOCUMENTED_CALLS = {
    "src/statelog/cli/demo.py:demo",  # its parameters are the command's options
    "src/statelog/cli/report.py:report",
    "src/statelog/spark/api.py:transform_with_state",  # Spark's arguments
    "src/statelog/spark/api.py:transform_with_state_in_pandas",
}


def function_lines(node: Function) -> int:
    """Count the lines of the body, from its first statement after the docstring to its last."""
    body = node.body[1:] if has_docstring(node) else node.body
    if not body:
        return 0
    return (node.end_lineno or 0) - body[0].lineno + 1


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_is_not_too_long(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES_MAX, f"{name_of(path)} has {lines} lines: split it by task"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_no_function_is_too_long(path: Path) -> None:
    long = {
        f"{name_of(path)}:{node.lineno} {node.name}": function_lines(node)
        for node in functions(path)
        if function_lines(node) > FUNCTION_LINES_MAX
    }
    assert long == {}


def positional(node: Function) -> int:
    """Count the parameters that can be passed by position, the instance or class aside."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_no_function_has_too_many_parameters(path: Path) -> None:
    many = {
        f"{name_of(path)}:{node.name}": positional(node)
        for node in functions(path)
        if positional(node) > PARAMETERS_MAX
    }
    assert many.keys() <= DOCUMENTED_CALLS, many


def test_the_measure_leaves_keywords_out() -> None:
    node = ast.parse("def f(self, a, b=1, *, c): ...").body[0]
    assert isinstance(node, Function)
    assert 2 == positional(node)


def test_the_measure_leaves_docstrings_out() -> None:
    node = ast.parse('def f():\n    """\n    One.\n    """\n    a = 1\n\n    return a\n').body[0]
    assert isinstance(node, Function)
    assert function_lines(node) == 3
