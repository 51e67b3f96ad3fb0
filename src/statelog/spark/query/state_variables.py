"""
The state variables that a processor declares in `init`, and the objects for them.

The objects are PySpark's classes by type and by method names, and statelog's state by content: no
socket, no serialization per call.  `StateVariables` has the methods of all handles, so that a kind
of state is offered in one place; each handle says what becomes of a wanted variable.  Where Spark
4.3 and statelog differ: a value that does not fit its type, or is None in a NOT NULL field, is an
error that names it (Spark stores null instead, and lets integers wrap around); a tuple of the wrong
length, or no tuple at all, is a `UsageError` (Spark's query fails); a Row in a struct field is
taken by its field names (Spark: by position); `put([])` and `appendList([])` are allowed (Spark's
query fails); map entries come in the order of their last write (Spark: of their encoded keys);
arrays and maps cannot be part of a map key; a state name is not empty, does not begin with `$` or
`key.`, and is not `key_group`.  docs/reference/state-variables.md has the table.  Extras that Spark
does not have: `getReducingState`, `getAggregatingState` and the calls that extensions add; a
processor that asks for them runs here only.
Source: pyspark.sql.streaming.stateful_processor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Self

from pyspark.sql import Row
from pyspark.sql.types import StructType

from statelog.arguments import given
from statelog.errors import UsageError
from statelog.spark.extension_table import ExtendedHandle
from statelog.spark.rows.spark_versions import DeletedStateError, StatefulProcessorHandle
from statelog.spark.rows.spark_versions import ListState as PySparkListState
from statelog.spark.rows.spark_versions import MapState as PySparkMapState
from statelog.spark.rows.spark_versions import ValueState as PySparkValueState
from statelog.spark.rows.types import row_factory
from statelog.state.encoding.deltas import StateCodec
from statelog.state.kinds import StateKind, Values
from statelog.state.objects import (
    AggregateFunction,
    AggregatingState,
    BoundState,
    Cursor,
    ReduceFunction,
    ReducingState,
)
from statelog.state.objects import ExpiringListState as KeyedExpiringListState
from statelog.state.objects import ExpiringMapState as KeyedExpiringMapState
from statelog.state.objects import ExpiringValueState as KeyedExpiringValueState
from statelog.state.objects import ListState as KeyedListState
from statelog.state.objects import MapState as KeyedMapState
from statelog.state.objects import ValueState as KeyedValueState
from statelog.state.schema import Aggregation

SchemaLike = StructType | str

_NOT_OF_USERS: Final = frozenset({"as_row", "bound_to", "enter", "kind", "leave"})
"""Names of state objects that are not for processors."""


class ValueState(KeyedValueState, PySparkValueState):
    """PySpark's ValueState on statelog."""


class ExpiringValueState(KeyedExpiringValueState, PySparkValueState):
    """PySpark's ValueState with a time to live."""


class _ListMethods(KeyedListState):
    """The list methods under the names that PySpark gives them."""

    def appendValue(self, newState: Values) -> None:
        """Append one element."""
        self.append(newState)

    def appendList(self, newState: list[Values]) -> None:
        """Append several elements."""
        self.append_all(newState)


class ListState(_ListMethods, PySparkListState):
    """PySpark's ListState on statelog."""


class ExpiringListState(_ListMethods, KeyedExpiringListState, PySparkListState):
    """PySpark's ListState with a time to live for each element."""


class _MapMethods(KeyedMapState):
    """The map methods under the names that PySpark gives them."""

    as_row: Callable[[Iterable[object]], Row]

    @classmethod
    def bound_to(cls, cursor: Cursor, state_id: int, codec: StateCodec) -> Self:
        """Create a map state whose `getValue` returns Rows, as in Spark."""
        bound = super().bound_to(cursor, state_id, codec)
        bound.as_row = row_factory(codec.value.schema.names)
        return bound

    def getValue(self, key: Values) -> Values | None:
        """Return the value for *key* as a Row, or None."""
        value = self.get(key)
        return None if value is None else self.as_row(value)

    def containsKey(self, key: Values) -> bool:
        """Return whether the map has a value for *key*."""
        return self.contains(key)

    def updateValue(self, key: Values, value: Values) -> None:
        """Set the value for *key*."""
        self.put(key, value)

    def removeKey(self, key: Values) -> None:
        """Remove the value for *key*."""
        self.remove(key)


class MapState(_MapMethods, PySparkMapState):
    """PySpark's MapState on statelog."""


class ExpiringMapState(_MapMethods, KeyedExpiringMapState, PySparkMapState):
    """PySpark's MapState with a time to live for each entry."""


@dataclass(frozen=True, slots=True)
class StateClasses:
    """
    The classes of the state objects for one kind of state.

    Args:
        plain, expiring: Without and with a time to live.
        failures: By method, what Spark says of a deleted variable: code may look for it.
    """

    plain: type[BoundState]
    expiring: type[BoundState]
    failures: Mapping[str, str] = field(default_factory=dict)


STATE_CLASSES: Final = (
    StateClasses(
        ValueState,
        ExpiringValueState,
        {
            "exists": "Error checking value state exists",
            "get": "Error getting value state",
            "update": "Error updating value state",
            "clear": "Error clearing value state",
        },
    ),
    StateClasses(
        ListState,
        ExpiringListState,
        {
            "exists": "Error checking value state exists",
            "put": "Error updating value state",
            "appendValue": "Error updating value state",
            "appendList": "Error updating value state",
            "clear": "Error clearing value state",
        },
    ),
    StateClasses(
        MapState,
        ExpiringMapState,
        {
            "exists": "Error checking map state exists",
            "getValue": "Error getting value",
            "containsKey": "Error checking if map state contains key",
            "updateValue": "Error updating map state value",
            "removeKey": "Error removing key from map state",
            "clear": "Error clearing map state",
        },
    ),
)
_BY_KIND: Final = {classes.plain.kind: classes for classes in STATE_CLASSES}


def classes_of(kind: StateKind) -> StateClasses:
    """Return the classes for one kind of state."""
    return _BY_KIND[kind]


def methods_of(state: type[BoundState]) -> list[str]:
    """Return the names of the methods that processors call."""
    return [name for name in dir(state) if not name.startswith("_") and name not in _NOT_OF_USERS]


def bind_variable(cursor: Cursor, state_id: int, codec: StateCodec) -> BoundState:
    """Return the object through which a processor accesses a state variable."""
    classes = classes_of(codec.descriptor.kind)
    bound = classes.expiring if codec.expires else classes.plain
    return bound.bound_to(cursor, state_id, codec)


@dataclass(frozen=True, slots=True)
class WantedVariable:
    """
    A state variable that `init` declares.

    Args:
        name: Its name.
        kind: Its kind.
        value: Fields of a value.
        user_key: Fields of a map key; None for other kinds.
        ttl_ms: Time to live in milliseconds, or None.
        aggregation: What a value state aggregates, or None.
    """

    name: str
    kind: StateKind
    value: SchemaLike
    user_key: SchemaLike | None = None
    ttl_ms: int | None = None
    aggregation: Aggregation | None = None


class StateVariables(ExtendedHandle, StatefulProcessorHandle):
    """The methods with which a handle declares state variables."""

    @abstractmethod
    def _variable(self, asked: WantedVariable) -> Any:
        """Return the object for a state variable."""

    def getValueState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> PySparkValueState:
        """Return the value state *stateName*."""
        variable = WantedVariable(stateName, StateKind.VALUE, schema, ttl_ms=ttlDurationMs)
        state: PySparkValueState = self._variable(variable)
        return state

    def getReducingState(
        self,
        stateName: str,
        schema: SchemaLike,
        reduce: ReduceFunction,
        ttlDurationMs: int | None = None,
    ) -> ReducingState:
        """Return the reducing state *stateName*; *reduce* combines two tuples into one."""
        if not callable(reduce):
            raise UsageError(f"state {stateName!r}: reduce must be a function, not {given(reduce)}")
        variable = WantedVariable(
            stateName,
            StateKind.VALUE,
            schema,
            ttl_ms=ttlDurationMs,
            aggregation=Aggregation.REDUCING,
        )
        return ReducingState(self._variable(variable), reduce)

    def getAggregatingState(
        self,
        stateName: str,
        accumulatorSchema: SchemaLike,
        aggregateFunction: AggregateFunction,
        ttlDurationMs: int | None = None,
    ) -> AggregatingState:
        """Return the aggregating state *stateName*, whose accumulators have a given schema."""
        for method in ("create_accumulator", "add", "get_result", "merge"):
            if not callable(getattr(aggregateFunction, method, None)):
                raise UsageError(
                    f"state {stateName!r}: its function does not have a method {method}()"
                )
        variable = WantedVariable(
            stateName,
            StateKind.VALUE,
            accumulatorSchema,
            ttl_ms=ttlDurationMs,
            aggregation=Aggregation.AGGREGATING,
        )
        return AggregatingState(self._variable(variable), aggregateFunction)

    def getListState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> PySparkListState:
        """Return the list state *stateName*."""
        variable = WantedVariable(stateName, StateKind.LIST, schema, ttl_ms=ttlDurationMs)
        state: PySparkListState = self._variable(variable)
        return state

    def getMapState(
        self,
        stateName: str,
        userKeySchema: SchemaLike,
        valueSchema: SchemaLike,
        ttlDurationMs: int | None = None,
    ) -> PySparkMapState:
        """Return the map state *stateName*."""
        variable = WantedVariable(
            stateName, StateKind.MAP, valueSchema, userKeySchema, ttlDurationMs
        )
        state: PySparkMapState = self._variable(variable)
        return state


class Unusable:
    """On the driver, a placeholder in `init` for objects that can only be used with a key."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise UsageError(self._message)


class RefusedState:
    """A state variable that the task's processor declares but the operator does not have."""

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
    """Make every method of a state variable raise an error that says it was deleted."""
    if isinstance(state, RefusedState):
        state._deleted = name
        return
    for method in methods_of(type(state)):
        setattr(state, method, _refusal(state.kind, method, name))


def _refusal(kind: StateKind, method: str, name: str) -> Callable[..., NoReturn]:
    words = classes_of(kind).failures.get(method, f"Error using {kind.value} state")

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise DeletedStateError(
            f"{words}: state {name!r} was deleted by deleteIfExists() in init(), after init() had "
            "declared it; declare it after the deletion, or omit the deletion"
        )

    return refuse
