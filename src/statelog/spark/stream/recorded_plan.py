"""
Record the steps that follow a stateful operator, and apply them to its output.

A micro-batch's output is a batch frame that exists only while the query runs.  The user's calls
come before that.  Each is applied at once to a *shape*, an empty stream with the same schema, so
that Spark itself computes the resulting schema and rejects what it does not support.  The call is
recorded, and repeated on each batch.

The user's columns (`out.total`) are columns of the shape.  After each step, the columns of a batch
get the ids of the shape's columns (Catalyst's expression ids), so that the user's columns refer to
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.spark.jvm.frames import (
    check_streaming,
    empty_stream,
    streaming_operators,
    with_columns_of,
)
from statelog.spark.stream.query_progress import Observing, observed

STATEFUL = {
    "Aggregate": "an aggregation",
    "Deduplicate": "dropping duplicates",
    "DeduplicateWithinWatermark": "dropping duplicates",
    "Distinct": "dropping duplicates",
    "EventTimeWatermark": "a watermark",
    "FlatMapGroupsInPandasWithState": "a second stateful operator",
    "FlatMapGroupsWithState": "a second stateful operator",
    "TransformWithState": "a second stateful operator",
    "TransformWithStateInPySpark": "a second stateful operator",
}
"""Operators that need Spark's own state, or a watermark for it."""

OBSERVE: Final = "observe"
"""The step whose values are kept for each micro-batch."""

_MAY_MAKE_ROWS = ("mapInArrow", "mapInPandas")


@dataclass(frozen=True, slots=True)
class Step:
    """One method call on the frame, and the shape of its result."""

    method: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    shape: DataFrame


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """The steps that follow a stateful operator, and the shape of the operator's output."""

    start: DataFrame
    steps: tuple[Step, ...] = ()

    @classmethod
    def of(cls, session: SparkSession, schema: StructType) -> Self:
        """Return a plan without any steps, for an output with *schema*."""
        return cls(empty_stream(session, schema))

    @property
    def shape(self) -> DataFrame:
        """An empty stream with the schema and columns that the plan produces."""
        return self.steps[-1].shape if self.steps else self.start

    @property
    def is_stateless(self) -> bool:
        """Whether empty input always produces empty output; a user's function may add rows."""
        return not any(step.method in _MAY_MAKE_ROWS for step in self.steps)

    def then(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Self:
        """Return the plan with a call of *method* appended, if Spark and statelog can run it."""
        _refuse_streams(method, (*args, *kwargs.values()))
        shape = getattr(self.shape, method)(*args, **kwargs)
        self._check(method, shape)
        return replace(self, steps=(*self.steps, Step(method, args, kwargs, shape)))

    def _check(self, method: str, shape: DataFrame) -> None:
        """Reject a step that needs state, or that Spark does not support on streams."""
        for operator in streaming_operators(shape):
            if operator in STATEFUL:
                raise needs_state(method, STATEFUL[operator])
        check_streaming(shape)

    def apply(self, frame: DataFrame, observations: Observing | None = None) -> DataFrame:
        """Apply the steps, with or without `observe`, to *frame*, a micro-batch's output."""
        if not self.steps:
            return frame
        frame = with_columns_of(self.start, frame)
        for step in self.steps:
            if step.method == OBSERVE:
                frame = observed(frame, step.args, observations)
            else:
                frame = getattr(frame, step.method)(*step.args, **step.kwargs)
            frame = with_columns_of(step.shape, frame)
        return frame


def _refuse_streams(method: str, arguments: Iterable[object]) -> None:
    """Reject step arguments that are streams."""
    for argument in arguments:
        if isinstance(argument, DataFrame) and argument.isStreaming:
            raise UsageError(
                f"{method} with a second stream needs state for both streams, which a query with "
                "a stateful operator cannot keep: combine the streams before the operator, or "
                "write this one and read it in a second query"
            )


def needs_state(method: str, what: str) -> UsageError:
    """Return the error for a step that would need Spark's own state."""
    return UsageError(
        f"{method}: {what} needs Spark's own state, which cannot be used after this query's state: do "
        "it in a processor, before the first stateful operator, or in a second query over the "
        "output of this query; for a single micro-batch, do it in foreachBatch"
    )
