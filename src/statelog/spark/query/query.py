"""
One stateful query: everything that does not change while it runs.

A query has one operator, or several that follow each other.  Each operator has *max_parallelism* key
groups of its own: operator i of the query has the key groups i x max_parallelism and up.  So one
checkpoint holds the state of all of them, by key group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statelog.core.task_count import TaskBounds
from statelog.model import KeyGroupRange
from statelog.spark.query.operator_definition import OperatorDefinition
from statelog.spark.query.settings import QuerySettings


@dataclass(frozen=True, slots=True)
class Query:
    """
    A query that is about to start, as the driver needs it.

    Args:
        operators: The operators, in the order of the data; at least one.
        settings: Its settings, from session, code and writer.
        location: Root of the state location, as a URL.
        task_bounds: Fewest and most tasks of a micro-batch.
    """

    operators: tuple[OperatorDefinition, ...]
    settings: QuerySettings
    location: str
    task_bounds: TaskBounds

    @property
    def source(self) -> OperatorDefinition:
        """The first operator, whose input is that of the query."""
        return self.operators[0]

    @property
    def output(self) -> OperatorDefinition:
        """The last operator, whose rows are delivered."""
        return self.operators[-1]

    @property
    def key_groups(self) -> int:
        """Number of key groups of all operators."""
        return sum(one.max_parallelism for one in self.operators)

    @property
    def time_mode(self) -> str:
        """The time mode of all operators with timers; "none" without one."""
        return time_mode_of(self.operators)

    def key_groups_of(self, operator: int) -> KeyGroupRange:
        """Return the key groups of the operator with this index."""
        first = sum(one.max_parallelism for one in self.operators[:operator])
        return KeyGroupRange(first, first + self.operators[operator].max_parallelism - 1)


def time_mode_of(operators: Sequence[OperatorDefinition]) -> str:
    """Return the time mode of those of *operators* that have timers; "none" without one."""
    return next((one.time_mode for one in operators if one.time_mode != "none"), "none")
