"""
Read facts from the plan of an input, from the text of `explain`.

A Connect client only has this text of a plan: a temporary view or a SQL text is one node in what it
sends.  The server's analyzed plan has every node by its name, with `~` in front of streaming ones.
Source: Spark's TreeNode.generateTreeString.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from statelog.spark.query.input_plan import InputPlan, facts_of

_SECTION: Final = re.compile(r"^== (.*) ==$")
_ANALYZED: Final = "Analyzed Logical Plan"
_NODE: Final = re.compile(r"((?:[: ] {2})*(?:[:+]- )?)(~?)([A-Z]\w*)")
_INDENT: Final = 3


class _Node(NamedTuple):
    depth: int
    is_marked: bool
    name: str


def input_plan(frame: DataFrame) -> InputPlan:
    """Return the facts from the plan of a frame, by two calls of the server."""
    return facts_in(_analyzed(frame)) if frame.isStreaming else InputPlan()


def node_names(frame: DataFrame) -> Counter[str]:
    """Return how often each node is in the plan of a frame, by a call of the server."""
    return Counter(node.name for node in _nodes(_analyzed(frame)))


def facts_in(text: str) -> InputPlan:
    """Return the facts from the analyzed plan of a stream, one node in a line."""
    return facts_of(_streaming(list(_nodes(text))))


def _analyzed(frame: Any) -> str:
    """Return the analyzed plan of a Connect frame, without the line with its columns."""
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
    """Yield the streaming nodes, each with the number of its streaming children."""
    children: Counter[int] = Counter()
    # From the end, so that the children of a node come before it.
    for node in reversed(nodes):
        below = children.pop(node.depth + 1, 0)
        if node.is_marked or below:  # a view has no mark
            children[node.depth] += 1
            yield node.name, below
