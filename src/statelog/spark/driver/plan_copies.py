"""Copy nodes of Spark's plans, with another argument each."""

from __future__ import annotations

from statelog.spark.rows.jvm import JavaObject


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
