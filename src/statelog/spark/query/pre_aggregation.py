"""
The aggregation of a micro-batch's rows in Spark, before they are sent to the tasks.

It is a value of names and SQL text, because a server of Spark Connect gets it pickled.
"""

from __future__ import annotations

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

    def with_task(self, groups: KeyGroupRange, tasks: int) -> list[str]:
        """
        Return SQL of the input's columns, and of a value whose hash is the number of a row's task.

        Args:
            groups: The key groups of the operator.
            tasks: Number of tasks.
        """
        task = hashed_to(tasks, task_of(self._key_group(groups), groups, tasks))
        return ["*", f"{task} AS {TASK_COLUMN}"]

    def by(self) -> list[str]:
        """Return the columns by which rows are grouped: that value, then the keys."""
        return [TASK_COLUMN, *self.keys]

    def results(self) -> list[str]:
        """Return SQL of the partial results."""
        return [f"{text} AS {name}" for text, name in self.partials]

    def with_key_group(self, groups: KeyGroupRange) -> list[str]:
        """Return SQL of the columns of a task's input, made of what is grouped."""
        names = (name for _, name in self.partials)
        return [f"{self._key_group(groups)} AS {INPUT_KEY_GROUP_COLUMN}", *self.keys, *names]

    def _key_group(self, groups: KeyGroupRange) -> str:
        group = f"cast(pmod(xxhash64({', '.join(self.keys)}), {len(groups)}) as int)"
        return f"{group} + {groups.start}" if groups.start else group

    def grouped(self, frame: DataFrame, groups: KeyGroupRange, tasks: int) -> DataFrame:
        """
        Return the partial results by key with their key group, in any order.

        Args:
            frame: The input of the operator in one micro-batch.
            groups: The key groups of the operator.
            tasks: Number of tasks.
        """
        rows = frame.selectExpr(*self.with_task(groups, tasks)).groupBy(*self.by())
        results = rows.agg(*(expr(text) for text in self.results()))
        return results.selectExpr(*self.with_key_group(groups))
