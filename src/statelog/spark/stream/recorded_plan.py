"""
What follows a stateful operator in the plan: recorded, and applied to each micro-batch's output.

A micro-batch's output is a batch frame that exists only while the query runs.  What the user does
to the stream before that is done at once to a *shape*, an empty stream with the same schema, so
that Spark itself says what comes out and refuses what it would refuse; and it is recorded, to be
done again to each batch.

The columns of the shape are what the user holds (`out.total`).  So that they mean the same in a
batch, the columns of a batch take on the identity (Catalyst's expression id) of the shape's after
each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.column import Column
from pyspark.sql.types import StructType

from statelog.errors import UsageError

_STATEFUL = {
    "Aggregate": "an aggregation",
    "Deduplicate": "dropping duplicates",
    "DeduplicateWithinWatermark": "dropping duplicates",
    "Distinct": "dropping duplicates",
    "EventTimeWatermark": "a watermark",
    "FlatMapGroupsInPandasWithState": "another stateful operator",
    "FlatMapGroupsWithState": "another stateful operator",
    "TransformWithState": "another stateful operator",
    "TransformWithStateInPySpark": "another stateful operator",
}
"""Operators that Spark would give state of their own, or that feed such."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One thing that was done to the frame, and the shape after it."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: DataFrame


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """
    What is done to the output of a stateful operator.

    Args:
        start: The shape of the output itself.
        steps: What is done to it, in order.
    """

    start: DataFrame
    steps: tuple[_Step, ...] = ()

    @classmethod
    def of(cls, session: SparkSession, schema: StructType) -> RecordedPlan:
        """Return the plan of an output of *schema* to which nothing is done."""
        nothing = session.sparkContext._jsc.emptyRDD().rdd()
        jschema = session._jsparkSession.parseDataType(schema.json())
        empty = session._jsparkSession.internalCreateDataFrame(nothing, jschema, True)
        return cls(DataFrame(empty, session))

    @property
    def shape(self) -> DataFrame:
        """An empty stream with the schema, and the columns, of what comes out in the end."""
        return self.steps[-1].shape if self.steps else self.start

    def then(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedPlan:
        """
        Return the plan with one more step: a call of the frame's *method*.

        Raises:
            UsageError: The step would need state, or another stream.
            AnalysisException: Spark refuses it, such as for a column that is not there.
        """
        for each in (*args, *kwargs.values()):
            if isinstance(each, DataFrame) and each.isStreaming:
                raise UsageError(
                    f"{method} with another stream needs state for both, which one query cannot "
                    "keep beside a stateful operator: combine the streams before it, or write "
                    "this one and read it in a second query"
                )
        shape = getattr(self.shape, method)(*args, **kwargs)
        _check_stateless(method, shape)
        return RecordedPlan(self.start, (*self.steps, _Step(method, args, kwargs, shape)))

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return what comes out in the end for *frame*, the output of one micro-batch."""
        if not self.steps:
            return frame
        frame = _as_columns_of(self.start, frame)
        for step in self.steps:
            frame = getattr(frame, step.method)(*step.args, **step.kwargs)
            frame = _as_columns_of(step.shape, frame)
        return frame


def _check_stateless(method: str, shape: DataFrame) -> None:
    jvm: Any = shape.sparkSession._jvm
    plan = shape._jdf.queryExecution().analyzed()
    for node in _nodes(plan):
        what = _STATEFUL.get(node.getClass().getSimpleName())
        if what is not None and node.isStreaming():
            raise UsageError(
                f"{method}: {what} needs state, and a query keeps the state of one stateful "
                "operator: do it in the processor, or before it, or in a second query over what "
                "this one writes; within one micro-batch, in foreachBatch"
            )
    # What else cannot be done to a stream Spark knows best.
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(plan, mode)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def _attributes(frame: DataFrame) -> list[Any]:
    output = frame._jdf.queryExecution().analyzed().output()
    return [output.apply(index) for index in range(output.size())]


def _as_columns_of(shape: DataFrame, frame: DataFrame) -> DataFrame:
    """Return *frame*, its columns known by the identities of *shape*'s."""
    jvm: Any = frame.sparkSession._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    to_column = jvm.org.apache.spark.sql.classic.ExpressionUtils.column
    no_metadata = jvm.scala.Option.empty()
    nil = getattr(jvm.scala.collection.immutable, "Nil$").__getattr__("MODULE$")
    columns = []
    changed = False
    for has, wanted in zip(_attributes(frame), _attributes(shape), strict=True):
        if not has.exprId().equals(wanted.exprId()):
            changed = True
            has = catalyst.Alias(
                has, wanted.name(), wanted.exprId(), wanted.qualifier(), no_metadata, nil
            )
        columns.append(Column(to_column(has)))
    return frame.select(*columns) if changed else frame
