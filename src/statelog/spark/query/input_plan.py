"""What the plan of an input says: whether it has a watermark, keeps state, how many sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

_STATELESS = frozenset(
    {
        "DeserializeToObject",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "Join",
        "MapElements",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "SerializeFromObject",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "TypedFilter",
        "Union",
        "View",
    }
)
"""Nodes that give rows only for rows of the same micro-batch; a join only with a batch frame.
`MapInArrow` and the like are not among them: their functions may yield without input."""


@dataclass(frozen=True, slots=True)
class InputPlan:
    """
    What the plan of an input says.

    Args:
        has_watermark: Whether `withWatermark` stands in it.
        is_stateless: Whether a micro-batch without new input surely gives no rows, and none of
            Spark's own state goes forward with it.
        sources: Number of streaming sources, as Spark's offset log counts them.
    """

    has_watermark: bool = False
    is_stateless: bool = False
    sources: int = 1


def input_plan(frame: DataFrame) -> InputPlan:
    """Return what the plan of a streaming *frame* says."""
    has_watermark, is_stateless, sources = False, True, 0
    plan: Any = frame._jdf.queryExecution().analyzed()
    for node, children in _streaming_nodes(plan):
        name = node.nodeName()
        has_watermark |= name == "EventTimeWatermark"
        is_stateless &= name in _STATELESS and (name != "Join" or children < 2)
        sources += children == 0
    return InputPlan(has_watermark, is_stateless, sources)


def _streaming_nodes(plan: Any) -> Iterator[tuple[Any, int]]:
    """Yield the nodes that stream, each with the number of its children that stream."""
    children = plan.children()
    nodes = [children.apply(at) for at in range(children.size())]
    streaming = [node for node in nodes if node.isStreaming()]
    yield plan, len(streaming)
    for node in streaming:
        yield from _streaming_nodes(node)
