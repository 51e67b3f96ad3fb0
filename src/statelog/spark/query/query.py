"""One stateful query: everything that does not change while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from statelog.core.task_count import TaskBounds
from statelog.spark.query.operator_definition import OperatorDefinition
from statelog.spark.query.settings import QuerySettings


@dataclass(frozen=True, slots=True)
class Query:
    """
    A query that is about to start, as the driver needs it.

    Args:
        definition: The operator.
        settings: Its settings, from session, code and writer.
        location: Root of the state location, as a URL.
        task_bounds: Fewest and most tasks of a micro-batch.
    """

    definition: OperatorDefinition
    settings: QuerySettings
    location: str
    task_bounds: TaskBounds
