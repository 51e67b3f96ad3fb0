"""
Add the key group to each row of a grouped frame.

The key group of a row is `pmod(xxhash64(key columns), groups)`, with Spark's own 64-bit hash and its
seed of 42, so the JVM computes it in generated code before the shuffle.  The hash never changes; its
test vectors are in docs/reference/formats/key-groups.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.functions import lit, pmod, xxhash64
from pyspark.sql.types import StructField, StructType

from statelog.errors import UsageError
from statelog.spark.rows.jvm import jvm_of
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN
from statelog.spark.rows.spark_versions import repartition_by_id

_KEY_PREFIX = "__key_"


@dataclass(frozen=True, slots=True)
class KeyedFrame:
    """
    A frame whose rows have their key group and key.

    Args:
        frame: Columns: the key group, then the key columns that are computed, then the input's
            columns.
        key_positions: Positions of the key columns.
        first_input: Position of the first column of the input.
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
        UsageError: The grouping is no plain one (rollup, cube, pivot).
    """
    df, key_columns = _parts(grouped)
    keys = df.select(*key_columns)
    key_group = pmod(xxhash64(*key_columns), lit(max_parallelism)).cast("int")
    computed: list[Column] = []
    positions: list[int] = []
    plain: dict[int, int] = {}
    for index, name in enumerate(keys.columns):
        # A key that is an input column is not sent twice.
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
    frame = df.select(key_group.alias(INPUT_KEY_GROUP_COLUMN), *computed, "*")
    fields = [StructField(field.name, field.dataType) for field in keys.schema.fields]
    return KeyedFrame(frame, tuple(positions), first_input, StructType(fields))


def by_task(frame: DataFrame, tasks: int, max_parallelism: int) -> DataFrame:
    """Return a keyed frame with one partition for each task, in which are the rows it owns."""
    # As text, in one call to the JVM; built from columns it would take fifty.
    task = f"cast({INPUT_KEY_GROUP_COLUMN} * {tasks} div {max_parallelism} as int)"
    return repartition_by_id(frame, tasks, task)


def session_of(grouped: GroupedData) -> SparkSession:
    """
    Return the session of a grouped frame.

    Raises:
        UsageError: *grouped* is no GroupedData.
    """
    if not isinstance(grouped, GroupedData):
        raise UsageError(
            "transform_with_state takes what df.groupBy(...) returns; got "
            f"{type(grouped).__module__}.{type(grouped).__name__}"
        )
    return grouped._df.sparkSession


def _parts(grouped: GroupedData) -> tuple[DataFrame, list[Column]]:
    df: DataFrame = grouped._df
    expressions = grouped._jgd.groupingExprs()
    text = grouped._jgd.toString()
    if "type: GroupBy" not in text or expressions.size() == 0:
        raise UsageError(f"state needs plain grouping keys, not {text:.200}")
    to_column = jvm_of(df.sparkSession).org.apache.spark.sql.classic.ExpressionUtils.column
    columns: list[Column] = [
        ClassicColumn(to_column(expressions.apply(i))) for i in range(expressions.size())
    ]
    return df, columns


def _is_input(grouped: GroupedData, index: int, name: str) -> bool:
    """Return whether the grouping expression is the bare input column *name*."""
    expression = grouped._jgd.groupingExprs().apply(index)
    kind = expression.getClass().getSimpleName()
    return kind in ("UnresolvedAttribute", "AttributeReference") and (
        expression.sql().replace("`", "").rsplit(".", 1)[-1] == name
    )
