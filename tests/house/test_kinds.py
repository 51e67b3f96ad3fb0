"""
What is particular to a kind of state is in `state/kinds`: other code calls the kind's methods.

A switch elsewhere is one more place that a new kind must be added to, and no test would miss it.
"""

import ast
from collections.abc import Iterator

import pytest
from tests.house.sources import SRC, breaches, modules, tree_of

from statelog.state.kinds import StateKind

KINDS = SRC / "statelog" / "state" / "kinds"
NAMES = {kind.value for kind in StateKind}
CLASSES = {type(kind.rules).__name__ for kind in StateKind}


def test_kinds_are_switched_on_in_their_package_only() -> None:
    outside = [path for path in modules() if KINDS not in path.parents]
    assert {} == breaches(outside, lambda path: switches(tree_of(path)))
    assert len(outside) < len(modules())


def switches(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for at, part in decided_by(node):
            yield f"line {at}: {part}"


def decided_by(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of what *node* compares with kinds, or looks up by them."""
    match node:
        case ast.Compare(left, _, others):
            sides = [left, *others]
            if any(map(names_kind, sides)) or (
                any(map(is_kind, sides)) and any(map(is_name_of_kind, sides))
            ):
                yield node.lineno, ast.unparse(node)
        case ast.Match(subject, cases):
            patterns = [part for case in cases for part in ast.walk(case.pattern)]
            values = [part.value for part in patterns if isinstance(part, ast.MatchValue)]
            if any(map(names_kind, values)) or (
                is_kind(subject) and any(map(is_name_of_kind, values))
            ):
                yield node.lineno, f"match {ast.unparse(subject)}"
        case ast.Dict(keys):
            if any(names_kind(key) for key in keys if key is not None):
                yield node.lineno, "a dict by kind"
        case ast.Subscript(_, index):
            if names_kind(index):
                yield node.lineno, ast.unparse(node)
        case ast.Call(ast.Name("isinstance"), [_, kinds]):
            if any(isinstance(part, ast.Name) and part.id in CLASSES for part in ast.walk(kinds)):
                yield node.lineno, ast.unparse(node)


def names_kind(node: ast.AST) -> bool:
    """Return whether an expression is a member of `StateKind`, or a collection of them."""
    match node:
        case ast.Attribute(ast.Name("StateKind"), name):
            return name.isupper()
        case ast.Attribute(value):  # StateKind.TIMER.value
            return names_kind(value)
        case ast.Tuple(parts) | ast.List(parts) | ast.Set(parts):
            return any(map(names_kind, parts))
    return False


def is_kind(node: ast.AST) -> bool:
    """Return whether an expression is called a kind."""
    match node:
        case ast.Attribute(ast.expr(), "kind") | ast.Name("kind") | ast.Attribute(_, "kind_text"):
            return True
        case ast.Attribute(value, "value" | "name"):
            return is_kind(value)
    return False


def is_name_of_kind(node: ast.AST) -> bool:
    match node:
        case ast.Constant(str(name)):
            return name in NAMES
        case ast.Tuple(parts) | ast.List(parts) | ast.Set(parts):
            return any(map(is_name_of_kind, parts))
    return False


@pytest.mark.parametrize(
    "code",
    [
        "if state.kind is StateKind.TIMER: pass",
        "kept = [state for state in states if state.kind is not StateKind.TIMER]",
        "if kind in (StateKind.LIST, StateKind.MAP): pass",
        "if name == StateKind.MAP.value: pass",
        "match state.kind:\n    case StateKind.VALUE | StateKind.LIST: pass",
        "match variable.kind:\n    case 'list': pass",
        "if variable.kind == 'value': pass",
        "if state.kind.value in {'list', 'map'}: pass",
        "titles = {StateKind.VALUE: 'Value'}",
        "title = titles[StateKind.VALUE]",
        "if isinstance(state.kind, TimerKind): pass",
    ],
)
def test_a_switch_is_seen(code: str) -> None:
    assert len(list(switches(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "state = self._variable(WantedVariable(name, StateKind.LIST, schema))",
        "class ListState:\n    kind = StateKind.LIST",
        "if descriptor.kind is not wanted.kind: pass",
        "if new.kind == 'checkpoint': pass",
        "titles = {kind: kind.value for kind in StateKind}",
        "column = table.column('value')",
    ],
)
def test_a_kind_may_be_named_and_compared_with_another(code: str) -> None:
    assert [] == list(switches(ast.parse(code)))
