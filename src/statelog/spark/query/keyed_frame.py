"""
Add the key group to each row of a grouped frame.

The key group of a row is `pmod(xxhash64(key columns), groups)`, with Spark's own 64-bit hash and
its seed of 42, so the JVM computes it in generated code before the shuffle.  The hash never
changes; its test vectors are in docs/reference/formats/key-groups.md.

Initial state is sent to the tasks with the first micro-batch of an empty state: by the same key
groups, in one frame with the columns of both and a flag for initial rows, as for PySpark's
transformWithState(initialState=...).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.functions import col, lit, pmod, xxhash64
from pyspark.sql.types import DataType, StructField, StructType

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.jvm.frames import grouping_columns, grouping_text, refuse_unread_types
from statelog.spark.rows.key_types import grouping_keys
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN, InitialLayout, InputLayout
from statelog.spark.rows.spark_versions import repartition_by_id
from statelog.spark.rows.types import check_input, sql_name
from statelog.state.schema import moved_names

ColumnsToRead: TypeAlias = Callable[[StructType], Collection[str]]
"""Returns the columns of an input that its operator reads, of the input's schema."""

_KEY_PREFIX = "__key_"
_IS_INITIAL = "__initial"


@dataclass(frozen=True, slots=True)
class KeyedFrame:
    """
    A frame in which each row contains its key group and key.

    Args:
        frame: Columns: the key group, then key columns that are computed, then the input's columns
            that its operator needs.
        columns: The columns of *frame* as expressions over the input, for `select`.
        key_positions, first_input: Positions of the key columns, and of the input's first column.
        key_schema: Names and types of the key columns.
    """

    frame: DataFrame
    columns: tuple[Column | str, ...]
    key_positions: tuple[int, ...]
    first_input: int
    key_schema: StructType


@dataclass(frozen=True, slots=True)
class Grouping:
    """A frame with its key columns, each with its input column or None."""

    frame: DataFrame
    columns: Sequence[Column]
    inputs: Sequence[str | None]


def keyed_frame(
    grouping: Grouping, key_groups: KeyGroupRange, to_read: ColumnsToRead | None = None
) -> KeyedFrame:
    """
    Return the rows of a grouped frame with their key groups, which are among *key_groups*.

    It has all columns, or the keys and what *to_read* returns.
    """
    df = grouping.frame
    key_columns = grouping.columns
    refuse_unread_types(df)
    refuse_equal_names(df, "the input", "A processor could not tell them apart")
    keys = grouping_keys(df.select(*key_columns).schema)
    key_group = pmod(xxhash64(*key_columns), lit(len(key_groups))).cast("int")
    if key_groups.start:
        key_group = key_group + lit(key_groups.start)
    computed: list[Column] = []
    positions: list[int] = []
    plain: dict[int, str] = {}
    for index, name in enumerate(keys.names):
        # A key that is an input column is not sent twice.
        if df.columns.count(name) == 1 and grouping.inputs[index] == name:
            plain[index] = name
        else:
            computed.append(key_columns[index].alias(f"{_KEY_PREFIX}{index}"))
    needed = df.columns if to_read is None else _needed(df, to_read(df.schema), plain.values())
    check_input(df.schema, needed)
    first_input = 1 + len(computed)
    position = 1
    for index in range(len(keys)):
        if index in plain:
            positions.append(first_input + needed.index(plain[index]))
        else:
            positions.append(position)
            position += 1
    inputs = ["*"] if len(needed) == len(df.columns) else [sql_name(name) for name in needed]
    columns: tuple[Column | str, ...] = (
        key_group.alias(INPUT_KEY_GROUP_COLUMN),
        *computed,
        *inputs,
    )
    fields = [StructField(field.name, field.dataType) for field in keys]
    return KeyedFrame(
        df.select(*columns), columns, tuple(positions), first_input, StructType(fields)
    )


def _needed(df: DataFrame, read: Collection[str], keys: Collection[str]) -> list[str]:
    """Return the columns to send, in order; at least one, so that tasks can count the rows."""
    return [name for name in df.columns if name in read or name in keys] or df.columns[:1]


def refuse_equal_names(frame: DataFrame, what: str, why: str) -> None:
    """Reject two columns with the same name, compared according to `spark.sql.caseSensitive`."""
    names = frame.columns
    if frame.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
        names = [name.lower() for name in names]
    twice = [
        name for name, plain in zip(frame.columns, names, strict=True) if names.count(plain) > 1
    ]
    if twice:
        raise UsageError(
            f"{what} contains several columns with the same name: {', '.join(twice)}. {why}: rename them, or "
            "select only the needed columns"
        )


def by_task(frame: DataFrame, tasks: int, key_groups: KeyGroupRange) -> DataFrame:
    """Repartition a keyed frame into one partition per task, which has the task's key groups."""
    # As text, in one call to the JVM; built from columns it would take fifty.
    return repartition_by_id(frame, tasks, task_of(INPUT_KEY_GROUP_COLUMN, key_groups, tasks))


def task_of(key_group: str, key_groups: KeyGroupRange, tasks: int) -> str:
    """Return SQL for the task that owns a key group, which is also passed as SQL."""
    index = f"({key_group} - {key_groups.start})" if key_groups.start else key_group
    return f"cast({index} * {tasks} div {len(key_groups)} as int)"


def grouping_of(grouped: GroupedData) -> Grouping:
    """Return the keys of a classic `df.groupBy(...)`; reject rollup, cube and pivot."""
    text = grouping_text(grouped)
    keys = grouping_columns(grouped)
    if "type: GroupBy" not in text or not keys:
        raise not_plain(text)
    columns, inputs = zip(*keys, strict=True)
    return Grouping(grouped._df, columns, inputs)


def not_plain(text: str) -> UsageError:
    """Return the error that rejects a rollup, cube or pivot."""
    return UsageError(f"stateful operators need plain grouping keys, not {text:.200}")


@dataclass(frozen=True, slots=True)
class InitialState:
    """The initial rows with their key groups, and their layout in a task's input."""

    keyed: KeyedFrame
    task_layout: InitialLayout


def initial_state(
    grouping: Grouping | None, stream: KeyedFrame, key_groups: KeyGroupRange
) -> InitialState | None:
    """Return the initial state for a stream's tasks, if there is any and its keys match."""
    if grouping is None:
        return None
    keyed = keyed_frame(grouping, key_groups)
    if keyed.frame.isStreaming:
        raise UsageError("initialState must be df.groupBy(...) of a batch frame, not of a stream")
    types = [field.dataType for field in keyed.key_schema]
    of_stream = [field.dataType for field in stream.key_schema]
    if types != of_stream:
        raise UsageError(
            f"initialState is grouped by ({_text(types)}), but the stream is grouped by "
            f"({_text(of_stream)}); group both by keys of the same types"
        )
    if moved := moved_names(stream.key_schema.names, keyed.key_schema.names):
        raise UsageError(
            f"initialState is grouped by ({', '.join(keyed.key_schema.names)}), but the stream is grouped by "
            f"({', '.join(stream.key_schema.names)}): {', '.join(moved)} is in a different position, and "
            "keys are matched by position; group both in the same order"
        )
    return InitialState(
        keyed,
        InitialLayout(
            InputLayout(keyed.key_positions, keyed.first_input),
            tuple(stream.frame.columns[1:]),
            tuple(keyed.frame.columns[1:]),
        ),
    )


def _text(types: list[DataType]) -> str:
    return ", ".join(kind.simpleString() for kind in types)


def with_initial_rows(frame: DataFrame, initial: InitialState) -> DataFrame:
    """Return the keyed rows of a micro-batch together with the initial rows."""
    rows = initial.keyed.frame
    inputs = frame.schema.fields[1:]
    initials = rows.schema.fields[1:]
    columns = [f"c{index}" for index in range(len(inputs) + len(initials))]
    of_input = columns[: len(inputs)]
    others = columns[len(inputs) :]
    input_rows = frame.toDF(INPUT_KEY_GROUP_COLUMN, *of_input).select(
        col(INPUT_KEY_GROUP_COLUMN),
        lit(False).alias(_IS_INITIAL),
        *of_input,
        *(
            lit(None).cast(field.dataType).alias(name)
            for name, field in zip(others, initials, strict=True)
        ),
    )
    right = rows.toDF(INPUT_KEY_GROUP_COLUMN, *others).select(
        col(INPUT_KEY_GROUP_COLUMN),
        lit(True).alias(_IS_INITIAL),
        *(
            lit(None).cast(field.dataType).alias(name)
            for name, field in zip(of_input, inputs, strict=True)
        ),
        *others,
    )
    return input_rows.unionAll(right)
