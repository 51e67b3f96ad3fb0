"""
Aggregate a micro-batch with one shuffle, straight to the tasks that own the keys.

Spark's plan of `groupBy(...).agg(...)` is: partial results in each input partition, a shuffle by the
hash of all grouping columns, final results.  A second shuffle would then bring them to the tasks.
Here the shuffle has another partitioning: by a value, computed from the key, whose hash is the number
of the key's task.  Rows of one key go to one partition, so the final results are the same.

Spark makes the plan once for a query.  To plan an aggregation takes it longer than to copy a plan with
the rows of another micro-batch.

Adaptive execution, which Spark uses for a micro-batch of stateless operators since 4.1, is off while
this plan is made: it would hide the shuffle, and decide on the number of partitions.

Where the plan has another form, the two shuffles remain: Spark Connect, an input that already is
partitioned by the keys.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from statelog.model import KeyGroupRange
from statelog.spark.driver.plans import SHUFFLE, KeptPlan, PlanCopies, executed_plan
from statelog.spark.query.keyed_frame import by_task
from statelog.spark.query.pre_aggregation import PreAggregation
from statelog.spark.query.session import is_connect
from statelog.spark.rows.jvm import JavaObject, jvm_of

_log = logging.getLogger("statelog.spark")

_BELOW: Final = frozenset({"Sort", "WholeStageCodegen"})
_ABOVE: Final = _BELOW | {
    "HashAggregate",
    "InputAdapter",
    "ObjectHashAggregate",
    "Project",
    "SortAggregate",
}
"""The nodes of the final results, above the shuffle."""


class PreAggregator:
    """
    Aggregates the micro-batches of one operator.

    Args:
        aggregation: What is aggregated.
        groups: The key groups of the operator.

    Thread: Spark's thread of the query.
    """

    def __init__(self, aggregation: PreAggregation, groups: KeyGroupRange) -> None:
        self._aggregation = aggregation
        self._groups = groups
        self._steps: dict[int, _Steps] = {}

    def partitioned(self, frame: DataFrame, tasks: int, *, is_small: bool = False) -> DataFrame:
        """
        Return the partial results of a micro-batch, with one partition for each task.

        Args:
            frame: The input of the operator.
            tasks: Number of tasks.
            is_small: Whether one task may read and aggregate all of the input too, without a shuffle.
        """
        is_classic = not is_connect(frame)
        if tasks == 1 and (is_small or not is_classic):
            return self._aggregation.grouped(frame.coalesce(1), self._groups)
        if is_classic:
            try:
                rows = self._with_one_shuffle(frame, tasks)
            except Py4JError as error:  # another version of Spark may differ inside
                _log.warning("a micro-batch is aggregated with two shuffles: %.300s", error)
                rows = None
            if rows is not None:
                return rows
        grouped = self._aggregation.grouped(frame, self._groups)
        return by_task(grouped, tasks, self._groups)

    def _with_one_shuffle(self, frame: DataFrame, tasks: int) -> DataFrame | None:
        """Return the partial results by task; None where the plan has another form."""
        steps = self._steps.get(tasks)
        if steps is None:
            steps = self._steps[tasks] = _Steps(frame, self._aggregation, self._groups, tasks)
        return steps.apply(frame)


class _Steps:
    """
    The steps of one aggregation for one number of tasks.

    Spark plans it once.  A later micro-batch takes that plan with other rows at its leaf, if they
    have the same columns and are as little partitioned.
    """

    def __init__(
        self, frame: DataFrame, aggregation: PreAggregation, groups: KeyGroupRange, tasks: int
    ) -> None:
        jvm = jvm_of(frame.sparkSession)
        column, to_seq = jvm.org.apache.spark.sql.functions, jvm.PythonUtils.toSeq
        self._key_count = len(aggregation.keys)
        self._keys = to_seq([column.col(name) for name in aggregation.keys])
        first, *others = (column.expr(text) for text in aggregation.results())
        self._first, self._others = first, to_seq(others)
        self._with_key_group = to_seq(aggregation.with_key_group(groups))
        self._copies = PlanCopies(jvm)
        partitioning = jvm.org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
        task = _over_positions(frame, aggregation.keys, aggregation.task(groups, tasks))
        self._partitioning = partitioning(to_seq([task]), tasks)
        self._kept: KeptPlan | None = None
        self._schema: JavaObject | None = None

    def apply(self, frame: DataFrame) -> DataFrame | None:
        """Return the results, shuffled to their tasks only; None if that cannot be."""
        plan = None if self._kept is None else self._kept.over(frame)
        if plan is None:
            plan = self._planned(frame)
            if plan is None:
                return None
            self._kept = KeptPlan.of(plan, frame, self._copies)
        _shuffle_of(plan).submitShuffleJob()
        # It runs while the driver plans what reads it, and the sink plans what it does with that.
        rows = frame.sparkSession._jsparkSession.internalCreateDataFrame(
            plan.execute(), self._schema, False
        )
        return DataFrame(rows, frame.sparkSession)

    def _planned(self, frame: DataFrame) -> JavaObject | None:
        """Return Spark's plan of the results, with the shuffle by task; None if it has another form."""
        grouped = frame._jdf.groupBy(self._keys).agg(self._first, self._others)
        results = grouped.selectExpr(self._with_key_group)
        plan = executed_plan(frame.sparkSession, results)
        shuffle = _shuffle_of_aggregation(plan)
        if shuffle is None:
            return None
        # The partial results begin with the keys: `_partitioning` finds them by position.
        partials = shuffle.children().head().output()
        by = shuffle.outputPartitioning().expressions()
        if by.size() != self._key_count or not by.equals(partials.take(self._key_count)):
            return None
        self._schema = results.schema()
        to_tasks = self._copies.with_argument(shuffle, 0, self._partitioning)
        return self._copies.with_node(plan, shuffle, to_tasks)


def _over_positions(frame: DataFrame, keys: Sequence[str], text: str) -> JavaObject:
    """
    Return an expression that finds the key columns at the positions 0, 1, ... of a row.

    Args:
        frame: Has the key columns.
        keys: Their names.
        text: SQL of the expression, over these names.
    """
    session, jvm = frame.sparkSession, jvm_of(frame.sparkSession)
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    nothing = session.sparkContext._jsc.emptyRDD().rdd()
    schema = frame._jdf.selectExpr(jvm.PythonUtils.toSeq(list(keys))).schema()
    empty = session._jsparkSession.internalCreateDataFrame(nothing, schema, False)
    plan = empty.selectExpr(jvm.PythonUtils.toSeq([text])).queryExecution().optimizedPlan()
    columns = getattr(expressions, "package$AttributeSeq")(plan.children().head().output())
    value = plan.projectList().head().child()
    return expressions.BindReferences.bindReference(value, columns, False)


def _shuffle_of_aggregation(plan: JavaObject) -> JavaObject | None:
    """
    Return the shuffle of a plan's aggregation.

    None if there is another node above it, or no shuffle by hash that follows partial results.
    """
    node, name, final = plan, _name(plan), ""
    while name in _ABOVE:
        final = name if name.endswith("Aggregate") else final
        node = node.children().head()
        name = _name(node)
    if name != SHUFFLE or not final:
        return None
    below = node.children().head()
    while (name := _name(below)) in _BELOW:
        below = below.children().head()
    # A shuffle of the user's own, below an aggregation that needs none, stays as it is.
    is_by_hash = node.outputPartitioning().getClass().getSimpleName() == "HashPartitioning"
    return node if name == final and is_by_hash else None


def _shuffle_of(node: JavaObject) -> JavaObject:
    """Return the shuffle of a plan that has one, below the final results."""
    while node.nodeName() != SHUFFLE:
        node = node.children().head()
    return node


def _name(node: JavaObject) -> str:
    """Return the name of a node of a plan, without the number of a stage."""
    name: str = node.nodeName()
    return name.partition(" (")[0]
