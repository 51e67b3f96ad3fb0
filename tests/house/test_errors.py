"""
Every error survives pickle with its facts: Spark sends errors from workers to the driver.

An error that fails to unpickle hides the true one.
"""

import copy
import enum
import inspect
import pickle
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from statelog import errors

SAMPLES: dict[type, object] = {bool: True, int: 7, float: 1.5, str: "a fact", bytes: b"\x00\xff"}
FREE_FACTS = {"path": "a/b", "offset": 7, "checkpoint_id": None}  # for a class that takes any
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
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        values = tuple(map(sample, arguments))
        return UNKNOWN if any(value is UNKNOWN for value in values) else values
    return UNKNOWN


def sample_facts(one: type[BaseException]) -> Iterator[tuple[str, object]]:
    try:
        parameters = inspect.signature(one).parameters
        annotations = typing.get_type_hints(one.__init__)
    except (NameError, TypeError, ValueError):  # a builtin's __init__ says nothing
        return
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            yield from FREE_FACTS.items()
        elif parameter.kind is parameter.KEYWORD_ONLY:
            value = sample(annotations.get(name))
            if value is not UNKNOWN:
                yield name, value


@pytest.mark.parametrize("one", error_classes(), ids=lambda one: one.__name__)
def test_an_error_survives_pickle_and_copy(one: type[BaseException]) -> None:
    facts = dict(sample_facts(one))
    for error in (one("what happened, where"), one("what happened, where", **facts)):
        for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(error) is type(back)
            assert str(error) == str(back)
            assert error.args == back.args
            assert vars(error) == vars(back)


@pytest.mark.parametrize("one", error_classes(), ids=lambda one: one.__name__)
def test_an_error_keeps_its_facts_as_attributes(one: type[BaseException]) -> None:
    facts = dict(sample_facts(one))
    back = pickle.loads(pickle.dumps(one("what happened, where", **facts)))
    assert facts == {name: getattr(back, name) for name in facts}


@pytest.mark.parametrize("one", error_classes(), ids=lambda one: one.__name__)
def test_an_error_takes_one_message_and_says_error(one: type[BaseException]) -> None:
    assert one.__name__.endswith("Error")
    assert str(one("what happened")) == "what happened"
    assert issubclass(one, errors.StatelogError) or issubclass(one, AssertionError)
