"""
From Spark's own state to statelog: the state of a transformWithState query as initial state.

`spark_state` reads it out of Spark's checkpoint, one row for each key; `from_spark` lets a processor
begin with such rows, without a `handleInitialState` of its own.
docs/how-to/migration.md has a complete example.
Source: Spark's data sources `state-metadata` and `statestore`, whose columns are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from statelog.errors import UsageError

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
    Return the state that a query on Spark's own state store left in its checkpoint.

    Args:
        spark: The session.
        checkpointLocation: The query's; it must not be running.
        variables: The state variables to take; default: all.
        operatorId: Which stateful operator of the query; 0 for the only one.
        batchId: State after which micro-batch; default: the last one that was committed.

    Returns:
        One row for each key: its columns, `statelog_state` (a struct with a field for each variable:
        a struct, an array of structs, or an array of (key, value) entries; null if the key has
        none) and `statelog_timers` (an array, null if there are none).  Values whose time to live is
        over are left out.

    Raises:
        UsageError: There is no transformWithState operator, or no such variable.
    """

    def read(**options: Any) -> DataFrame:
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
        found = read(stateVarName=name, flattenCollectionTypes=False)
        live = found.select("key", _live(kind, expires).alias(name))
        parts.append(live.where(F.col(f"`{name}`").isNotNull()))
        names.append(name)
    union = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
    columns = [column for column in union.columns if column != "key"]
    # One row for each key; a variable stands in one of the rows only.
    rows = union.groupBy("key").agg(
        *(F.first(f"`{column}`", ignorenulls=True).alias(column) for column in columns)
    )
    state = F.struct(*(F.col(f"`{name}`") for name in names)).alias(STATE_COLUMN)
    timers = F.col(TIMERS_COLUMN) if TIMERS_COLUMN in columns else F.lit(None).cast("array<long>")
    return rows.select("key.*", state, timers.alias(TIMERS_COLUMN))


def _variables(
    spark: SparkSession, location: str, operator_id: int, wanted: Sequence[str] | None
) -> dict[str, tuple[str, bool]]:
    """Return kind and whether values expire of the variables to take, by name."""
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
    """Return what a variable holds, without what has expired and without the times."""
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
    Return *processor*, beginning with the rows of `spark_state` as its initial state.

    It does what *processor* does, of either flavour; only `handleInitialState` is its own.  It may
    stay in place after the first start, or be taken away again.

    Args:
        processor: Any processor; it need not know of initial state.

    Raises:
        UsageError: In a task: the rows hold a variable that its `init` does not create.
    """
    return FromSpark(processor)


class FromSpark(StatefulProcessor):
    """A processor that begins with the state that it had on Spark; see `from_spark`."""

    def __init__(self, processor: StatefulProcessor) -> None:
        self._processor = processor
        self._handle: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Let the processor create its state, and note what it creates."""
        self._handle = _NotingHandle(handle)
        self._processor.init(self._handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Do what the processor does."""
        return self._processor.handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Do what the processor does."""
        return self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Set all state of a key."""
        for state, timers in _rows(initialState):
            for name, value in state.items():
                if value is not None:
                    self._set(name, value)
            for time in () if timers is None else timers:
                self._handle.registerTimer(int(time))

    def _set(self, name: str, value: Any) -> None:
        kind, state = self._handle.states.get(name, (None, None))
        match kind:
            case "value":
                state.update(_values(value))
            case "list":
                state.put([_values(element) for element in value])
            case "map":
                for entry in value:
                    user_key, held = _values(entry)
                    state.updateValue(_values(user_key), _values(held))
            case _:
                raise UsageError(
                    f"the state from Spark has a variable {name!r}, which init() does not create; "
                    "create it, or leave it out with spark_state(variables=...)"
                )

    def close(self) -> None:
        """Close the processor."""
        self._processor.close()


def _rows(initial: Any) -> Iterable[tuple[Mapping[str, Any], Any]]:
    """Yield state and timers of a Row, or of each row of a frame."""
    state, timers = initial[STATE_COLUMN], initial[TIMERS_COLUMN]
    return [(state, timers)] if isinstance(state, Mapping) else zip(state, timers, strict=True)


def _values(struct: Any) -> tuple[Any, ...]:
    return tuple(struct.values() if isinstance(struct, Mapping) else struct)


class _NotingHandle(StatefulProcessorHandle):
    """A handle that keeps the state objects it gives away."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._given = handle
        self.states: dict[str, tuple[str, Any]] = {}

    def _note(self, kind: str, name: str, state: Any) -> Any:
        self.states[name] = kind, state
        return state

    def getValueState(self, stateName: str, *schema: Any, **options: Any) -> Any:
        """Return a value state."""
        return self._note(
            "value", stateName, self._given.getValueState(stateName, *schema, **options)
        )

    def getListState(self, stateName: str, *schema: Any, **options: Any) -> Any:
        """Return a list state."""
        return self._note(
            "list", stateName, self._given.getListState(stateName, *schema, **options)
        )

    def getMapState(self, stateName: str, *schemas: Any, **options: Any) -> Any:
        """Return a map state."""
        return self._note("map", stateName, self._given.getMapState(stateName, *schemas, **options))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the current key."""
        self._given.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        self._given.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key."""
        return self._given.listTimers()

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable for all keys."""
        self._given.deleteIfExists(stateName)
