"""State variables that cannot be used, and say why when they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from statelog.errors import UsageError
from statelog.spark.rows.spark_errors import DeletedStateError
from statelog.state.kinds import StateKind
from statelog.state.objects.bound_state import BoundState

_SPARKS_WORDS: Final[dict[StateKind, dict[str, str]]] = {
    StateKind.VALUE: {
        "exists": "Error checking value state exists",
        "get": "Error getting value state",
        "update": "Error updating value state",
        "clear": "Error clearing value state",
    },
    StateKind.LIST: {
        "exists": "Error checking value state exists",
        "put": "Error updating value state",
        "appendValue": "Error updating value state",
        "appendList": "Error updating value state",
        "clear": "Error clearing value state",
    },
    StateKind.MAP: {
        "exists": "Error checking map state exists",
        "getValue": "Error getting value",
        "containsKey": "Error checking if map state contains key",
        "updateValue": "Error updating map state value",
        "removeKey": "Error removing key from map state",
        "clear": "Error clearing map state",
    },
}
"""What Spark says when a method of a deleted variable is called: code may look for it."""
_NOT_OF_USERS: Final = frozenset({"as_row", "bound_to", "enter", "kind", "leave"})
"""Names of state objects that are not for processors."""


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
    for method in dir(type(state)):
        if not method.startswith("_") and method not in _NOT_OF_USERS:
            setattr(state, method, _refusal(state.kind, method, name))


def _refusal(kind: StateKind, method: str, name: str) -> Callable[..., NoReturn]:
    words = _SPARKS_WORDS.get(kind, {}).get(method, f"Error using {kind.value} state")

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise DeletedStateError(
            f"{words}: state {name!r} was deleted by deleteIfExists() in init(), after init() had "
            "asked for it; ask for it behind the deletion, or leave the deletion out"
        )

    return refuse
