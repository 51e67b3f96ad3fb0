"""
Every error survives pickle with its facts: Spark sends errors from workers to the driver.

An error that fails to unpickle hides the true one.
"""

import ast
import copy
import enum
import pickle
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from tests.house.sources import breaches, modules, tree_of

from statelog import errors

SAMPLES: dict[type, object] = {bool: True, int: 7, str: "a fact", object: b"\x00\xff"}
UNKNOWN = object()


def error_classes() -> list[type[BaseException]]:
    """Every exception that lives in statelog.errors, and their subclasses known by now."""
    found: dict[str, type[BaseException]] = {}
    waiting: list[Any] = [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__.startswith("statelog")
    ]
    while waiting:
        one = waiting.pop()
        found[f"{one.__module__}.{one.__qualname__}"] = one
        waiting.extend(one.__subclasses__())
    return [found[name] for name in sorted(found)]


def sample(annotation: Any) -> Any:
    """Make a value of the annotated type, of the kind that an error's fact would be."""
    if annotation in SAMPLES:
        return SAMPLES[annotation]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return next(iter(annotation))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return next((one for one in map(sample, arguments) if one is not UNKNOWN), UNKNOWN)
    return (sample(arguments[0]),) if origin is tuple else UNKNOWN


def sample_facts(one: type[BaseException]) -> Iterator[tuple[str, object]]:
    """Yield a value of each fact that a class declares."""
    for name, annotation in typing.get_type_hints(one).items():
        if hasattr(one, name):
            yield name, sample(annotation)


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_and_its_facts_survive_pickle_and_copy(kind: type[BaseException]) -> None:
    assert kind.__name__.endswith("Error")
    assert issubclass(kind, errors.StatelogError | AssertionError)
    facts = dict(sample_facts(kind))
    assert str(kind("what happened, where")) == "what happened, where"
    for error in (kind("what happened, where"), kind("what happened, where", **facts)):
        for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(error) is type(copied)
            assert (str(error), error.args) == (str(copied), copied.args)
            assert vars(error) == vars(copied)
    assert facts == {name: getattr(copied, name) for name in facts}


def undeclared_facts(tree: ast.AST) -> Iterator[str]:
    """Yield each fact of an error that its class does not declare."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            kind = getattr(errors, node.func.id, None)
            if isinstance(kind, type) and issubclass(kind, errors.StatelogError):
                for keyword in node.keywords:
                    if keyword.arg is not None and not hasattr(kind, keyword.arg):
                        yield f"line {node.lineno}: {node.func.id} has no {keyword.arg}"


def test_the_facts_of_an_error_are_declared() -> None:
    assert {} == breaches(modules(), lambda path: undeclared_facts(tree_of(path)))
    assert 1 == len(list(undeclared_facts(ast.parse("StoreError('', path='a', paths='b')"))))


def test_the_reason_chooses_the_class() -> None:
    for reason in errors.Reason:
        error = errors.CheckpointError("what happened", reason=reason, path="a")
        assert errors.CLASSES.get(reason, errors.CheckpointError) is type(error)
        assert (reason, reason, "a") == (error.reason, str(error.reason), error.path)
        assert type(error)("what happened").reason in (error.reason, None)
    assert issubclass(errors.CheckpointSubsumedError, errors.CheckpointNotFoundError)
    assert errors.CheckpointError("what happened").reason is None
