"""
The input of an operator: facts about its plan, and how keys are assigned to its rows.

The facts are its watermark, event time, sources, and whether it keeps state of Spark's own.  The
tasks get each row, or what Spark has aggregated of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.jvm.frames import streaming_nodes
from statelog.spark.query.keyed_frame import ColumnsToRead, Grouping, KeyedFrame, keyed_frame

_WATERMARK_KEY = "spark.watermarkDelayMs"
_STATELESS = frozenset(
    [
        "DeserializeToObject",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "Join",
        "MapElements",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "SerializeFromObject",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "TypedFilter",
        "Union",
        "View",
    ]
)
"""Nodes whose output depends on rows of the same micro-batch only; of joins, those with a batch frame.
`MapInArrow` and the like are not included, because their functions may yield without input."""


@dataclass(frozen=True, slots=True)
class InputPlan:
    """
    What is known from the plan of an input.

    Args:
        has_watermark: Whether the input has a watermark.
        is_stateless: Whether a micro-batch without new input certainly yields no rows and changes
            no state of Spark's own operators.
        sources: Number of streaming sources, as Spark's offset log counts them.
    """

    has_watermark: bool = False
    is_stateless: bool = False
    sources: int = 1


def input_plan(frame: DataFrame) -> InputPlan:
    """Derive what is known about a streaming *frame* from its plan."""
    return facts_of(streaming_nodes(frame))


def facts_of(nodes: Iterable[tuple[str, int]]) -> InputPlan:
    """Derive the facts from the streaming nodes of a plan and their streaming children."""
    has_watermark = False
    is_stateless = True
    sources = 0
    for name, children in nodes:
        has_watermark |= name == "EventTimeWatermark"
        is_stateless &= name in _STATELESS and (name != "Join" or children < 2)
        sources += children == 0
    return InputPlan(has_watermark, is_stateless, sources)


def event_time_column(schema: StructType) -> str | None:
    """Return the input column that has a watermark, or None; raise if there are several."""
    names = [field.name for field in schema.fields if _WATERMARK_KEY in field.metadata]
    if not names:
        return None
    if len(names) > 1 or schema.names.count(names[0]) > 1:
        raise UsageError(
            f"the input must have exactly one event time column, but {', '.join(names)} have watermarks, in "
            f"({', '.join(schema.names)}). Drop the other columns before groupBy"
        )
    return names[0]


def check_output_column(name: str, output: StructType, *, has_watermark: bool) -> None:
    """Check `eventTimeColumnName` against the output columns and the watermark."""
    if not has_watermark:
        raise UsageError(
            f"eventTimeColumnName={name!r}: the input does not have a watermark; call "
            "withWatermark on the input"
        )
    if name not in output.names or not isinstance(output[name].dataType, TimestampType):
        raise UsageError(
            f"eventTimeColumnName={name!r} is not a timestamp column of the output "
            f"({output.simpleString()})"
        )


def with_event_time(output: StructType, name: str, source: StructType) -> StructType:
    """Mark a column of *output* as the event time, with the watermark delay of *source*."""
    delays = [column.metadata.get(_WATERMARK_KEY, 0) for column in source]
    mark = {_WATERMARK_KEY: max(delays, default=0)}
    return StructType(
        [
            StructField(name, column.dataType, column.nullable, {**column.metadata, **mark})
            if column.name == name
            else column
            for column in output
        ]
    )


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """
    The keyed input of an operator.

    Args:
        keyed: Its rows with their keys.
        frame: What the user has grouped.
        facts: Facts from its plan.
        is_stream: Whether it is the input of a streaming query.
        of_upstream: Makes it from the rows of the operator before it; None for the query's own
            input.
    """

    keyed: KeyedFrame
    frame: DataFrame
    facts: InputPlan
    is_stream: bool
    of_upstream: Callable[..., DataFrame] | None = None

    @property
    def has_all_columns(self) -> bool:
        """Whether the rows contain all columns of the frame that the user grouped."""
        first = self.keyed.columns[self.keyed.first_input]
        return isinstance(first, str) and first == "*"


class InputReducer(Protocol):
    """Reduces an operator's micro-batches in Spark, on the thread of the query."""

    def partitioned(self, frame: DataFrame, tasks: int, *, is_small: bool = False) -> DataFrame:
        """
        Return a micro-batch's input for the tasks, with one partition per task.

        *is_small*: whether one task may read and reduce all of the input too, without a shuffle.
        """


class InputReduction(Protocol):
    """
    A computation that Spark performs on a micro-batch's rows before the tasks run.

    It is a value, because a server of Spark Connect gets it pickled.
    """

    @property
    def call(self) -> str:
        """The name of the call that requested the reduction, for messages."""

    @property
    def work_ms(self) -> float:
        """How much task work justifies one more task."""

    def reducer(self, groups: KeyGroupRange) -> InputReducer:
        """Return the reducer for the micro-batches of an operator that has these key groups."""


class KeyedInputPlan(Protocol):
    """Builds the keyed input of an operator."""

    @property
    def reduction(self) -> InputReduction | None:
        """What Spark computes first from a micro-batch's rows; None if it sends the rows."""

    def keyed(
        self, grouping: Callable[[], Grouping], key_groups: KeyGroupRange, to_read: ColumnsToRead
    ) -> KeyedFrame:
        """Return the input built from *grouping*, with its keys and the columns in *to_read*."""

    def event_time(self, source: KeyedInput) -> int | None:
        """Return the position of the event-time column in the tasks' input, or None."""


@dataclass(frozen=True, slots=True)
class EachRow:
    """An input plan under which the tasks receive every row."""

    reduction: InputReduction | None = None

    def keyed(
        self, grouping: Callable[[], Grouping], key_groups: KeyGroupRange, to_read: ColumnsToRead
    ) -> KeyedFrame:
        """See `KeyedInputPlan`."""
        return keyed_frame(grouping(), key_groups, to_read)

    def event_time(self, source: KeyedInput) -> int | None:
        """See `KeyedInputPlan.event_time`; rejects an input without a watermark."""
        if not source.is_stream:
            raise UsageError(
                "the time mode EventTime requires a stream, because a batch frame does not have a "
                "watermark; use None or ProcessingTime"
            )
        if not source.facts.has_watermark:
            raise UsageError(
                "the time mode EventTime requires a watermark; call withWatermark on the input before "
                "groupBy"
            )
        name = event_time_column(source.frame.schema)
        if name is None:
            return None
        first = source.keyed.first_input
        return first + source.keyed.frame.columns[first:].index(name)
