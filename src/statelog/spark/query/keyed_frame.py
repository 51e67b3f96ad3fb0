"""
From a grouped frame to rows with a key group: what flows into the tasks.

The key group of a row is `pmod(xxhash64(key columns), groups)`, Spark's own 64-bit hash with its
seed of 42, so the JVM computes it in generated code before the shuffle.  It is fixed for ever; the
test vectors stand in docs/reference/formats/key-groups.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.functions import expr, lit, pmod, xxhash64
from pyspark.sql.types import StructField, StructType

from statelog.errors import UsageError
from statelog.spark.rows.layout import KEY_GROUP_COLUMN

_KEY_PREFIX = "__key_"


@dataclass(frozen=True, slots=True)
class KeyedFrame:
    """
    A frame whose rows carry their key group and key.

    Args:
        frame: Columns: the key group, then key columns that are no plain columns of the input,
            then the input's columns.
        key_positions: Where the key columns stand.
        first_input: Where the input's columns begin.
        key_schema: Names and types of the key columns.
    """

    frame: DataFrame
    key_positions: tuple[int, ...]
    first_input: int
    key_schema: StructType


def keyed_frame(grouped: GroupedData, max_parallelism: int) -> KeyedFrame:
    """
    Return the rows of *grouped* with their key group.

    Args:
        grouped: What `df.groupBy(...)` returned.
        max_parallelism: Number of key groups.

    Raises:
        UsageError: The frame is grouped in a way that gives no keys (rollup, cube, pivot).
    """
    df, key_columns = _parts(grouped)
    keys = df.select(*key_columns)
    key_group = pmod(xxhash64(*key_columns), lit(max_parallelism)).cast("int")
    computed: list[Any] = []
    positions: list[int] = []
    plain: dict[int, int] = {}
    for index, name in enumerate(keys.columns):
        # A key that is an input column by name and type need not travel twice.
        if df.columns.count(name) == 1 and _is_input(grouped, index, name):
            plain[index] = df.columns.index(name)
        else:
            computed.append(key_columns[index].alias(f"{_KEY_PREFIX}{index}"))
    first_input = 1 + len(computed)
    position = 1
    for index in range(len(keys.columns)):
        if index in plain:
            positions.append(first_input + plain[index])
        else:
            positions.append(position)
            position += 1
    frame = df.select(key_group.alias(KEY_GROUP_COLUMN), *computed, "*")
    fields = [StructField(field.name, field.dataType) for field in keys.schema.fields]
    return KeyedFrame(frame, tuple(positions), first_input, StructType(fields))


def partition_of(tasks: int, max_parallelism: int) -> Column:
    """Return the number of the task that owns a row of a `KeyedFrame`."""
    # As text, in one call to the JVM: the same put together from columns takes fifty.
    return expr(f"cast({KEY_GROUP_COLUMN} * {tasks} div {max_parallelism} as int)")


def session_of(grouped: GroupedData) -> SparkSession:
    """
    Return the session of a grouped frame.

    Raises:
        UsageError: *grouped* is something else.
    """
    if not isinstance(grouped, GroupedData):
        raise UsageError(
            "transform_with_state takes what df.groupBy(...) returns; got "
            f"{type(grouped).__module__}.{type(grouped).__name__}"
        )
    return grouped._df.sparkSession


def _parts(grouped: GroupedData) -> tuple[DataFrame, list[Any]]:
    df: DataFrame = grouped._df
    jvm: Any = df.sparkSession._jvm
    expressions = grouped._jgd.groupingExprs()
    text = grouped._jgd.toString()
    if "type: GroupBy" not in text or expressions.size() == 0:
        raise UsageError(f"state needs plain grouping keys, not {text:.200}")
    to_column = jvm.org.apache.spark.sql.classic.ExpressionUtils.column
    columns = [ClassicColumn(to_column(expressions.apply(i))) for i in range(expressions.size())]
    return df, columns


def _is_input(grouped: GroupedData, index: int, name: str) -> bool:
    """Return whether the grouping expression is the bare input column *name*."""
    expression = grouped._jgd.groupingExprs().apply(index)
    kind = expression.getClass().getSimpleName()
    return kind in ("UnresolvedAttribute", "AttributeReference") and (
        expression.sql().replace("`", "").rsplit(".", 1)[-1] == name
    )
