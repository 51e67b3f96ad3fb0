"""
Aggregate a micro-batch with one shuffle, straight to the tasks that own the keys.

Spark's plan of `groupBy(...).agg(...)` is: partial results in each input partition, a shuffle by the
hash of all grouping columns, final results.  A second shuffle would then bring them to the tasks.
Here the first grouping column is a value by which the shuffle puts a row into the partition of its
task; the shuffle is made by that column alone.  Rows that are equal in all grouping columns are equal
in the first, so the final results are the same.

Where the plan has another form, the two shuffles remain: Spark Connect, adaptive execution, an input
that already is partitioned by the keys.
"""

from __future__ import annotations

import logging
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from statelog.model import KeyGroupRange
from statelog.spark.query.keyed_frame import by_task
from statelog.spark.query.pre_aggregation import TASK_COLUMN, PreAggregation
from statelog.spark.query.session import is_connect
from statelog.spark.rows.jvm import JavaObject, jvm_of

_log = logging.getLogger("statelog.spark")

_EXCHANGE: Final = "ShuffleExchangeExec"
_ABOVE: Final = frozenset(
    {
        "HashAggregateExec",
        "InputAdapter",
        "ObjectHashAggregateExec",
        "ProjectExec",
        "SortAggregateExec",
        "SortExec",
        "WholeStageCodegenExec",
    }
)
"""The nodes of the final results, above the shuffle."""


def pre_aggregated(
    aggregation: PreAggregation, frame: DataFrame, tasks: int, groups: KeyGroupRange
) -> DataFrame:
    """
    Return the partial results of a micro-batch, with one partition for each task.

    Args:
        aggregation: What is aggregated.
        frame: The input of the operator.
        tasks: Number of tasks.
        groups: The key groups of the operator.
    """
    if tasks == 1:  # all rows in one partition: no shuffle at all
        frame = frame.coalesce(1)
    grouped = aggregation.grouped(frame, groups, tasks)
    if tasks > 1 and not is_connect(frame):
        try:
            rows = _one_shuffle(grouped, tasks)
        except Py4JError as error:  # another version of Spark may differ inside
            _log.warning("a micro-batch is aggregated with two shuffles: %.300s", error)
            rows = None
        if rows is not None:
            return rows.select(*aggregation.columns())
    rows = grouped.select(*aggregation.columns())
    return rows if tasks == 1 else by_task(rows, tasks, groups)


def _one_shuffle(grouped: DataFrame, tasks: int) -> DataFrame | None:
    """Return the rows of *grouped*, shuffled by its first column only; None if that cannot be."""
    session, jvm = grouped.sparkSession, jvm_of(grouped.sparkSession)
    path = _down_to_shuffle(grouped._jdf.queryExecution().executedPlan())
    if path is None:
        return None
    exchange = path.pop()
    columns = exchange.outputPartitioning().expressions()
    if columns.head().toString().partition("#")[0] != TASK_COLUMN:
        return None
    physical = jvm.org.apache.spark.sql.catalyst.plans.physical
    plan = _with_partitioning(grouped, exchange, physical.HashPartitioning(columns.take(1), tasks))
    while path:
        above = path.pop()
        plan = above.withNewChildren(above.children().updated(0, plan))
    rows = session._jsparkSession.internalCreateDataFrame(
        plan.execute(), grouped._jdf.schema(), False
    )
    return DataFrame(rows, session)


def _down_to_shuffle(node: JavaObject) -> list[JavaObject] | None:
    """
    Return the nodes from the root of a plan to the shuffle of its aggregation.

    None if there is another node in between, or no shuffle by hash that follows partial results.
    """
    path = [node]
    kind = node.getClass().getSimpleName()
    while kind in _ABOVE:
        node = node.children().head()
        path.append(node)
        kind = node.getClass().getSimpleName()
    aggregates = [one for one in path if one.nodeName().endswith("Aggregate")]
    if kind != _EXCHANGE or not aggregates:
        return None
    below = node.children().head()
    while below.nodeName().startswith("WholeStageCodegen") or below.nodeName() == "Sort":
        below = below.children().head()
    # A shuffle of the user's own, below an aggregation that needs none, stays as it is.
    is_of_aggregate = below.nodeName() == aggregates[-1].nodeName()
    is_by_hash = node.outputPartitioning().getClass().getSimpleName() == "HashPartitioning"
    return path if is_of_aggregate and is_by_hash else None


def _with_partitioning(
    frame: DataFrame, exchange: JavaObject, partitioning: JavaObject
) -> JavaObject:
    """Return a copy of a shuffle; how many arguments it has differs by version."""
    jvm, count = jvm_of(frame.sparkSession), exchange.productArity()
    kind = jvm.java.lang.Class.forName("java.lang.Object")
    arguments = jvm.java.lang.reflect.Array.newInstance(kind, count)
    arguments[0] = partitioning
    for at in range(1, count):
        arguments[at] = exchange.productElement(at)
    return exchange.makeCopy(arguments)
