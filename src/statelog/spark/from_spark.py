"""
Move the state of a query from Spark's store to statelog.

`spark_state` reads it from Spark's checkpoint, one row for each key.  `from_spark` makes a processor
that begins with such rows as its initial state, without a `handleInitialState` of its own.
docs/how-to/migration.md has a complete example.
Source: Spark's data sources `state-metadata` and `statestore`, with their columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.spark.rows.interface import RowLike

STATE_COLUMN = "statelog_state"
"""Column with one field for each state variable."""

TIMERS_COLUMN = "statelog_timers"
"""Column with the timers of the key, in milliseconds."""

_TIMERS = "TimerState"
_COLUMNS = {"ValueState": "value", "ListState": "list_value", "MapState": "map_value"}


def spark_state(
    spark: SparkSession,
    checkpointLocation: str,
    *,
    variables: Sequence[str] | None = None,
    operatorId: int = 0,
    batchId: int | None = None,
) -> DataFrame:
    """
    Read the state of a query on Spark's own state store.

    Args:
        spark: The session.
        checkpointLocation: The checkpointLocation of the query, which must not be running.
        variables: The state variables to read; default: all.
        operatorId: Number of the stateful operator in the query; 0 for the only one.
        batchId: The micro-batch whose state is read; default: the last committed one.

    Returns:
        One row for each key: its columns, `statelog_state` (a struct with a field for each variable:
        a struct, an array of structs, or an array of (key, value) entries; null if the key has
        none) and `statelog_timers` (an array, null if there are none).  Expired values are left
        out.

    Raises:
        UsageError: The operator is no transformWithState, or a variable does not exist.
    """

    def read(**options: str | bool) -> DataFrame:
        reader = spark.read.format("statestore").options(operatorId=operatorId, **options)
        if batchId is not None:
            reader = reader.option("batchId", batchId)
        return reader.load(checkpointLocation)

    kept = _variables(spark, checkpointLocation, operatorId, variables)
    parts: list[DataFrame] = []
    names: list[str] = []
    for name, (kind, expires) in kept.items():
        if kind == _TIMERS:
            times = F.sort_array(F.collect_list("expiration_timestamp_ms")).alias(TIMERS_COLUMN)
            parts.append(read(readRegisteredTimers=True).groupBy("key").agg(times))
            continue
        stored = read(stateVarName=name, flattenCollectionTypes=False)
        live = stored.select("key", _live(kind, expires).alias(name))
        parts.append(live.where(F.col(f"`{name}`").isNotNull()))
        names.append(name)
    union = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
    columns = [column for column in union.columns if column != "key"]
    # One row for each key; a variable is in one of the rows only.
    rows = union.groupBy("key").agg(
        *(F.first(f"`{column}`", ignorenulls=True).alias(column) for column in columns)
    )
    state = F.struct(*(F.col(f"`{name}`") for name in names)).alias(STATE_COLUMN)
    timers = F.col(TIMERS_COLUMN) if TIMERS_COLUMN in columns else F.lit(None).cast("array<long>")
    return rows.select("key.*", state, timers.alias(TIMERS_COLUMN))


def _variables(
    spark: SparkSession, location: str, operator_id: int, wanted: Sequence[str] | None
) -> dict[str, tuple[str, bool]]:
    """Return each variable's kind, and whether its values expire."""
    operators = (
        spark.read.format("state-metadata")
        .load(location)
        .where(F.col("operatorId") == operator_id)
        .select("operatorName", "operatorProperties")
        .distinct()
        .collect()
    )
    properties: dict[str, Any] = {}
    for row in operators:
        if row.operatorProperties:
            properties = msgspec.json.decode(row.operatorProperties)
    if "stateVariables" not in properties:
        names = ", ".join(row.operatorName for row in operators) or "none"
        raise UsageError(
            f"operator {operator_id} of {location} is no transformWithState; found: {names}"
        )
    found = {
        variable["stateName"]: (variable["stateVariableType"], bool(variable["ttlEnabled"]))
        for variable in properties["stateVariables"]
    }
    if wanted is None:
        return found
    missing = [name for name in wanted if name not in found]
    if missing or not wanted:
        raise UsageError(
            f"{location} has no state {', '.join(missing) or 'without a name'}; it has "
            f"{', '.join(sorted(found))}"
        )
    return {name: of for name, of in found.items() if name in wanted or of[0] == _TIMERS}


def _live(kind: str, expires: bool) -> Column:
    """Return the values of a variable that have not expired."""
    column = F.col(_COLUMNS[kind])
    now = F.unix_millis(F.current_timestamp())

    def is_live(value: Column) -> Column:
        return value["ttlExpirationMs"] > now

    match kind:
        case "ListState":
            if expires:
                column = F.transform(F.filter(column, is_live), lambda element: element["value"])
            return F.when(F.size(column) > 0, column)
        case "MapState":
            if expires:
                live = F.map_filter(column, lambda _, value: is_live(value))
                column = F.transform_values(live, lambda _, value: value["value"])
            return F.when(F.size(column) > 0, F.map_entries(column))
        case _:
            return F.when(is_live(column), column["value"]) if expires else column


def from_spark(processor: StatefulProcessor) -> StatefulProcessor:
    """
    Return a processor that begins with the rows of `spark_state`.

    It calls *processor*, of either row format, for everything but `handleInitialState`.  It may be
    kept after the first start, or replaced by *processor*.

    Args:
        processor: Any processor; it needs no `handleInitialState`.

    Raises:
        UsageError: In a task: the rows have a variable that its `init` does not create.
    """
    return FromSpark(processor)


class FromSpark(StatefulProcessor):
    """A processor that begins with its state from Spark; see `from_spark`."""

    def __init__(self, processor: StatefulProcessor) -> None:
        self._processor = processor
        self._handle: _NotingHandle

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Call the processor's `init`, and note the state objects that it creates."""
        self._handle = _NotingHandle(handle)
        self._processor.init(self._handle)

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Call the processor."""
        return self._processor.handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Call the processor."""
        return self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo)

    def handleInitialState(self, key: Any, initialState: RowLike, timerValues: TimerValues) -> None:
        """Set all state of a key."""
        for state, timers in _rows(initialState):
            for name, value in state.items():
                if value is not None:
                    self._set(name, value)
            for time in () if timers is None else timers:
                self._handle.registerTimer(int(time))

    def _set(self, name: str, value: Any) -> None:
        if name not in self._handle.states:
            raise UsageError(
                f"the state from Spark has a variable {name!r}, which init() does not create; "
                "create it, or leave it out with spark_state(variables=...)"
            )
        kind, state = self._handle.states[name]
        match kind:
            case "value":
                state.update(_values(value))
            case "list":
                state.put([_values(element) for element in value])
            case _:
                for entry in value:
                    user_key, map_value = _values(entry)
                    state.updateValue(_values(user_key), _values(map_value))

    def close(self) -> None:
        """Close the processor."""
        self._processor.close()


def _rows(initial: RowLike) -> Iterable[tuple[Mapping[str, Any], Sequence[int] | None]]:
    """Return state and timers of a Row or a frame's rows."""
    state, timers = initial[STATE_COLUMN], initial[TIMERS_COLUMN]
    return [(state, timers)] if isinstance(state, Mapping) else zip(state, timers, strict=True)


def _values(struct: Mapping[str, Any] | Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of a struct, given as Row or mapping."""
    return tuple(struct.values() if isinstance(struct, Mapping) else struct)


class _NotingHandle(StatefulProcessorHandle):
    """A handle that notes the state objects that it returns."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self.states: dict[str, tuple[str, Any]] = {}

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        """Return a value state."""
        state = self._handle.getValueState(stateName, schema, ttlDurationMs)
        self.states[stateName] = "value", state
        return state

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        """Return a list state."""
        state = self._handle.getListState(stateName, schema, ttlDurationMs)
        self.states[stateName] = "list", state
        return state

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Return a map state."""
        state = self._handle.getMapState(stateName, userKeySchema, valueSchema, ttlDurationMs)
        self.states[stateName] = "map", state
        return state

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the current key."""
        self._handle.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        self._handle.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key."""
        return self._handle.listTimers()

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable for all keys."""
        self._handle.deleteIfExists(stateName)
