"""
Initial state: rows with which the first micro-batch of an empty state begins.

They travel to the tasks together with the first batch's input, by the same key groups: one frame
with the columns of both, and a column that says which side a row is of.  Later batches know nothing
of it.
Source: PySpark's transformWithState(initialState=...): initial state is processed in the first batch
only; here that is the first batch of a state location without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.functions import col, lit
from pyspark.sql.types import DataType

from statelog.errors import UsageError
from statelog.spark.grouping import KEY_GROUP_COLUMN, KeyedFrame, keyed_frame
from statelog.spark.rows import InputLayout

_IS_INITIAL = "__initial"
_FIRST_COLUMN = 2  # behind the key group and the mark


@dataclass(frozen=True, slots=True)
class InitialLayout:
    """
    What a first batch that carries initial state looks like.

    Args:
        layout: The layout of initial rows, once they are parted from the input.
        input_names: Names of the input's columns behind the key group.
        initial_names: Names of the initial rows' columns behind the key group.
    """

    layout: InputLayout
    input_names: tuple[str, ...]
    initial_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InitialState:
    """
    Initial rows with their key group.

    Args:
        keyed: The rows.
        task_layout: How tasks find them.
    """

    keyed: KeyedFrame
    task_layout: InitialLayout


def initial_state(
    grouped: GroupedData | None, stream: KeyedFrame, max_parallelism: int
) -> InitialState | None:
    """
    Return the initial state for the tasks of a stream, or None where *grouped* is None.

    Raises:
        UsageError: It is a stream itself, or grouped by another key.
    """
    if grouped is None:
        return None
    keyed = keyed_frame(grouped, max_parallelism)
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
    """Return the keyed rows of a micro-batch together with those of *initial*."""
    rows = initial.keyed.frame
    inputs, initials = frame.schema.fields[1:], rows.schema.fields[1:]
    columns = [f"c{index}" for index in range(len(inputs) + len(initials))]
    own, others = columns[: len(inputs)], columns[len(inputs) :]
    left = frame.toDF(KEY_GROUP_COLUMN, *own).select(
        col(KEY_GROUP_COLUMN),
        lit(False).alias(_IS_INITIAL),
        *own,
        *(
            lit(None).cast(field.dataType).alias(name)
            for name, field in zip(others, initials, strict=True)
        ),
    )
    right = rows.toDF(KEY_GROUP_COLUMN, *others).select(
        col(KEY_GROUP_COLUMN),
        lit(True).alias(_IS_INITIAL),
        *(
            lit(None).cast(field.dataType).alias(name)
            for name, field in zip(own, inputs, strict=True)
        ),
        *others,
    )
    return left.unionAll(right)


def split_batches(
    batches: Iterable[pa.RecordBatch], layout: InitialLayout
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Return the input rows and the initial rows of `with_initial_rows`, each as they were."""
    inputs, initials = [], []
    for batch in batches:
        inputs.append(input_part(batch, layout))
        initials.append(initial_part(batch, layout))
    return inputs, initials


def input_part(batch: pa.RecordBatch, layout: InitialLayout) -> pa.RecordBatch:
    """Return the input rows of one batch of `with_initial_rows`, as they were."""
    columns = slice(_FIRST_COLUMN, _FIRST_COLUMN + len(layout.input_names))
    return _part(batch.filter(pc.invert(batch.column(1))), columns, layout.input_names)


def initial_part(batch: pa.RecordBatch, layout: InitialLayout) -> pa.RecordBatch:
    """Return the initial rows of one batch of `with_initial_rows`, as they were."""
    columns = slice(_FIRST_COLUMN + len(layout.input_names), None)
    return _part(batch.filter(batch.column(1)), columns, layout.initial_names)


def _part(batch: pa.RecordBatch, columns: slice, names: tuple[str, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [batch.column(0), *batch.columns[columns]], names=[KEY_GROUP_COLUMN, *names]
    )
