"""
Modules and functions stay small enough to be read in one go.

A module is about one thing: 100 to 500 lines are the habit, 600 the bound.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import (
    Function,
    breaches,
    functions,
    has_docstring,
    modules,
    name_of,
    text_of,
)

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 69
PARAMETERS_MAX = 6
"""Positional ones; keyword-only parameters are not counted."""

DOCUMENTED_CALLS = {
    "src/statelog/spark/api.py:transform_with_state",  # Spark's arguments
    "src/statelog/spark/api.py:transform_with_state_in_pandas",
}


def function_lines(node: Function) -> int:
    body = node.body[1:] if has_docstring(node) else node.body
    if not body:
        return 0
    return (node.end_lineno or 0) - body[0].lineno + 1


def test_no_module_is_too_long() -> None:
    lines = {name_of(path): len(text_of(path).splitlines()) for path in modules()}
    assert {} == {name: count for name, count in lines.items() if count > MODULE_LINES_MAX}


def test_no_function_is_too_long() -> None:
    assert {} == breaches(modules(), long_functions)


def long_functions(path: Path) -> Iterator[str]:
    for node in functions(path):
        if function_lines(node) > FUNCTION_LINES_MAX:
            yield f"line {node.lineno} {node.name}: {function_lines(node)} lines"


def positional(node: Function) -> int:
    """Count the parameters that can be passed by position, the instance or class aside."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_function_has_too_many_parameters() -> None:
    many = {
        f"{name_of(path)}:{node.name}"
        for path in modules()
        for node in functions(path)
        if positional(node) > PARAMETERS_MAX
    }
    assert many == DOCUMENTED_CALLS
