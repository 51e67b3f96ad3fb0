"""
`aggregate`: running aggregates of a stream, by key and window, in columns.

Spark aggregates each micro-batch in the JVM, and only the distinct keys with their partial results are
sent to the tasks, which combine them with the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, GroupedData

from statelog.errors import UsageError
from statelog.spark.aggregation.arguments import named_aggregates
from statelog.spark.aggregation.functions import Aggregate
from statelog.spark.aggregation.planning import AggregationPlan, plan_aggregates
from statelog.spark.aggregation.processor import AggregateProcessor
from statelog.spark.api import OperatorArguments, client_of, stateful_frame
from statelog.spark.query.input_plan import PreAggregated
from statelog.spark.query.query import OUTPUT_MODES, mode_of
from statelog.spark.query.session import session_of
from statelog.spark.query.settings import OperatorSettings, names_settings
from statelog.spark.rows.formats import ColumnarFormat
from statelog.spark.stream.stateful_stream import GroupedStatefulStream

if TYPE_CHECKING:
    from typing import Unpack


@names_settings
def aggregate(
    grouped: GroupedData,
    /,
    *aggregates: Aggregate,
    outputMode: str = "Update",
    **settings: Unpack[OperatorSettings],
) -> DataFrame:
    """
    Keep running aggregates by key, and by window of event time.

    The results have the types that Spark's own functions give them.  Output columns are the keys, then the
    aggregates.

    Example:
        totals = aggregate(
            events.groupBy("customer"), count().alias("n"), sum_("amount").alias("amount")
        )

    Args:
        grouped: `df.groupBy(...)` of a stream, also of the output of another stateful operator in
            the same query, by columns and `window(...)` expressions; or of a batch frame.
        aggregates: The aggregates with the names of their output columns, such as `count().alias("n")`.
            Spark's own aggregate columns are rejected; the error names the function to use.
        outputMode: "Update": the keys that had rows in the micro-batch, with their new results.
            "Append": each key once, when the watermark has reached the end of its window or its event
            time; for keys with one of them.  In both modes a key's state is dropped then.
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
            "outputMode Complete would send the results of all keys in each micro-batch: use Update, "
            "and read all results with statelog.open(...) or spark.read.format('statelog')"
        )
    keywords: dict[str, Any] = {**settings}
    functions = named_aggregates(aggregates, keywords)
    if keywords.get("inputColumns") is not None:
        raise UsageError(
            "aggregate reads the columns that its aggregates name: remove inputColumns"
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
    return stateful_frame(
        OperatorArguments(
            grouped,
            AggregateProcessor(plan.merge, plan.state, plan.event_time, is_append=is_append),
            plan.output,
            outputMode,
            "None" if plan.event_time is None else "EventTime",
            keys=_pre_aggregated(plan),
        ),
        lambda session, output: ColumnarFormat(is_distinct=True),
        keywords,  # type: ignore[arg-type]
    )


def _pre_aggregated(plan: AggregationPlan) -> PreAggregated:
    at = plan.event_time
    return PreAggregated(plan.keyed, plan.pre, None if at is None else plan.keyed.key_positions[at])


def _no_end(plan: AggregationPlan) -> UsageError:
    names = ", ".join(plan.keyed.key_schema.names)
    return UsageError(
        f"outputMode Append needs an end of each key, and those of ({names}) have none: call "
        "withWatermark on the input and group by window(...) of that column, or by the column; or use "
        "Update"
    )
