"""
Combine several inputs into one stream, so that a single processor keeps state for all.

Spark's transformWithState has one input, as has statelog.  Flink's `connect` and
`KeyedCoProcessFunction` have two; here each row says which input it is from, and the other columns
of that input are a struct.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import lit, struct
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.spark.rows.types import sql_name

INPUT_COLUMN = "input"


def tagged_union(
    inputs: Mapping[str, DataFrame], keys: Sequence[str], event_time: str | None = None
) -> DataFrame:
    """
    Combine inputs by key; the other columns of each input become a struct named after it.

    The processor is called once for a key and micro-batch, with the rows of all inputs.  (Flink's
    `KeyedCoProcessFunction` has a method for each input, and no fixed order of the calls.)

    Example:
        orders, refunds = events.where("amount > 0"), events.where("amount < 0")
        both = tagged_union({"order": orders, "refund": refunds}, ["customer"])
        # In the processor: row.input == "order", row.order["amount"], row.refund is None.
        grouped = both.groupBy("customer")

    Args:
        inputs: The frames by name: streams, or batch frames.  A name becomes a column.
        keys: Columns that each frame has, with equal types.
        event_time: A column that each frame has too, with a watermark of each frame where the time
            mode is EventTime; it stays a column.  None for none.

    Returns:
        A frame with the columns `input` (the name of the input), the keys, the event time, and a
        struct for each input, which is null in the rows of the others.

    Raises:
        UsageError: *inputs* is empty, a name is taken, a column is missing, or the types of a key
            differ.

    """
    shared = [*keys, *([] if event_time is None else [event_time])]
    _check(inputs, shared)
    parts = [_part(inputs, name, shared) for name in inputs]
    return reduce(DataFrame.unionByName, parts)


def _part(inputs: Mapping[str, DataFrame], name: str, shared: Sequence[str]) -> DataFrame:
    """Convert the rows of one input to the columns of the union."""
    frame = inputs[name]
    columns: list[Column] = [lit(name).alias(INPUT_COLUMN), *(frame[sql_name(c)] for c in shared)]
    for other_name, other in inputs.items():
        if other_name == name:
            column = struct(*(frame[sql_name(c)] for c in _others(frame, shared)))
        else:
            column = lit(None).cast(_struct_of(other, shared))
        columns.append(column.alias(other_name))
    return frame.select(*columns)


def _others(frame: DataFrame, shared: Sequence[str]) -> list[str]:
    return [column for column in frame.columns if column not in shared]


def _struct_of(frame: DataFrame, shared: Sequence[str]) -> StructType:
    return StructType([field for field in frame.schema if field.name not in shared])


def _check(inputs: Mapping[str, DataFrame], shared: Sequence[str]) -> None:
    if not inputs:
        raise UsageError("tagged_union requires at least one input")
    if not shared:
        raise UsageError("tagged_union requires the key columns that its inputs share")
    for name, frame in inputs.items():
        if name == INPUT_COLUMN or name in shared:
            raise UsageError(
                f"an input cannot be named {name!r}: the union has a column with this name"
            )
        if missing := [column for column in shared if column not in frame.columns]:
            raise UsageError(
                f"the input {name!r} does not have the column {', '.join(missing)}; its columns are "
                f"{', '.join(frame.columns)}. Rename its columns, so that all inputs have the same keys"
            )
        if not _others(frame, shared):
            raise UsageError(
                f"the input {name!r} contains only its keys; add a column, which the processor may ignore"
            )
    for column in shared:
        types = {
            name: frame.schema[column].dataType.simpleString() for name, frame in inputs.items()
        }
        if len(set(types.values())) > 1:
            text = ", ".join(f"{kind} in {name!r}" for name, kind in types.items())
            raise UsageError(
                f"the column {column!r} has different types: {text}. Cast it to one type first"
            )
