"""
Read a query's state from Spark's own state store, one row per key.

Source: Spark's data sources `state-metadata` and `statestore`, with their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from statelog.errors import UsageError
from statelog.extensions.migration.to_spark import STATE_COLUMN, TIMERS_COLUMN
from statelog.model import JsonObject
from statelog.spark.rows.spark_versions import refuse_before

_TIMERS = "TimerState"
_COLUMNS = {"ValueState": "value", "ListState": "list_value", "MapState": "map_value"}


def spark_state(
    spark: SparkSession,
    checkpoint_location: str,
    *,
    variables: Sequence[str] | None = None,
    operator_id: int = 0,
    batch_id: int | None = None,
) -> DataFrame:
    """
    Read the state of a query that uses Spark's own state store.

    Example:
        state = spark_state(spark, "s3://bucket/queries/old")

    Args:
        spark: The session.
        checkpoint_location: The checkpointLocation of the query, which must not be running.
        variables: The state variables to read; default: all.
        operator_id: Number of the stateful operator in the query; 0 for the only one.
        batch_id: The micro-batch whose state is read; default: the last committed one.

    Returns:
        One row for each key: its columns, `statelog_state` (a struct with a field for each
        variable: a struct, an array of structs, or an array of (key, value) entries; null if the
        key has none) and `statelog_timers` (an array, null if there are none).  Expired values are
        left out.

    Raises:
        UsageError: The operator is not a transformWithState, or a variable does not exist; or this
            is Spark 3.5, which does not read its state.
    """
    refuse_before((4, 0), "statelog.spark.spark_state")

    def read(**options: str | bool) -> DataFrame:
        reader = spark.read.format("statestore").options(operatorId=operator_id, **options)
        if batch_id is not None:
            reader = reader.option("batchId", batch_id)
        return reader.load(checkpoint_location)

    kinds = _variables(spark, checkpoint_location, operator_id, variables)
    parts: list[DataFrame] = []
    names: list[str] = []
    for name, (kind, expires) in kinds.items():
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
    """Return the kind of each variable, and whether its values expire."""
    operators = (
        spark.read.format("state-metadata")
        .load(location)
        .where(F.col("operatorId") == operator_id)
        .select("operatorName", "operatorProperties")
        .distinct()
        .collect()
    )
    properties: JsonObject = {}
    for row in operators:
        if row.operatorProperties:
            properties = msgspec.json.decode(row.operatorProperties)
    if "stateVariables" not in properties:
        names = ", ".join(row.operatorName for row in operators) or "none"
        raise UsageError(
            f"operator {operator_id} of {location} is not a transformWithState operator; the "
            f"operators there are: {names}"
        )
    variables = {
        variable["stateName"]: (variable["stateVariableType"], bool(variable["ttlEnabled"]))
        for variable in properties["stateVariables"]
    }
    if wanted is None:
        return variables
    missing = [name for name in wanted if name not in variables]
    if missing or not wanted:
        raise UsageError(
            f"{location} does not contain the state {', '.join(missing) or 'without a name'}; it contains "
            f"{', '.join(sorted(variables))}"
        )
    return {name: of for name, of in variables.items() if name in wanted or of[0] == _TIMERS}


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
