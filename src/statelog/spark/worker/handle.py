"""
The handle and state objects that an unmodified `StatefulProcessor` is given.

They are PySpark's classes by type and by method names, and statelog's state by content: no socket,
no serialization per call.
Where Spark 4.3 and statelog differ: a value that does not fit its type, or is None in a NOT NULL
field, is an error that names it (Spark stores null instead, and lets integers wrap around); a
tuple of the wrong length, or no tuple at all, is a `UsageError` (Spark's query fails); a Row in a
struct field is taken by its field names (Spark: by position); `put([])` and `appendList([])` are
allowed (Spark's query fails); map entries come in the order of their last write (Spark: of their
encoded keys); arrays and maps cannot be part of a map key; a state name is not empty, does not
begin with `$` or `key.`, and is not `key_group`.  docs/reference/state-variables.md has the table.
Extras that Spark does not have: `getReducingState`, `getAggregatingState`; a processor that asks
for them runs here only.
Source: pyspark.sql.streaming.stateful_processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ListState as PySparkListState
from pyspark.sql.streaming.stateful_processor import MapState as PySparkMapState
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import ValueState as PySparkValueState

from statelog.errors import InvariantError, UsageError
from statelog.spark.query.declared_state import SchemaLike, check_not_reserved
from statelog.spark.query.refused_state import RefusedState, refuse_use
from statelog.spark.rows.types import row_factory
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.objects.aggregates import (
    AggregateFunction,
    AggregatingState,
    ReduceFunction,
    ReducingState,
)
from statelog.state.objects.bound_state import Cursor
from statelog.state.objects.list import ExpiringListState as KeyedExpiringListState
from statelog.state.objects.list import ListState as KeyedListState
from statelog.state.objects.map import ExpiringMapState as KeyedExpiringMapState
from statelog.state.objects.map import MapState as KeyedMapState
from statelog.state.objects.timers import Timers
from statelog.state.objects.value import ExpiringValueState as KeyedExpiringValueState
from statelog.state.objects.value import ValueState as KeyedValueState
from statelog.state.schema.descriptors import Aggregation, StateKind


class ValueState(KeyedValueState, PySparkValueState):
    """PySpark's ValueState on statelog."""


class ExpiringValueState(KeyedExpiringValueState, PySparkValueState):
    """PySpark's ValueState with a time to live."""


class _ListMethods:
    """PySpark's spelling of the list methods."""

    def appendValue(self: Any, newState: tuple[Any, ...]) -> None:
        """Append one element."""
        self.append(newState)

    def appendList(self: Any, newState: list[tuple[Any, ...]]) -> None:
        """Append several elements."""
        self.append_all(newState)


class ListState(_ListMethods, KeyedListState, PySparkListState):
    """PySpark's ListState on statelog."""


class ExpiringListState(_ListMethods, KeyedExpiringListState, PySparkListState):
    """PySpark's ListState with a time to live of each element."""


class _MapMethods:
    """PySpark's spelling of the map methods."""

    as_row: Callable[[Iterable[Any]], Row]

    def getValue(self: Any, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the value under *key* as a Row, or None."""
        value = self.get(key)
        return None if value is None else self.as_row(value)

    def containsKey(self: Any, key: tuple[Any, ...]) -> bool:
        """Return whether there is a value under *key*."""
        return self.contains(key)  # type: ignore[no-any-return]

    def updateValue(self: Any, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Set the value under *key*."""
        self.put(key, value)

    def removeKey(self: Any, key: tuple[Any, ...]) -> None:
        """Remove the value under *key*."""
        self.remove(key)


class MapState(_MapMethods, KeyedMapState, PySparkMapState):
    """PySpark's MapState on statelog."""


class ExpiringMapState(_MapMethods, KeyedExpiringMapState, PySparkMapState):
    """PySpark's MapState with a time to live of each entry."""


class TaskHandle(StatefulProcessorHandle):
    """
    The handle of one task: state variables by name, timers of the current key.

    Args:
        cursor: Whose state is shown.
        codec: The operator's codec; holds every variable that `init` asked for on the driver.
        timers: The operator's timers, or None where the time mode has none.
        drop: Called with the state id when a variable is deleted.
    """

    def __init__(
        self,
        cursor: Cursor,
        codec: OperatorCodec,
        timers: Timers | None,
        drop: Callable[[int], None],
    ) -> None:
        self._cursor = cursor
        self._codec = codec
        self._timers = timers
        self._drop = drop
        self._initialized = False
        self._given: dict[str, list[Any]] = {}
        self._unfounded: dict[str, UsageError] = {}

    def initialized(self) -> None:
        """End the time in which state variables may be created."""
        for error in self._unfounded.values():
            raise error
        self._initialized = True

    def _give(
        self,
        name: str,
        kind: StateKind,
        make: Callable[[int, StateCodec], Any],
        aggregation: Aggregation | None = None,
    ) -> Any:
        self._only_in_init(name, "created")
        try:
            state = make(*self._find(name, kind, aggregation))
        except UsageError as error:
            # A deletion may follow in init(), which the driver knows of; else `initialized` raises.
            state = RefusedState(kind, error)
            self._unfounded[name] = error
        self._given.setdefault(name, []).append(state)
        return state

    def _find(
        self, name: str, kind: StateKind, aggregation: Aggregation | None = None
    ) -> tuple[int, StateCodec]:
        try:
            state_id = self._codec.schema.state_id(name)
        except KeyError:
            raise UsageError(
                f"init() asks for state {name!r} in a task, but did not on the driver; it must ask "
                "for the same state everywhere"
            ) from None
        state = self._codec.states[state_id]
        descriptor = state.descriptor
        if descriptor.kind is not kind or descriptor.aggregation is not aggregation:
            raise UsageError(f"state {name!r} is a {descriptor.kind_text} state")
        return state_id, state

    def _only_in_init(self, name: str, what: str) -> None:
        if self._initialized:
            raise UsageError(f"state {name!r}: state variables are {what} in init() only")

    def _value(self, name: str, aggregation: Aggregation | None) -> Any:
        def make(state_id: int, state: StateCodec) -> ValueState | ExpiringValueState:
            kind = ExpiringValueState if state.expires else ValueState
            return kind(self._cursor, state_id, state.value, state.descriptor.ttl_ms)

        return self._give(name, StateKind.VALUE, make, aggregation)

    def getValueState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> PySparkValueState:
        """Return the value state *stateName*."""
        state: PySparkValueState = self._value(stateName, None)
        return state

    def getReducingState(
        self,
        stateName: str,
        schema: SchemaLike,
        reduce: ReduceFunction,
        ttlDurationMs: int | None = None,
    ) -> ReducingState:
        """Return the reducing state *stateName*; *reduce* makes one tuple of two."""
        return ReducingState(self._value(stateName, Aggregation.REDUCING), reduce)

    def getAggregatingState(
        self,
        stateName: str,
        accumulatorSchema: SchemaLike,
        aggregateFunction: AggregateFunction,
        ttlDurationMs: int | None = None,
    ) -> AggregatingState:
        """Return the aggregating state *stateName*, with accumulators of the given schema."""
        return AggregatingState(self._value(stateName, Aggregation.AGGREGATING), aggregateFunction)

    def getListState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> PySparkListState:
        """Return the list state *stateName*."""

        def make(state_id: int, state: StateCodec) -> ListState | ExpiringListState:
            kind = ExpiringListState if state.expires else ListState
            return kind(self._cursor, state_id, state.value, state.descriptor.ttl_ms)

        found: PySparkListState = self._give(stateName, StateKind.LIST, make)
        return found

    def getMapState(
        self,
        stateName: str,
        userKeySchema: SchemaLike,
        valueSchema: SchemaLike,
        ttlDurationMs: int | None = None,
    ) -> PySparkMapState:
        """Return the map state *stateName*."""

        def make(state_id: int, state: StateCodec) -> MapState | ExpiringMapState:
            kind = ExpiringMapState if state.expires else MapState
            user_key = state.user_key
            if user_key is None:
                raise InvariantError("a map state has a map key")
            made = kind(self._cursor, state_id, state.value, user_key, state.descriptor.ttl_ms)
            made.as_row = row_factory(state.value.schema.names)  # only getValue: so does Spark
            return made

        found: PySparkMapState = self._give(stateName, StateKind.MAP, make)
        return found

    def _timers_or_error(self) -> Timers:
        if self._timers is None:
            raise UsageError(
                "timers need the time mode ProcessingTime or EventTime; this query has None"
            )
        return self._timers

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the current key."""
        self._timers_or_error().register(int(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        self._timers_or_error().delete(int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key, ascending."""
        return iter(self._timers_or_error().times())

    def deleteIfExists(self, stateName: str) -> None:
        """
        Delete a state variable for all keys; in `init` only.

        Where `init` asks for the variable behind it, each batch begins without what was in it.
        What `init` asked for before it cannot be used any more.
        """
        self._only_in_init(stateName, "deleted")
        check_not_reserved(stateName)
        self._unfounded.pop(stateName, None)
        for state in self._given.pop(stateName, []):
            refuse_use(state, stateName)
        try:
            self._drop(self._codec.schema.state_id(stateName))
        except KeyError:
            return
