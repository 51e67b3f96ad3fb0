"""Read facts from the plan of an input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from statelog.spark.jvm.frames import streaming_nodes

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
"""Nodes whose output depends on rows of the same micro-batch only; of joins, those with a batch frame.
`MapInArrow` and the like are not included, because their functions may yield without input."""


@dataclass(frozen=True, slots=True)
class InputPlan:
    """
    Facts from the plan of an input.

    Args:
        has_watermark: Whether the input has a watermark.
        is_stateless: Whether a micro-batch without new input certainly yields no rows and changes
            no state of Spark's own operators.
        sources: Number of streaming sources, as Spark's offset log counts them.
    """

    has_watermark: bool = False
    is_stateless: bool = False
    sources: int = 1


def input_plan(frame: DataFrame) -> InputPlan:
    """Return the facts from the plan of a streaming *frame*."""
    return facts_of(streaming_nodes(frame))


def facts_of(nodes: Iterable[tuple[str, int]]) -> InputPlan:
    """
    Return the facts from the streaming nodes of a plan.

    Args:
        nodes: The name of each, and the number of its streaming children.
    """
    has_watermark, is_stateless, sources = False, True, 0
    for name, children in nodes:
        has_watermark |= name == "EventTimeWatermark"
        is_stateless &= name in _STATELESS and (name != "Join" or children < 2)
        sources += children == 0
    return InputPlan(has_watermark, is_stateless, sources)
