"""
`aggregate`: computes running aggregates of a stream by key and window, in columns.

Spark aggregates each micro-batch in the JVM, and only the distinct keys with their partial results
are sent to the tasks, which combine them with the state.  Here the arguments are checked, and each
aggregate gets its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, GroupedData

from statelog.errors import UsageError
from statelog.extensions.columns.aggregation.functions import Aggregate
from statelog.extensions.columns.aggregation.planning import AggregationPlan, plan_aggregates
from statelog.extensions.columns.aggregation.pre_aggregation import PreAggregated
from statelog.extensions.columns.aggregation.processor import AggregateProcessor
from statelog.extensions.columns.rows import ColumnarFormat
from statelog.metrics import Metrics
from statelog.spark.api import OperatorArguments, client_of, stateful_frame
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.query.face import face_of
from statelog.spark.query.progress import Observers, OnProgress
from statelog.spark.query.query import OUTPUT_MODES, mode_of
from statelog.spark.query.resolve import unknown_arguments
from statelog.spark.query.session import session_of
from statelog.spark.query.settings import OperatorSettings, names_settings
from statelog.spark.stream.stateful_stream import GroupedStatefulStream

if TYPE_CHECKING:
    from typing import Unpack

_SPARKS: Final = {
    "count": ("count",),
    "sum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "mean": ("avg", "mean"),
    "variance": ("variance", "var_samp"),
    "first": ("first", "first_value", "min_by"),
    "last": ("last", "last_value", "max_by"),
    "approx_count_distinct": ("approx_count_distinct",),
}
"""The names of the Spark functions that each aggregate replaces."""


@names_settings
def aggregate(
    grouped: GroupedData,
    /,
    *aggregates: Aggregate,
    outputMode: str = "Update",
    on_progress: OnProgress | None = None,
    metrics: Metrics | None = None,
    **settings: Unpack[OperatorSettings],
) -> DataFrame:
    """
    Compute running aggregates by key, and by windows of event time.

    The results have the types that Spark's own functions give them.  Output columns are the keys,
    then the aggregates.

    Example:
        totals = aggregate(
            events.groupBy("customer"), F.count().alias("n"), F.sum("amount").alias("amount")
        )

    Args:
        grouped: `df.groupBy(...)` of a stream, also of the output of another stateful operator in
            the same query, by columns and `window(...)` expressions; or of a batch frame.
        aggregates: The aggregates with the names of their output columns, such as
            `count().alias("n")`.  Spark's own aggregate columns are rejected; the error names the
            function to use.
        outputMode: "Update": the keys that had rows in the micro-batch, with their new results.
            "Append": each key once, when the watermark has reached the end of its window or its
            event time; one of the two must be a column of the key.  In both modes the state of such
            a key is dropped then.
        on_progress: As for `transform_with_state`.
        metrics: As for `transform_with_state`.
        settings: See `OperatorSettings`.

    Returns:
        For a stream a `StatefulStream`, see `transform_with_state`; for a batch frame a plain lazy
        frame.

    Raises:
        UsageError: An argument is wrong, a column is unknown, or a setting is not supported.
    """
    mode = mode_of("outputMode", outputMode, OUTPUT_MODES)
    if mode == "complete":
        raise UsageError(
            "outputMode Complete would output the results of all keys in each micro-batch: use Update, "
            "and read all results with statelog.open(...) or spark.read.format('statelog')"
        )
    _check_settings(settings)
    functions = named_aggregates(aggregates)
    if settings.get("inputColumns") is not None:
        raise UsageError(
            "aggregate reads exactly the columns that its aggregates name: remove inputColumns"
        )
    session = session_of(grouped)
    client = client_of(session)
    shape = grouped.shape if isinstance(grouped, GroupedStatefulStream) else grouped
    plan = plan_aggregates(client.grouping(shape), functions)
    if not plan.keyed.frame.isStreaming and shape is grouped:
        return plan.over_batch()
    is_append = mode == "append"
    if is_append and plan.event_time is None:
        raise _no_end(plan)
    processor = AggregateProcessor(plan.merge, plan.state, plan.event_time, is_append=is_append)
    return stateful_frame(
        OperatorArguments(
            grouped,
            processor,
            plan.output,
            outputMode,
            "None" if plan.event_time is None else "EventTime",
            keys=_pre_aggregated(plan),
            observers=Observers(on_progress, metrics),
        ),
        replace(
            face_of(processor),
            row_format=lambda session, output, has_initial: ColumnarFormat(is_distinct=True),
        ),
        settings,
    )


def _pre_aggregated(plan: AggregationPlan) -> PreAggregated:
    event_time = plan.event_time
    return PreAggregated(
        plan.keyed, plan.pre, None if event_time is None else plan.keyed.key_positions[event_time]
    )


def _no_end(plan: AggregationPlan) -> UsageError:
    names = ", ".join(plan.keyed.key_schema.names)
    return UsageError(
        "outputMode Append outputs a key when the watermark has passed it, but the watermark never "
        f"passes keys of ({names}): call withWatermark on the input, and group by that column or by "
        "window(...) of it; or use Update"
    )


def named_aggregates(values: Sequence[object]) -> dict[str, Aggregate]:
    """Return the aggregates passed to a call, by the names of their output columns."""
    if not values:
        raise UsageError("aggregate needs at least one aggregate, such as count().alias('n')")
    aggregates: dict[str, Aggregate] = {}
    for value in values:
        aggregate = _aggregate(value)
        if aggregate.name is None:
            raise UsageError(
                f"aggregate: {aggregate!r} requires a name for its output column: "
                f"{aggregate!r}.alias('...')"
            )
        if aggregate.name in aggregates:
            raise UsageError(f"aggregate: two aggregates have the name {aggregate.name!r}")
        aggregates[aggregate.name] = aggregate
    return aggregates


def _check_settings(settings: Mapping[str, object]) -> None:
    for name, near in unknown_arguments(settings).items():
        hint = f"; did you mean the setting {near}?" if near else ""
        raise UsageError(
            f"aggregate: {name} is not a setting{hint}. Name an output column with "
            f"F.count().alias('n'), before the settings"
        )


def _aggregate(value: object) -> Aggregate:
    if isinstance(value, Aggregate):
        return value
    text = f"{value!r:.80}"
    if isinstance(value, Column) or is_connect(value):
        raise UsageError(
            f"aggregate: {text} is a Spark expression; aggregate takes functions of statelog.spark.functions, "
            f"which can combine results across micro-batches. {_instead_of(str(value))}"
        )
    raise UsageError(
        f"aggregate: {text} is not an aggregate of statelog.spark.functions, such as F.count().alias('n') or "
        "F.sum('amount').alias('amount')"
    )


def _instead_of(expression: str) -> str:
    """Suggest what to use in place of a Spark expression, given as text."""
    call = re.search(r"\b([a-z_]+)\((.*)\)", expression, re.DOTALL)
    function, argument = ("", "") if call is None else call.groups()
    ours = next((name for name, sparks in _SPARKS.items() if function in sparks), None)
    if ours is None:
        return f"The aggregates of statelog.spark.functions are {', '.join(_SPARKS)}, latest_row and top_k"
    value = repr(argument) if argument.isidentifier() else "column"
    if argument in ("*", "1"):
        value = ""
    if ours in ("first", "last"):
        value = "column, by=column"
    return f"Use F.{ours}({value}), with `from statelog.spark import functions as F`"
