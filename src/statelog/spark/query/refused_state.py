"""State variables that cannot be used, and say why when they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from statelog.errors import UsageError
from statelog.spark.query.state_variables import classes_of, methods_of
from statelog.spark.rows.spark_errors import DeletedStateError
from statelog.state.kinds import StateKind
from statelog.state.objects.bound_state import BoundState


class StateWithoutKey:
    """A state variable on the driver: there is no key, so nothing can be read or written."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise UsageError(
            f"state {self._name!r} belongs to a key: read and write it while rows or timers are "
            "handled, not in init() or close()"
        )


class RefusedState:
    """
    A state variable of a task that the operator does not have.

    Args:
        kind: What was asked for.
        error: Why there is none.
    """

    def __init__(self, kind: StateKind, error: UsageError) -> None:
        self._kind = kind
        self._error = error
        self._deleted = ""

    def __getattr__(self, attribute: str) -> Callable[..., NoReturn]:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if not self._deleted:
            raise self._error
        return _refusal(self._kind, attribute, self._deleted)


def refuse_use(state: BoundState | RefusedState, name: str) -> None:
    """Let every method of a state variable say that the variable was deleted."""
    if isinstance(state, RefusedState):
        state._deleted = name
        return
    for method in methods_of(type(state)):
        setattr(state, method, _refusal(state.kind, method, name))


def _refusal(kind: StateKind, method: str, name: str) -> Callable[..., NoReturn]:
    words = classes_of(kind).failures.get(method, f"Error using {kind.value} state")

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise DeletedStateError(
            f"{words}: state {name!r} was deleted by deleteIfExists() in init(), after init() had "
            "asked for it; ask for it after the deletion, or leave the deletion out"
        )

    return refuse
