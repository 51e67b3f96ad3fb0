"""A stateful operator as its call defines it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from statelog.spark.query.columnar_processor import AnyProcessor
from statelog.spark.query.initial_state import InitialState
from statelog.spark.query.input_plan import InputPlan
from statelog.spark.query.pre_aggregation import PreAggregation
from statelog.spark.rows.formats import RowFormat
from statelog.spark.rows.layout import InputLayout
from statelog.state.schema.descriptors import OperatorStateSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDefinition:
    """
    A stateful operator over a frame.

    Args:
        frame: The input with its key groups, see `KeyedFrame`.
        processor: The user's processor.
        schema: Key and state variables that the processor declares.
        time_mode: "none", "processingtime" or "eventtime".
        max_parallelism: Number of key groups; the frame is made with it.
        layout: Positions of the key columns and the input's columns in *frame*.
        plan: Facts from the input's plan.
        row_format: The form in which the processor gets rows.
        output: Schema of the output rows.
        arrow_output: The same in Arrow's types.
        initial: Rows that the first micro-batch of an empty state begins with.
        event_time: Position of the column with the event time of rows, or None.
        event_time_output: The output column that may not be older than the watermark, or None.
        zone: The session's time zone.
        arguments: The settings given in the code, those of the operators before it included.
        of_upstream: Makes the input with its key groups from the rows of the operator before it;
            None for the first operator, whose input is that of the query.
        pre_aggregation: Makes partial results of the rows of a micro-batch, in Spark; then *frame* has
            no key groups, and *layout* is that of the results.  None: the tasks get the rows.
    """

    frame: DataFrame
    processor: AnyProcessor
    schema: OperatorStateSchema
    time_mode: str
    max_parallelism: int
    layout: InputLayout
    plan: InputPlan
    row_format: RowFormat
    output: StructType
    arrow_output: pa.Schema
    initial: InitialState | None
    event_time: int | None
    event_time_output: str | None
    zone: str
    arguments: Mapping[str, object]
    of_upstream: Callable[..., DataFrame] | None = None
    pre_aggregation: PreAggregation | None = None
