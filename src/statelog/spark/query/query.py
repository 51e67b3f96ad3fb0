"""
A stateful query: everything about it that does not change while it runs.

A query has one operator, or several that follow each other.  Each operator has *max_parallelism*
key groups: operator i of the query has the key groups i x max_parallelism and up.  So one
checkpoint holds the state of all of them, by key group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from statelog.core.task_count import TaskBounds
from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.query.face import AnyProcessor
from statelog.spark.query.input_plan import InputPlan, InputReduction
from statelog.spark.query.keyed_frame import InitialState
from statelog.spark.query.progress import NO_OBSERVERS, Observers
from statelog.spark.query.settings import QuerySettings
from statelog.spark.rows.formats import RowFormat
from statelog.spark.rows.layout import InputLayout
from statelog.state.schema import OperatorStateSchema

TIME_MODES: Final = ("none", "processingtime", "eventtime")
OUTPUT_MODES: Final = ("append", "update", "complete")
_SPELLED: Final = {"processingtime": "ProcessingTime", "eventtime": "EventTime"}


def mode_of(
    name: str, value: object, allowed: tuple[str, ...], error: type[UsageError] = UsageError
) -> str:
    """Convert a mode to lower case; raise *error* if it is not in *allowed*."""
    if not isinstance(value, str) or value.lower() not in allowed:
        modes = ", ".join(f'"{_SPELLED.get(mode, mode.capitalize())}"' for mode in allowed)
        raise error(f"{name} must be one of {modes}, not {value!r}")
    return value.lower()


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
        arguments: The settings given in the code, also at the operators before it.
        observers: The observers given with it, and with the operators before it.
        of_upstream: Makes the input with its key groups from the rows of the operator before it;
            None for the first operator, which reads the input of the query.
        reduction: What Spark computes of the rows of a micro-batch first; then *frame* does not
            have key groups, and *layout* describes the results.  None: the tasks get the rows.
        declared: What the processor declares to extensions, by their names.
        has_all_columns: Whether the tasks get all columns of the input, and not only those that the
            source code of the processor reads.
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
    reduction: InputReduction | None = None
    observers: Observers = NO_OBSERVERS
    declared: Mapping[str, object] = field(default_factory=dict)
    has_all_columns: bool = True


@dataclass(frozen=True, slots=True)
class Query:
    """A query that is ready to start, in the form that the driver needs."""

    operators: tuple[OperatorDefinition, ...]
    settings: QuerySettings
    location: str
    task_bounds: TaskBounds
    observers: Observers = NO_OBSERVERS

    @property
    def source(self) -> OperatorDefinition:
        """The first operator, which reads the query's input."""
        return self.operators[0]

    @property
    def output(self) -> OperatorDefinition:
        """The last operator, whose output rows are delivered."""
        return self.operators[-1]

    @property
    def key_groups(self) -> int:
        """The number of key groups of all operators together."""
        return sum(operator.max_parallelism for operator in self.operators)

    @property
    def time_mode(self) -> str:
        """See `time_mode_of`."""
        return time_mode_of(self.operators)

    def key_groups_of(self, operator: int) -> KeyGroupRange:
        """Return the key groups of the operator at this index."""
        first = sum(before.max_parallelism for before in self.operators[:operator])
        return KeyGroupRange(first, first + self.operators[operator].max_parallelism - 1)


def time_mode_of(operators: Sequence[OperatorDefinition]) -> str:
    """Return the time mode of the operators that use timers, or "none" if none do."""
    modes = (operator.time_mode for operator in operators)
    return next((mode for mode in modes if mode != "none"), "none")
