"""
The aggregation of a micro-batch's rows in Spark, before they are sent to the tasks.

It is a value of names and SQL text, because a server of Spark Connect gets it pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from statelog.model import KeyGroupRange
from statelog.spark.query.keyed_frame import task_of
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN
from statelog.spark.rows.spark_versions import hashed_to

TASK_COLUMN = "__task"


@dataclass(frozen=True, slots=True)
class PreAggregation:
    """
    The partial results of the rows of one micro-batch, one row for each key.

    Args:
        keys: Names of the key columns in the input.
        partials: SQL over the input's columns, and the names of the results.
    """

    keys: tuple[str, ...]
    partials: tuple[tuple[str, str], ...]

    def grouped(self, frame: DataFrame, groups: KeyGroupRange, tasks: int) -> DataFrame:
        """
        Return the partial results by key, without an order.

        The columns are a value whose hash is the task's number, the key group, the keys and the results.

        Args:
            frame: The input of the operator in one micro-batch.
            groups: The key groups of the operator.
            tasks: Number of tasks.
        """
        group = f"cast(pmod(xxhash64({', '.join(self.keys)}), {len(groups)}) as int)"
        if groups.start:
            group = f"{group} + {groups.start}"
        task = hashed_to(tasks, task_of(group, groups, tasks))
        by = frame.selectExpr("*", f"{task} AS {TASK_COLUMN}").groupBy(TASK_COLUMN, *self.keys)
        parts = by.agg(*(expr(text).alias(name) for text, name in self.partials))
        names = [name for _, name in self.partials]
        return parts.selectExpr(
            TASK_COLUMN, f"{group} AS {INPUT_KEY_GROUP_COLUMN}", *self.keys, *names
        )

    def columns(self) -> Sequence[str]:
        """Return the columns of a task's input."""
        return [INPUT_KEY_GROUP_COLUMN, *self.keys, *(name for _, name in self.partials)]
