"""The state variables that a processor declares: `init` runs once on the driver and notes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import ListState as PySparkListState
from pyspark.sql.streaming.stateful_processor import MapState as PySparkMapState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import ValueState as PySparkValueState
from pyspark.sql.types import StructType

from statelog.errors import ProcessorError, UsageError
from statelog.spark.query.pickled_processor import pickled
from statelog.spark.query.processor_failures import described
from statelog.spark.query.refused_state import StateWithoutKey
from statelog.spark.rows.types import arrow_schema
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.objects.aggregates import (
    AggregateFunction,
    AggregatingState,
    ReduceFunction,
    ReducingState,
)
from statelog.state.schema.descriptors import (
    TIMERS_NAME,
    Aggregation,
    OperatorStateSchema,
    StateDescriptor,
    StateKind,
)

SchemaLike = StructType | str


class DriverHandle(StatefulProcessorHandle):
    """
    The handle that `init` gets once on the driver, to learn the state variables.

    Args:
        parse: Turns a DDL string into a schema (needs the driver's session).
        has_ttl: Whether the time mode allows a time to live.
    """

    def __init__(self, parse: Callable[[str], StructType], has_ttl: bool) -> None:
        self._parse = parse
        self._has_ttl = has_ttl
        self.states: list[StateDescriptor] = []
        self.deleted: set[str] = set()

    def _arrow(self, schema: SchemaLike) -> pa.Schema:
        return arrow_schema(self._parse(schema) if isinstance(schema, str) else schema)

    def _add(
        self,
        name: str,
        kind: StateKind,
        value: SchemaLike,
        user_key: SchemaLike | None,
        ttl_ms: int | None,
        aggregation: Aggregation | None = None,
    ) -> Any:
        reserved = not name or name.startswith(("$", "key.")) or name == KEY_GROUP_COLUMN
        if reserved or any(state.name == name for state in self.states):
            raise UsageError(f"state name {name!r} is empty, reserved, or used twice")
        if ttl_ms is not None and type(ttl_ms) is not int:
            raise UsageError(f"state {name!r}: a time to live is an int in ms, not {ttl_ms!r}")
        if ttl_ms is not None and (ttl_ms <= 0 or not self._has_ttl):
            raise UsageError(
                f"state {name!r}: a time to live needs the time mode ProcessingTime and more than "
                f"0 ms (got {ttl_ms})"
            )
        self.states.append(
            StateDescriptor(
                name=name,
                kind=kind,
                value_schema=self._arrow(value),
                user_key_schema=None if user_key is None else self._arrow(user_key),
                ttl_ms=ttl_ms,
                aggregation=aggregation,
            )
        )
        return StateWithoutKey(name)

    def getValueState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> PySparkValueState:
        """Note a value state."""
        state: PySparkValueState = self._add(
            stateName, StateKind.VALUE, schema, None, ttlDurationMs
        )
        return state

    def getReducingState(
        self,
        stateName: str,
        schema: SchemaLike,
        reduce: ReduceFunction,
        ttlDurationMs: int | None = None,
    ) -> ReducingState:
        """Note a reducing state."""
        if not callable(reduce):
            raise UsageError(f"state {stateName!r}: reduce is a function, not {reduce!r:.100}")
        state: ReducingState = self._add(
            stateName, StateKind.VALUE, schema, None, ttlDurationMs, Aggregation.REDUCING
        )
        return state

    def getAggregatingState(
        self,
        stateName: str,
        accumulatorSchema: SchemaLike,
        aggregateFunction: AggregateFunction,
        ttlDurationMs: int | None = None,
    ) -> AggregatingState:
        """Note an aggregating state."""
        for method in ("create_accumulator", "add", "get_result", "merge"):
            if not callable(getattr(aggregateFunction, method, None)):
                raise UsageError(f"state {stateName!r}: its function has no method {method}()")
        state: AggregatingState = self._add(
            stateName,
            StateKind.VALUE,
            accumulatorSchema,
            None,
            ttlDurationMs,
            Aggregation.AGGREGATING,
        )
        return state

    def getListState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> PySparkListState:
        """Note a list state."""
        state: PySparkListState = self._add(stateName, StateKind.LIST, schema, None, ttlDurationMs)
        return state

    def getMapState(
        self,
        stateName: str,
        userKeySchema: SchemaLike,
        valueSchema: SchemaLike,
        ttlDurationMs: int | None = None,
    ) -> PySparkMapState:
        """Note a map state."""
        state: PySparkMapState = self._add(
            stateName, StateKind.MAP, valueSchema, userKeySchema, ttlDurationMs
        )
        return state

    def deleteIfExists(self, stateName: str) -> None:
        """Note a deletion; where `init` asks for the variable too, the tasks empty it."""
        check_not_reserved(stateName)
        self.deleted.add(stateName)
        # What was asked for before is refused on use; asked for again, it may be another kind.
        self.states = [state for state in self.states if state.name != stateName]

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Refuse: there is no key yet."""
        raise UsageError("timers belong to a key; register them while rows are handled")

    deleteTimer = registerTimer

    def listTimers(self) -> Iterator[int]:
        """Refuse: there is no key yet."""
        raise UsageError("timers belong to a key; list them while rows are handled")


def check_not_reserved(name: str) -> None:
    """Raise `UsageError` where *name* is one that statelog keeps for itself."""
    if name.startswith("$"):
        raise UsageError(f"state name {name!r} is reserved; it cannot be deleted")


def operator_schema(
    processor: StatefulProcessor,
    operator_id: str,
    key_schema: pa.Schema,
    parse: Callable[[str], StructType],
    *,
    time_mode: str,
) -> OperatorStateSchema:
    """
    Return what *processor* keeps, by running `init` and `close` of a copy of it.

    Raises:
        ProcessorError: `init` or `close` failed.
        UsageError: A state variable has a type that cannot be kept.
    """
    handle = DriverHandle(parse, has_ttl=time_mode == "processingtime")
    trial = cloudpickle.loads(pickled(processor))
    method = "init"
    try:
        trial.init(handle)
        method = "close"
        trial.close()
    except (Exception, SystemExit) as error:
        raise ProcessorError(
            f"{type(processor).__name__}.{method} failed: {described(error)}"
        ) from error
    if time_mode != "none":
        handle.states.append(StateDescriptor(TIMERS_NAME, StateKind.TIMER, pa.schema([])))
    schema = OperatorStateSchema(
        operator_id, key_schema, tuple(handle.states), deleted=frozenset(handle.deleted)
    )
    OperatorCodec(schema)  # a type that cannot be kept is better refused here than in a task
    return schema
