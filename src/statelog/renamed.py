"""
Former names of arguments and options, which work for one version.

A function declares its former names by `renamed`, an option and a setting in its declaration.  All of them
are mapped here: the caller is warned with the new line, and may not give both names.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final, ParamSpec, TypeVar

from statelog.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

FORMER_NAMES: Final = "__former_names__"
"""The attribute of a function with its former names, for the documentation."""
_CALLER: Final = 4
"""Frames from the warning to the caller: `warn_renamed`, `replace_former`, the wrapper, the caller."""


def warn_renamed(old: str, new: str, *, stacklevel: int = _CALLER - 1) -> None:
    """Warn that what the caller wrote has a new name; Python prints the warning by default."""
    message = f"{old} is now {new}; the next version of statelog removes the old name"
    warnings.warn(message, FutureWarning, stacklevel=stacklevel)


def replace_former(
    given: MutableMapping[str, V],
    former: Mapping[str, str],
    spelled: Callable[[str], str],
    *,
    error: type[UsageError] = UsageError,
) -> None:
    """
    Replace the former names in *given* by the new names, with a warning for each.

    Args:
        given: Values by name, which is changed.
        former: The new name of each former name.
        spelled: Returns how a caller writes a name, for warnings and errors.
        error: The error class.

    Raises:
        UsageError: A former and its new name are both given.
    """
    for old in [name for name in given if name in former]:
        new = former[old]
        if new in given:
            raise error(
                f"{spelled(old)} is the former name of {spelled(new)}: give {spelled(new)} only"
            )
        warn_renamed(spelled(old), spelled(new), stacklevel=_CALLER)
        given[new] = given.pop(old)


def renamed(**former: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """
    Return a decorator that accepts the former names of a function's keyword arguments.

    Args:
        former: The new name of each former name.
    """
    return _mapped(former, lambda given, name: None)


def dry_run_by_default(**former: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """
    Return a decorator for a function that changes nothing without `apply=True`, and acted before 0.3.

    Its former argument `dry_run` is mapped to `apply`.  A call with neither is warned that nothing changes.

    Args:
        former: The new name of each former name.
    """
    return _mapped(former, _map_dry_run)


def _map_dry_run(given: MutableMapping[str, object], name: str) -> None:
    if "dry_run" in given:
        if "apply" in given:
            raise UsageError(f"{name}(dry_run=...) is the former name of apply: give apply only")
        dry_run = bool(given.pop("dry_run"))
        given["apply"] = not dry_run
        warn_renamed(
            f"{name}(dry_run={dry_run})", f"{name}(apply={not dry_run})", stacklevel=_CALLER
        )
    elif "apply" not in given:
        warnings.warn(
            f"{name}(...) changes nothing: since 0.3 it is a dry run without {name}(..., apply=True); "
            f"with apply=False it does not warn",
            FutureWarning,
            stacklevel=_CALLER - 1,
        )


def _mapped(
    former: Mapping[str, str], also: Callable[[MutableMapping[str, object], str], None]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = function.__name__

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if not former.keys().isdisjoint(kwargs):
                replace_former(kwargs, former, lambda argument: f"{name}({argument}=...)")
            also(kwargs, name)
            return function(*args, **kwargs)

        setattr(call, FORMER_NAMES, former)
        return call

    return decorate
