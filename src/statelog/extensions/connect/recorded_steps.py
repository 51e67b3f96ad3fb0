"""
Record the steps after a stateful operator on Spark Connect, and apply them in the worker.

As in a classic session, each call is applied at once to a shape, so that the server computes the
resulting schema and rejects what it cannot resolve.  The shape is an empty batch frame here,
because a Connect client cannot make an empty stream of any schema.

The user's columns (`out.total`) refer to the shape by the id of its plan.  In the worker the frame
after each step gets the id of the shape after it, so that the columns refer to that frame.

Facts about an input come from the text of `explain`, which is all that a Connect client has of a
plan: a temporary view or a SQL text is one node in what it sends.  The server's analyzed plan has
every node by its name, with `~` in front of streaming ones.
Source: PySpark's connect/plan.py; Spark's ColumnResolutionHelper (plan ids) and
TreeNode.generateTreeString.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
from pyspark.sql.connect.plan import LogicalPlan
from pyspark.sql.types import StructType

from statelog.spark.query.input_plan import InputPlan, facts_of
from statelog.spark.stream.query_progress import Observing, observed
from statelog.spark.stream.recorded_plan import OBSERVE, STATEFUL, RecordedPlan, needs_state

_SECTION: Final = re.compile(r"^== (.*) ==$")
_ANALYZED: Final = "Analyzed Logical Plan"
_NODE: Final = re.compile(r"((?:[: ] {2})*(?:[:+]- )?)(~?)([A-Z]\w*)")
"""A node of a printed plan, such as `:  +- ~Project`: the lines of the tree, the mark, the name."""
_INDENT: Final = 3
"""Characters that a level of the tree takes."""

_OF_EXPRESSIONS: Final = frozenset(
    {"select", "selectExpr", "withColumn", "withColumns", "withMetadata"}
)
"""Steps whose expressions may hide an aggregation."""
_NEEDS_ROWS: Final = {**STATEFUL, "Window": "a window function"}
_ID: Final = "_root_plan_id"
"""The attribute of a plan with its id; before 4.1 it is `_plan_id`."""


class _Node(NamedTuple):
    depth: int
    is_marked: bool
    name: str


def input_plan(frame: DataFrame) -> InputPlan:
    """Derive the facts about a frame's plan, with two calls to the server."""
    return facts_in(_analyzed(frame)) if frame.isStreaming else InputPlan()


def node_names(frame: DataFrame) -> Counter[str]:
    """Count the nodes in a frame's plan by name, with one call to the server."""
    return Counter(node.name for node in _nodes(_analyzed(frame)))


def facts_in(text: str) -> InputPlan:
    """Derive the facts from the analyzed plan of a stream, which has one node per line."""
    return facts_of(_streaming(list(_nodes(text))))


def _analyzed(frame: Any) -> str:
    """Return the analyzed plan of a Connect frame, without the line that lists its columns."""
    lines: list[str] = []
    section = ""
    for line in frame._explain_string(extended=True).split("\n"):
        title = _SECTION.match(line)
        if title is not None:
            section = title.group(1)
        elif section == _ANALYZED:
            lines.append(line)
    return "\n".join(lines[1:])


def _nodes(text: str) -> Iterator[_Node]:
    for line in text.split("\n"):
        match = _NODE.match(line)
        if match is not None:
            yield _Node(len(match.group(1)) // _INDENT, bool(match.group(2)), match.group(3))


def _streaming(nodes: list[_Node]) -> Iterator[tuple[str, int]]:
    """Yield the streaming nodes, each with its number of streaming children."""
    children: Counter[int] = Counter()
    # From the end, so that the children of a node come before it.
    for node in reversed(nodes):
        below = children.pop(node.depth + 1, 0)
        if node.is_marked or below:  # a view has no mark
            children[node.depth] += 1
            yield node.name, below


@dataclass(frozen=True, slots=True)
class ConnectPlan(RecordedPlan):
    """Records the steps applied to the output of a stateful operator on Spark Connect."""

    @classmethod
    def of(cls, session: SparkSession, schema: StructType) -> Self:
        """Return a plan without any steps, for an output with *schema*."""
        return cls(session.createDataFrame([], schema))

    def _check(self, method: str, shape: DataFrame) -> None:
        """Have the server resolve a step; reject it if it needs state."""
        _ = shape.schema  # the server resolves a step only when it is asked
        if method in _OF_EXPRESSIONS:
            for name in node_names(shape) - node_names(self.shape):
                if name in _NEEDS_ROWS:
                    raise needs_state(method, _NEEDS_ROWS[name])

    def apply(self, frame: DataFrame, observations: Observing | None = None) -> DataFrame:
        """Apply the steps to *frame*, the output of a micro-batch; see `RecordedPlan.apply`."""
        return self.for_worker().apply(frame, observations)

    def for_worker(self) -> RecordedSteps:
        """Convert the steps to the form that the worker needs."""
        return RecordedSteps(
            _plan_id(self.start),
            tuple(
                (step.method, step.args, step.kwargs, _plan_id(step.shape)) for step in self.steps
            ),
        )


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """
    Recorded steps, without the client's schemas.

    Each has method, arguments, keyword arguments, and the id of the shape's plan after it.
    """

    start: int
    steps: tuple[tuple[str, tuple[object, ...], dict[str, object], int], ...]

    def apply(self, frame: DataFrame, observations: Observing | None = None) -> DataFrame:
        """Apply the steps to *frame*, the output of a micro-batch; see `RecordedPlan.apply`."""
        if not self.steps:
            return frame
        session = frame.sparkSession
        frame = _with_id(frame.select("*"), self.start)
        for method, args, kwargs, plan_id in self.steps:
            here = [of_session(value, session) for value in args]
            named = {name: of_session(value, session) for name, value in kwargs.items()}
            if method == OBSERVE:
                after = observed(frame, here, observations)
            else:
                after = getattr(frame, method)(*here, **named)
            frame = _with_id(after, plan_id)
        return frame


def of_session(value: Any, session: Any) -> Any:
    """
    Move a Connect frame to *session*; return any other value unchanged.

    A micro-batch has a copy of the user's session from 4.3 on, and Spark combines frames of one
    session only.
    """
    return ConnectFrame(value._plan, session) if isinstance(value, ConnectFrame) else value


def next_plan_id() -> int:
    """Return the id that the next plan in this process will have."""
    return LogicalPlan._nextPlanId


def begin_plan_ids_at(plan_id: int) -> None:
    """Number new plans in this process from *plan_id* or higher."""
    LogicalPlan._nextPlanId = max(LogicalPlan._nextPlanId, plan_id)


def _plan_id(frame: Any) -> int:
    plan_id: int = frame._plan._plan_id
    return plan_id


def _with_id(frame: DataFrame, plan_id: int) -> DataFrame:
    """Change the plan id of a newly created frame, and return the frame."""
    plan = frame._plan
    setattr(plan, _ID if hasattr(plan, _ID) else "_plan_id", plan_id)
    return frame
