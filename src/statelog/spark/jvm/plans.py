"""Read Spark's physical plans, copy their nodes, and keep a plan for other rows."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from statelog.spark.jvm.gateway import JavaObject, with_setting

SHUFFLE: Final = "Exchange"
"""The name of the node of a shuffle."""

_SCAN: Final = "Scan ExistingRDD"
_LOGICAL: Final = "LogicalRDD"
_SCANNED: Final = ("output", "outputPartitioning", "outputOrdering")
"""What a scan knows of the rows besides their RDD; both nodes have these names."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def executed_plan(session: SparkSession, frame: JavaObject) -> JavaObject:
    """
    Return the plan of a frame of the JVM, without adaptive execution.

    That would hide the shuffle, decide on the number of partitions, and run the shuffle, and wait for it,
    where the rows are asked for as an RDD.
    """
    with with_setting(session, _ADAPTIVE, "false"):
        return frame.queryExecution().executedPlan()


def begin_shuffle(shuffle: JavaObject) -> None:
    """
    Run the job of a node of a shuffle, while the driver goes on.

    `submitShuffleJob` of Spark 4 leaves that to another thread.  If the job that reads the shuffle is
    submitted before that thread comes to it, Spark's scheduler fails and ends the SparkContext.  So the
    job is submitted here, in this thread.
    Source: ShuffleExchangeExec, DAGScheduler.handleMapStageSubmitted (Spark).
    """
    shuffle.mapOutputStatisticsFuture()


class PlanCopies:
    """
    Makes copies of nodes; how many arguments a node has differs by version of Spark.

    Source: TreeNode.makeCopy (Spark).
    """

    def __init__(self, jvm: JavaObject) -> None:
        self._new_array = jvm.java.lang.reflect.Array.newInstance
        self._object = jvm.java.lang.Class.forName("java.lang.Object")
        self._map = getattr(jvm.scala.collection.immutable, "Map$Map1")

    def arguments(self, node: JavaObject) -> JavaObject:
        """Return the arguments of a node as an array of the JVM, for `makeCopy` of this node."""
        arguments = self._new_array(self._object, node.productArity())
        node.productIterator().copyToArray(arguments)
        return arguments

    def with_argument(self, node: JavaObject, at: int, value: JavaObject) -> JavaObject:
        """Return a copy of a node with another argument at a position."""
        arguments = self.arguments(node)
        arguments[at] = value
        return node.makeCopy(arguments)

    def with_node(self, plan: JavaObject, node: JavaObject, other: JavaObject) -> JavaObject:
        """Return a copy of a plan in which *other* replaces *node*."""
        return plan.transformUp(self._map(node, other))  # a map is a partial function


class KeptPlan:
    """
    A physical plan over the rows of one micro-batch, for the rows of later ones.

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
        """Keep a plan over *rows* without them; None if it is over something else than one RDD."""
        leaf = plan
        while leaf.children().size() == 1:
            leaf = leaf.children().head()
        if leaf.nodeName() != _SCAN or _scanned_by(rows) is None:
            return None
        nothing = rows.sparkSession.sparkContext._jsc.emptyRDD().rdd()
        emptied = copies.with_argument(leaf, 1, nothing)
        return cls(copies.with_node(plan, leaf, emptied), emptied, copies)

    def over(self, rows: DataFrame) -> JavaObject | None:
        """Return the plan over other rows; None if they have other columns or other partitions."""
        scanned = _scanned_by(rows)
        if scanned is None:
            return None
        if any(
            not getattr(scanned, name)().equals(kept)
            for name, kept in zip(_SCANNED, self._scanned, strict=True)
        ):
            return None
        leaf = self._copies.with_argument(self._leaf, 1, scanned.rdd())
        return self._copies.with_node(self._plan, self._leaf, leaf)


def _scanned_by(rows: DataFrame) -> JavaObject | None:
    """Return the RDD that a frame is, as a node of a logical plan; None if it is anything else."""
    node = rows._jdf.queryExecution().analyzed()
    return node if node.getClass().getSimpleName() == _LOGICAL else None
