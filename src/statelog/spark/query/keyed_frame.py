"""
Add the key group to each row of a grouped frame.

The key group of a row is `pmod(xxhash64(key columns), groups)`, with Spark's own 64-bit hash and its
seed of 42, so the JVM computes it in generated code before the shuffle.  The hash never changes; its
test vectors are in docs/reference/formats/key-groups.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.functions import lit, pmod, xxhash64
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.jvm.frames import grouping_columns, grouping_text
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
        columns: The columns of *frame* as expressions over the input, for `select`.
        key_positions: Positions of the key columns.
        first_input: Position of the first column of the input.
        key_schema: Names and types of the key columns.
    """

    frame: DataFrame
    columns: tuple[Column | str, ...]
    key_positions: tuple[int, ...]
    first_input: int
    key_schema: StructType


@dataclass(frozen=True, slots=True)
class Grouping:
    """
    A frame and what it is grouped by.

    Args:
        frame: The frame.
        columns: The key columns.
        inputs: For each the name of the input column that it is; None for an expression.
    """

    frame: DataFrame
    columns: Sequence[Column]
    inputs: Sequence[str | None]


def keyed_frame(grouping: Grouping, max_parallelism: int, first_key_group: int = 0) -> KeyedFrame:
    """
    Return the rows of a grouped frame with their key group.

    Args:
        grouping: The frame and its keys.
        max_parallelism: Number of key groups of the operator.
        first_key_group: The first of them, above 0 for an operator behind others.
    """
    df, key_columns = grouping.frame, grouping.columns
    refuse_equal_names(df)
    keys = df.select(*key_columns)
    refuse_map_keys(keys.schema)
    key_group = pmod(xxhash64(*key_columns), lit(max_parallelism)).cast("int")
    if first_key_group:
        key_group = key_group + lit(first_key_group)
    computed: list[Column] = []
    positions: list[int] = []
    plain: dict[int, int] = {}
    for index, name in enumerate(keys.columns):
        # A key that is an input column is not sent twice.
        if df.columns.count(name) == 1 and grouping.inputs[index] == name:
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
    columns: tuple[Column | str, ...] = (key_group.alias(INPUT_KEY_GROUP_COLUMN), *computed, "*")
    fields = [StructField(field.name, field.dataType) for field in keys.schema.fields]
    return KeyedFrame(
        df.select(*columns), columns, tuple(positions), first_input, StructType(fields)
    )


def refuse_map_keys(keys: StructType) -> None:
    """
    Reject keys that are or contain maps.

    Raises:
        UsageError: There is one: Spark does not hash maps, and equal ones may differ in their order.
    """
    for field in keys:
        if _has_map(field.dataType):
            raise UsageError(
                f"state by the key {field.name!r} of type {field.dataType.simpleString():.100} is not "
                "possible: Spark does not hash maps. Group by map_entries(...) of it, sorted by "
                "array_sort, or by to_json(...)"
            )


def refuse_equal_names(frame: DataFrame) -> None:
    """
    Reject an input in which two columns have one name.

    Raises:
        UsageError: Two have, as Spark compares names (`spark.sql.caseSensitive`).
    """
    names = frame.columns
    if frame.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
        names = [name.lower() for name in names]
    twice = [
        name for name, plain in zip(frame.columns, names, strict=True) if names.count(plain) > 1
    ]
    if twice:
        raise UsageError(
            f"the input has several columns of one name: {', '.join(twice)}. A processor could not "
            "tell them apart: rename them, or select the columns that are needed"
        )


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, MapType)


def by_task(frame: DataFrame, tasks: int, key_groups: KeyGroupRange) -> DataFrame:
    """
    Return a keyed frame with one partition for each task, in which are the rows it owns.

    Args:
        frame: See `KeyedFrame`.
        tasks: Number of tasks.
        key_groups: The key groups of the operator.
    """
    # As text, in one call to the JVM; built from columns it would take fifty.
    return repartition_by_id(frame, tasks, task_of(INPUT_KEY_GROUP_COLUMN, key_groups, tasks))


def task_of(key_group: str, key_groups: KeyGroupRange, tasks: int) -> str:
    """
    Return the number of the task that owns a key group, as SQL.

    Args:
        key_group: SQL of the key group.
        key_groups: The key groups of the operator.
        tasks: Number of tasks.
    """
    index = f"({key_group} - {key_groups.start})" if key_groups.start else key_group
    return f"cast({index} * {tasks} div {len(key_groups)} as int)"


def grouping_of(grouped: GroupedData) -> Grouping:
    """
    Return the keys of what `df.groupBy(...)` of a classic session returned.

    Raises:
        UsageError: The grouping is no plain one (rollup, cube, pivot).
    """
    text, keys = grouping_text(grouped), grouping_columns(grouped)
    if "type: GroupBy" not in text or not keys:
        raise not_plain(text)
    columns, inputs = zip(*keys, strict=True)
    return Grouping(grouped._df, columns, inputs)


def not_plain(text: str) -> UsageError:
    """Return the error for a grouping that is no plain one."""
    return UsageError(f"state needs plain grouping keys, not {text:.200}")
