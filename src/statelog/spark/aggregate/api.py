"""
`aggregate`: running aggregates of a stream, by key and window, in columns.

Spark aggregates each micro-batch in the JVM, and only the distinct keys with their partial results are
sent to the tasks, which combine them with the state.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame, GroupedData

from statelog.errors import UsageError
from statelog.spark.aggregate.functions import Aggregate
from statelog.spark.aggregate.planning import AggregationPlan, plan_aggregates
from statelog.spark.aggregate.processor import AggregateProcessor
from statelog.spark.api import OperatorArguments, client_of, stateful_frame
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.query.input_plan import PreAggregated
from statelog.spark.query.query import OUTPUT_MODES, mode_of
from statelog.spark.query.session import session_of
from statelog.spark.query.settings import SETTINGS, names_settings
from statelog.spark.rows.formats import ColumnarFormat
from statelog.spark.stream.stateful_stream import GroupedStatefulStream

_SETTING_NAMES: Final = frozenset(
    name for setting in SETTINGS.values() for name in (setting.name, setting.former) if name
)


@names_settings
def aggregate(
    grouped: GroupedData,
    aggregates: Mapping[str, Aggregate] | None = None,
    /,
    *,
    outputMode: str = "Update",
    **named: Any,
) -> DataFrame:
    """
    Keep running aggregates by key, and by window of event time.

    The results have the types that Spark's own functions give them.  Output columns are the keys, then the
    aggregates.

    Args:
        grouped: `df.groupBy(...)` of a stream, also of the output of another stateful operator in
            the same query, by columns and `window(...)` expressions; or of a batch frame.
        aggregates: The aggregates by the name of their output column.
        outputMode: "Update": the keys that had rows in the micro-batch, with their new results.
            "Append": each key once, when the watermark has reached the end of its window or its event
            time; for keys with one of them.  In both modes a key's state is dropped then.
        named: More aggregates by name, such as `n=count()`; and settings, see `OperatorSettings`.

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
    settings = {name: value for name, value in named.items() if name in _SETTING_NAMES}
    functions = {**(aggregates or {})}
    for name, value in named.items():
        if name not in settings:
            if name in functions:
                raise UsageError(f"aggregate: {name} is given in the mapping and by name")
            functions[name] = value
    _check(functions)
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
        settings,  # type: ignore[arg-type]
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


_SPARKS: Final = {
    "count": ("count",),
    "sum_": ("sum",),
    "min_": ("min",),
    "max_": ("max",),
    "mean": ("avg", "mean"),
    "variance": ("variance", "var_samp"),
    "first": ("first", "first_value", "min_by"),
    "last": ("last", "last_value", "max_by"),
    "approx_count_distinct": ("approx_count_distinct",),
}
"""The names of Spark's functions that each aggregate takes the place of."""


def _check(functions: Mapping[str, object]) -> None:
    if not functions:
        raise UsageError("aggregate needs at least one aggregate, such as n=count()")
    for name, value in functions.items():
        if isinstance(value, Aggregate):
            continue
        if isinstance(value, Column) or is_connect(value):
            raise UsageError(
                f"aggregate: {name}={value!r:.80} is an expression of Spark, whose result for a key "
                f"cannot be combined over micro-batches. {_instead_of(str(value))}"
            )
        similar = difflib.get_close_matches(str(name), _SETTING_NAMES, n=1, cutoff=0.8)
        hint = f"; did you mean the setting {similar[0]}?" if similar else ""
        raise UsageError(
            f"aggregate: {name}={value!r:.80} is no aggregate of statelog.spark, such as count() or "
            f"sum_('amount'), and no setting{hint}"
        )


def _instead_of(expression: str) -> str:
    """Return what takes the place of an expression of Spark, given as text."""
    call = re.search(r"\b([a-z_]+)\((.*)\)", expression, re.DOTALL)
    function, argument = ("", "") if call is None else call.groups()
    ours = next((name for name, sparks in _SPARKS.items() if function in sparks), None)
    if ours is None:
        return f"The aggregates of statelog.spark are {', '.join(_SPARKS)}, latest_row and top_k"
    value = repr(argument) if argument.isidentifier() else "column"
    if argument in ("*", "1"):
        value = ""
    if ours in ("first", "last"):
        value = "column, by=column"
    return f"Use {ours}({value}) of statelog.spark"
