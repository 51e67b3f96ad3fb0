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

    def task(self, groups: KeyGroupRange, tasks: int) -> str:
        """
        Return SQL of a value that Spark's hash partitioning puts into the partition of a key's task.

        Args:
            groups: The key groups of the operator.
            tasks: Number of tasks.
        """
        return hashed_to(tasks, task_of(self._key_group(groups), groups, tasks))

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

    def grouped(self, frame: DataFrame, groups: KeyGroupRange) -> DataFrame:
        """
        Return the partial results by key with their key group, in any order.

        Args:
            frame: The input of the operator in one micro-batch.
            groups: The key groups of the operator.
        """
        results = frame.groupBy(*self.keys).agg(*(expr(text) for text in self.results()))
        return results.selectExpr(*self.with_key_group(groups))
