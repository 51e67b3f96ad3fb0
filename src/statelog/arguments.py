"""
Check the arguments of public calls; errors say what was expected and what was passed.

Each function returns the value in its plain type (a NumPy integer becomes an `int`) or raises the
error class that the caller passes.  No check converts text or fractions: `"5"` is not 5.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import os
import re
from collections.abc import Sequence
from typing import TypeVar

from statelog.errors import UsageError

T = TypeVar("T")
Seconds = float | dt.timedelta
"""A duration of a call: a number of seconds, or a `timedelta`."""

_PLAIN_KINDS = (bool, int, float, dt.date, dt.time, dt.timedelta)
_PLAIN_TEXT = re.compile(r"[-+]?[\d.,_]{0,24} ?[A-Za-z]{0,3}", re.ASCII)
_SHOWN_CHARACTERS = 80


def given(value: object) -> str:
    """
    Describe the type of *value* for a message, and the value unless it may be a credential.

    A number, a time and a text such as "5 MB" are shown.  Other texts, mappings, functions and
    objects may contain a password.
    """
    if value is None:
        return "None"
    kind = type(value).__name__
    is_plain = isinstance(value, _PLAIN_KINDS) or (
        isinstance(value, str) and _PLAIN_TEXT.fullmatch(value) is not None
    )
    return f"{repr(value)[:_SHOWN_CHARACTERS]} ({kind})" if is_plain else f"a {kind}"


def refused(
    name: str, expected: str, value: object, error: type[UsageError] = UsageError
) -> UsageError:
    """Return the error for an argument with a wrong type or outside its range."""
    return error(f"{name} must be {expected}, not {given(value)}", fields=(name,))


def whole_number(
    value: object,
    name: str,
    *,
    low: int | None = None,
    high: int | None = None,
    error: type[UsageError] = UsageError,
) -> int:
    """Check a whole number within [low, high], and return it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refused(name, f"a whole number{_range(low, high)}", value, error) from None
    if (low is not None and number < low) or (high is not None and number > high):
        raise refused(name, f"a whole number{_range(low, high)}", value, error)
    return number


def number(
    value: object,
    name: str,
    *,
    low: float | None = None,
    error: type[UsageError] = UsageError,
) -> float:
    """Check a finite number >= *low*, and return it."""
    bound = "" if low is None else f" of at least {low:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refused(name, f"a finite number{bound}", value, error)
    if not math.isfinite(value) or (low is not None and value < low):
        raise refused(name, f"a finite number{bound}", value, error)
    return float(value)


def seconds(
    value: object,
    name: str,
    *,
    low: float | None = None,
    error: type[UsageError] = UsageError,
) -> float:
    """Convert a duration to seconds >= *low*; it is a number or a `timedelta`."""
    if isinstance(value, dt.timedelta):
        return number(value.total_seconds(), name, low=low, error=error)
    bound = "" if low is None else f" of at least {low:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        expected = f"a finite number of seconds{bound}, or a datetime.timedelta"
        raise refused(name, expected, value, error)
    return number(value, name, low=low, error=error)


def switch(value: object, name: str, *, error: type[UsageError] = UsageError) -> bool:
    """Check that a value is a `bool`, and return it."""
    if not isinstance(value, bool):
        raise refused(name, "True or False", value, error)
    return value


def text(value: object, name: str, *, error: type[UsageError] = UsageError) -> str:
    """Check that a value is a `str`, and return it."""
    if not isinstance(value, str):
        raise refused(name, "text", value, error)
    return value


def duration(value: object, name: str, *, error: type[UsageError] = UsageError) -> dt.timedelta:
    """Check that a value is a `timedelta`, and return it."""
    if not isinstance(value, dt.timedelta):
        expected = "a datetime.timedelta such as timedelta(milliseconds=10)"
        raise refused(name, expected, value, error)
    return value


def path(value: object, name: str, *, error: type[UsageError] = UsageError) -> str:
    """Convert a path to text."""
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike) and isinstance(path_text := os.fspath(value), str):
        return path_text
    raise refused(name, "a path (text or os.PathLike)", value, error)


def paths(value: object, name: str, *, error: type[UsageError] = UsageError) -> tuple[str, ...]:
    """Convert several paths to text."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise refused(name, "a sequence of paths", value, error)
    return tuple(path(entry, f"each of {name}", error=error) for entry in value)


def instance(
    value: object,
    name: str,
    kinds: type[T] | tuple[type[T], ...],
    expected: str,
    *,
    error: type[UsageError] = UsageError,
) -> T:
    """Check that *value* is an instance of *kinds*, described by *expected*, and return it."""
    if not isinstance(value, kinds):
        raise refused(name, expected, value, error)
    return value


def acting(value: T, name: str, methods: Sequence[str], expected: str) -> T:
    """Check that *value* has all *methods* of the protocol *expected*, and return it."""
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if missing:
        raise UsageError(
            f"{name} must be {expected}, with the methods {', '.join(methods)}; {given(value)} "
            f"does not have {', '.join(missing)}",
            fields=(name,),
        )
    return value


def folder(value: object, name: str, *, error: type[UsageError] = UsageError) -> str:
    """Check the name of a folder below a root, where "" means no folder, and return it."""
    name_text = text(value, name, error=error)
    if name_text in (".", "..") or any(
        character in "/\\" or not character.isprintable() for character in name_text
    ):
        expected = "the name of one folder, without slashes and control characters, not '.' or '..'"
        raise error(f"{name} must be {expected}; it is {name_text!r:.80}", fields=(name,))
    return name_text


def _range(low: int | None, high: int | None) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f" of at least {low}"
    return f" from {low} to {high}" if low is not None else f" of at most {high}"
