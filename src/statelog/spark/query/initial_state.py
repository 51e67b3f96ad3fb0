"""
Initial state: rows for the first micro-batch of an empty state.

They are sent to the tasks together with the first batch's input, by the same key groups, in one
frame with the columns of both and a flag for initial rows.  Later micro-batches do not have them.
Source: PySpark's transformWithState(initialState=...): initial state is processed in the first batch
only; here that is the first batch of a state location without a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit
from pyspark.sql.types import DataType

from statelog.errors import UsageError
from statelog.spark.query.keyed_frame import Grouping, KeyedFrame, keyed_frame
from statelog.spark.rows.initial_rows import InitialLayout
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN, InputLayout

_IS_INITIAL = "__initial"


@dataclass(frozen=True, slots=True)
class InitialState:
    """
    Initial rows with their key group.

    Args:
        keyed: The rows.
        task_layout: Their layout in the input of a task.
    """

    keyed: KeyedFrame
    task_layout: InitialLayout


def initial_state(
    grouping: Grouping | None,
    stream: KeyedFrame,
    max_parallelism: int,
    first_key_group: int = 0,
) -> InitialState | None:
    """
    Return the initial state for the tasks of a stream.

    It is None where *grouping* is None.

    Raises:
        UsageError: *grouping* is of a stream, or its key has other types.
    """
    if grouping is None:
        return None
    keyed = keyed_frame(grouping, max_parallelism, first_key_group)
    if keyed.frame.isStreaming:
        raise UsageError("initialState takes df.groupBy(...) of a batch frame; this is a stream")
    types = [field.dataType for field in keyed.key_schema]
    wanted = [field.dataType for field in stream.key_schema]
    if types != wanted:
        raise UsageError(
            f"initialState is grouped by ({_text(types)}), the stream by ({_text(wanted)}); group "
            "both by keys of the same types"
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
    inputs, initials = frame.schema.fields[1:], rows.schema.fields[1:]
    columns = [f"c{index}" for index in range(len(inputs) + len(initials))]
    own, others = columns[: len(inputs)], columns[len(inputs) :]
    left = frame.toDF(INPUT_KEY_GROUP_COLUMN, *own).select(
        col(INPUT_KEY_GROUP_COLUMN),
        lit(False).alias(_IS_INITIAL),
        *own,
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
            for name, field in zip(own, inputs, strict=True)
        ),
        *others,
    )
    return left.unionAll(right)
