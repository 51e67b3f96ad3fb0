"""Read Spark's physical plans, and copy their nodes."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from statelog.spark.query.session import with_setting
from statelog.spark.rows.jvm import JavaObject

SHUFFLE: Final = "Exchange"
"""The name of the node of a shuffle."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def executed_plan(session: SparkSession, frame: JavaObject) -> JavaObject:
    """
    Return the plan of a frame of the JVM, without adaptive execution.

    That would hide the shuffle, decide on the number of partitions, and run the shuffle, and wait for it,
    where the rows are asked for as an RDD.
    """
    with with_setting(session, _ADAPTIVE, "false"):
        return frame.queryExecution().executedPlan()


class PlanCopies:
    """
    Makes copies of nodes; how many arguments a node has differs by version of Spark.

    Args:
        jvm: The JVM of the nodes.

    Source: TreeNode.makeCopy (Spark).
    """

    def __init__(self, jvm: JavaObject) -> None:
        self._new_array = jvm.java.lang.reflect.Array.newInstance
        self._object = jvm.java.lang.Class.forName("java.lang.Object")

    def arguments(self, node: JavaObject) -> JavaObject:
        """Return the arguments of a node as an array of the JVM, for `makeCopy` of this node."""
        arguments = self._new_array(self._object, node.productArity())
        node.productIterator().copyToArray(arguments)
        return arguments
