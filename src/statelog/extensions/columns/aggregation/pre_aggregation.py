"""
Aggregate a micro-batch's rows in Spark, with one shuffle to the tasks that own the keys.

`PreAggregation` is a value of names and SQL text, because a server of Spark Connect gets it
pickled.

Spark's plan of `groupBy(...).agg(...)` is: partial results in each input partition, a shuffle by
the hash of all grouping columns, final results.  A second shuffle would then bring them to the
tasks.  Here the shuffle has another partitioning: by a value, computed from the key, whose hash is
the number of the key's task.  Rows of one key go to one partition, so the final results are the
same.

A small input is aggregated by one task, without a shuffle.

Spark makes either plan once for a query.  To plan an aggregation takes it longer than to copy a
plan with the rows of another micro-batch.

Adaptive execution, which Spark uses for a micro-batch of stateless operators since 4.1, is off
while this plan is made: it would hide the shuffle, and decide on the number of partitions.

Where the plan has another form, as over an input that is partitioned by the keys already, the two
shuffles remain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from statelog.model import KeyGroupRange
from statelog.spark.jvm.gateway import JavaObject, is_connect, jvm_of
from statelog.spark.jvm.python_job import SHUFFLE, PlanCopies, begin_shuffle, executed_plan
from statelog.spark.jvm.tricks import Trick, Unfit, attempt
from statelog.spark.query.input_plan import KeyedInput
from statelog.spark.query.keyed_frame import ColumnsToRead, Grouping, KeyedFrame, by_task, task_of
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN
from statelog.spark.rows.spark_versions import hashed_to

_SCAN: Final = "Scan ExistingRDD"
_LOGICAL: Final = "LogicalRDD"
_SCANNED: Final = ("output", "outputPartitioning", "outputOrdering")
"""The fields of a scan besides its RDD; both nodes use these names."""

_BELOW: Final = frozenset({"Sort", "WholeStageCodegen"})
_ABOVE: Final = _BELOW | {
    "HashAggregate",
    "InputAdapter",
    "ObjectHashAggregate",
    "Project",
    "SortAggregate",
}
"""The nodes of the final results, above the shuffle."""


PARTIAL_WORK_MS: Final = 20.0
"""Work that pays for one more task, less than `TASK_WORK_MS`: the shuffle is there with one task too, and
Spark's own work on the results is shared as well.  Measured with `bench/peers.py` on two cores: one
task and two took the same time at 300,000 events, with some 18 ms of work."""


@dataclass(frozen=True, slots=True)
class PreAggregation:
    """
    A micro-batch's partial results by key: the key columns, and named SQL expressions.

    It is an `InputReduction`.
    """

    call: ClassVar[str] = "aggregate"
    work_ms: ClassVar[float] = PARTIAL_WORK_MS

    keys: tuple[str, ...]
    partials: tuple[tuple[str, str], ...]

    def reducer(self, groups: KeyGroupRange) -> PreAggregator:
        """Return the aggregator for the micro-batches of an operator with these key groups."""
        return PreAggregator(self, groups)

    def grouped(self, frame: DataFrame, groups: KeyGroupRange) -> DataFrame:
        """Return a micro-batch's partial results by key, with key groups, in any order."""
        results = frame.groupBy(*self.keys).agg(*map(expr, self.results()))
        return results.selectExpr(*self.task_columns(groups))

    def results(self) -> list[str]:
        """Return SQL for the partial results, with one row per key."""
        return [f"{text} AS {name}" for text, name in self.partials]

    def task_columns(self, groups: KeyGroupRange) -> list[str]:
        """Return SQL for a task's input columns, in terms of the grouped columns."""
        names = (name for _, name in self.partials)
        return [f"{self.key_group(groups)} AS {INPUT_KEY_GROUP_COLUMN}", *self.keys, *names]

    def key_group(self, groups: KeyGroupRange) -> str:
        """Return SQL for the key group of a key."""
        group = f"cast(pmod(xxhash64({', '.join(self.keys)}), {len(groups)}) as int)"
        return f"{group} + {groups.start}" if groups.start else group


class PreAggregator:
    """
    Aggregates the micro-batches of one operator.

    Thread: Spark's thread of the query.
    """

    def __init__(self, aggregation: PreAggregation, groups: KeyGroupRange) -> None:
        self._aggregation = aggregation
        self._groups = groups
        self._by_tasks: dict[int, OneShuffle] = {}
        self._without_shuffle: WithoutShuffle | None = None

    def partitioned(self, frame: DataFrame, tasks: int, *, is_small: bool = False) -> DataFrame:
        """See `InputReducer`."""
        if tasks == 1 and (is_small or is_connect(frame)):
            rows = self._in_one_task(frame)
            if rows is None:
                rows = self._aggregation.grouped(frame.coalesce(1), self._groups)
            return rows
        rows = self._with_one_shuffle(frame, tasks)
        if rows is not None:
            return rows
        grouped = self._aggregation.grouped(frame, self._groups)
        return by_task(grouped, tasks, self._groups)

    def _in_one_task(self, frame: DataFrame) -> DataFrame | None:
        """Return the partial results of one task that reads all rows, by a plan made once."""

        def results() -> DataFrame:
            if self._without_shuffle is None:
                self._without_shuffle = WithoutShuffle(frame, self._aggregation, self._groups)
            return self._without_shuffle.apply(frame)

        return attempt(Trick.KEPT_PLANS, frame.sparkSession, results)

    def _with_one_shuffle(self, frame: DataFrame, tasks: int) -> DataFrame | None:
        """Return the partial results by task, or None if Spark would need a second shuffle."""

        def results() -> DataFrame:
            if tasks not in self._by_tasks:
                shuffle = OneShuffle(frame, self._aggregation, self._groups, tasks)
                self._by_tasks[tasks] = shuffle
            return self._by_tasks[tasks].apply(frame)

        return attempt(Trick.ONE_SHUFFLE, frame.sparkSession, results)


@dataclass(frozen=True, slots=True)
class PreAggregated:
    """
    An input plan in which Spark aggregates each micro-batch before the tasks read it.

    Args:
        frame: What flows into the aggregation, by position what flows out of it; its frame does not
            have key groups yet.
        reduction: What is aggregated.
        time_column: Position of the key with the event time in the tasks' input, or None.
    """

    frame: KeyedFrame
    reduction: PreAggregation
    time_column: int | None

    def keyed(
        self, grouping: Callable[[], Grouping], key_groups: KeyGroupRange, to_read: ColumnsToRead
    ) -> KeyedFrame:
        """See `KeyedInputPlan.keyed`; Spark reads only the columns that it aggregates."""
        return self.frame

    def event_time(self, source: KeyedInput) -> int | None:
        """See `KeyedInputPlan`."""
        return self.time_column


class PlannedOnce:
    """
    The partial results of an aggregation, by a plan that Spark makes once.

    A later micro-batch takes that plan with other rows at its leaf, if they have the same columns
    and are as little partitioned.

    Thread: Spark's thread of the query.
    """

    def __init__(
        self, frame: DataFrame, aggregation: PreAggregation, groups: KeyGroupRange
    ) -> None:
        jvm = jvm_of(frame.sparkSession)
        column = jvm.org.apache.spark.sql.functions
        to_seq = jvm.PythonUtils.toSeq
        self._keys = to_seq([column.col(name) for name in aggregation.keys])
        first, *others = (column.expr(text) for text in aggregation.results())
        self._first = first
        self._others = to_seq(others)
        self._columns = to_seq(aggregation.task_columns(groups))
        self._copies = PlanCopies(jvm)
        self._kept_plan: KeptPlan | None = None
        self._schema: JavaObject | None = None

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return the results of a micro-batch, with one partition per task."""
        session = frame.sparkSession
        plan = None if self._kept_plan is None else self._kept_plan.over(frame)
        if plan is None:
            planned = plan = self._planned(frame)
            self._kept_plan = attempt(
                Trick.KEPT_PLANS, session, lambda: KeptPlan.of(planned, frame, self._copies)
            )
        self._begin(plan)
        rows = session._jsparkSession.internalCreateDataFrame(plan.execute(), self._schema, False)
        return DataFrame(rows, session)

    def _planned(self, frame: DataFrame) -> JavaObject:
        """Return Spark's plan for the results of a micro-batch."""
        grouped = self._rows(frame).groupBy(self._keys).agg(self._first, self._others)
        results = grouped.selectExpr(self._columns)
        plan = executed_plan(frame.sparkSession, results)
        self._schema = results.schema()
        return plan

    def _rows(self, frame: DataFrame) -> JavaObject:
        """Return the rows to aggregate."""
        return frame._jdf

    def _begin(self, plan: JavaObject) -> None:
        """Begin with what can run while the driver and the sink plan what reads the results."""


class WithoutShuffle(PlannedOnce):
    """An aggregation in one task, which reads all rows."""

    def _rows(self, frame: DataFrame) -> JavaObject:
        return frame._jdf.coalesce(1)


class OneShuffle(PlannedOnce):
    """An aggregation with a single shuffle, for one number of tasks."""

    def __init__(
        self, frame: DataFrame, aggregation: PreAggregation, groups: KeyGroupRange, tasks: int
    ) -> None:
        super().__init__(frame, aggregation, groups)
        jvm = jvm_of(frame.sparkSession)
        self._key_count = len(aggregation.keys)
        partitioning = jvm.org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
        # Spark's hash partitioning puts a row into the partition of its key's task by this number.
        number = hashed_to(tasks, task_of(aggregation.key_group(groups), groups, tasks))
        task = _over_positions(frame, aggregation.keys, number)
        self._partitioning = partitioning(jvm.PythonUtils.toSeq([task]), tasks)

    def _planned(self, frame: DataFrame) -> JavaObject:
        plan = super()._planned(frame)
        shuffle = _shuffle_of_aggregation(plan)
        if shuffle is None:
            raise Unfit("the plan of the aggregation does not contain a shuffle")
        # The partial results begin with the keys: `_partitioning` finds them by position.
        partials = shuffle.children().head().output()
        by = shuffle.outputPartitioning().expressions()
        if by.size() != self._key_count or not by.equals(partials.take(self._key_count)):
            raise Unfit("the plan of the aggregation does not shuffle the rows by their keys")
        to_tasks = self._copies.with_argument(shuffle, 0, self._partitioning)
        return self._copies.with_node(plan, shuffle, to_tasks)

    def _begin(self, plan: JavaObject) -> None:
        begin_shuffle(_shuffle_of(plan))


def _over_positions(frame: DataFrame, keys: Sequence[str], text: str) -> JavaObject:
    """Convert SQL over *keys* to an expression that accesses keys by position in a row."""
    session = frame.sparkSession
    jvm = jvm_of(frame.sparkSession)
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    no_rows = session.sparkContext._jsc.emptyRDD().rdd()
    schema = frame._jdf.selectExpr(jvm.PythonUtils.toSeq(list(keys))).schema()
    empty = session._jsparkSession.internalCreateDataFrame(no_rows, schema, False)
    plan = empty.selectExpr(jvm.PythonUtils.toSeq([text])).queryExecution().optimizedPlan()
    columns = getattr(expressions, "package$AttributeSeq")(plan.children().head().output())
    value = plan.projectList().head().child()
    return expressions.BindReferences.bindReference(value, columns, False)


def _shuffle_of_aggregation(plan: JavaObject) -> JavaObject | None:
    """Return the hash shuffle between partial and final results, or None for other plans."""
    node = plan
    name = _name(plan)
    final = ""
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
    """Return the shuffle in a plan that comes before its final results."""
    while node.nodeName() != SHUFFLE:
        node = node.children().head()
    return node


def _name(node: JavaObject) -> str:
    """Return the name of a plan node without its stage number."""
    name: str = node.nodeName()
    return name.partition(" (")[0]


class KeptPlan:
    """
    A physical plan over one micro-batch's rows that later micro-batches can reuse.

    Spark takes longer to plan an aggregation than to copy its plan.

    Source: RDDScanExec, LogicalRDD (Spark).
    """

    def __init__(self, plan: JavaObject, leaf: JavaObject, copies: PlanCopies) -> None:
        self._plan = plan
        self._leaf = leaf
        self._copies = copies
        self._scanned = [getattr(leaf, name)() for name in _SCANNED]

    @classmethod
    def of(cls, plan: JavaObject, rows: DataFrame, copies: PlanCopies) -> KeptPlan | None:
        """Keep a plan over *rows*, but not the rows; None unless it reads exactly one RDD."""
        leaf = plan
        while leaf.children().size() == 1:
            leaf = leaf.children().head()
        if leaf.nodeName() != _SCAN or _scanned_by(rows) is None:
            return None
        nothing = rows.sparkSession.sparkContext._jsc.emptyRDD().rdd()
        emptied = copies.with_argument(leaf, 1, nothing)
        return cls(copies.with_node(plan, leaf, emptied), emptied, copies)

    def over(self, rows: DataFrame) -> JavaObject | None:
        """Return the plan over new rows, or None if their columns or partitions differ."""
        scanned = _scanned_by(rows)
        if scanned is None:
            return None
        if any(
            not getattr(scanned, name)().equals(fact)
            for name, fact in zip(_SCANNED, self._scanned, strict=True)
        ):
            return None
        leaf = self._copies.with_argument(self._leaf, 1, scanned.rdd())
        return self._copies.with_node(self._plan, self._leaf, leaf)


def _scanned_by(rows: DataFrame) -> JavaObject | None:
    """Return the RDD of a frame as a logical plan node, or None if the frame is not an RDD."""
    node = rows._jdf.queryExecution().analyzed()
    return node if node.getClass().getSimpleName() == _LOGICAL else None
