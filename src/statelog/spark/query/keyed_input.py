"""How the input of an operator gets its keys: row by row, or aggregated by Spark before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.query.input_plan import InputPlan, event_time_column
from statelog.spark.query.keyed_frame import Grouping, KeyedFrame, keyed_frame
from statelog.spark.query.pre_aggregation import PreAggregation


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """
    The input of an operator.

    Args:
        keyed: Its rows with their keys.
        frame: What the user has grouped.
        facts: Facts from its plan.
        is_stream: Whether it is that of a streaming query.
        of_upstream: Makes it from the rows of the operator before it; None for the query's own input.
    """

    keyed: KeyedFrame
    frame: DataFrame
    facts: InputPlan
    is_stream: bool
    of_upstream: Callable[..., DataFrame] | None = None


class KeyedInputPlan(Protocol):
    """Makes the keyed input of an operator."""

    @property
    def aggregation(self) -> PreAggregation | None:
        """What Spark computes of the rows of a micro-batch first; None to send the rows."""

    def keyed(self, grouping: Callable[[], Grouping], key_groups: KeyGroupRange) -> KeyedFrame:
        """Return the input with its keys, made of what *grouping* returns."""

    def event_time(self, source: KeyedInput) -> int | None:
        """Return the position of the event time in the tasks' input, or None without one."""


@dataclass(frozen=True, slots=True)
class EachRow:
    """The tasks get each row."""

    aggregation: PreAggregation | None = None

    def keyed(self, grouping: Callable[[], Grouping], key_groups: KeyGroupRange) -> KeyedFrame:
        """See `KeyedInputPlan`."""
        return keyed_frame(grouping(), key_groups)

    def event_time(self, source: KeyedInput) -> int | None:
        """See `KeyedInputPlan`; an input without a watermark is rejected."""
        if not source.is_stream:
            raise UsageError(
                "the time mode EventTime needs a stream: a batch frame has no watermark; use None or "
                "ProcessingTime"
            )
        if not source.facts.has_watermark:
            raise UsageError(
                "the time mode EventTime needs a watermark; call withWatermark on the input before "
                "groupBy"
            )
        schema = source.frame.schema
        name = event_time_column(schema)
        return None if name is None else source.keyed.first_input + schema.names.index(name)


@dataclass(frozen=True, slots=True)
class PreAggregated:
    """
    Spark aggregates the micro-batches before the tasks get them.

    Args:
        frame: What flows into the aggregation, by position what flows out of it; its frame does not
            have key groups yet.
        aggregation: What is aggregated.
        time_column: Position of the key with the event time in the tasks' input, or None.
    """

    frame: KeyedFrame
    aggregation: PreAggregation
    time_column: int | None

    def keyed(self, grouping: Callable[[], Grouping], key_groups: KeyGroupRange) -> KeyedFrame:
        """See `KeyedInputPlan`."""
        return self.frame

    def event_time(self, source: KeyedInput) -> int | None:
        """See `KeyedInputPlan`."""
        return self.time_column
