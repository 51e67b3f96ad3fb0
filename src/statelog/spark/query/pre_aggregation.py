"""
Aggregate a micro-batch's rows in Spark, before they are sent to the tasks.

`PreAggregation` is a value of names and SQL text, because a server of Spark Connect gets it pickled.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from statelog.model import KeyGroupRange
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.jvm.one_shuffle import AggregationSql, OneShuffle
from statelog.spark.jvm.tricks import Trick, attempt
from statelog.spark.query.keyed_frame import by_task, task_of
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN
from statelog.spark.rows.spark_versions import hashed_to


@dataclass(frozen=True, slots=True)
class PreAggregation:
    """The partial results of a micro-batch by key: key columns, and SQL with the names of results."""

    keys: tuple[str, ...]
    partials: tuple[tuple[str, str], ...]

    def sql(self, groups: KeyGroupRange, tasks: int) -> AggregationSql:
        """Return the aggregation as SQL, for the tasks of an operator with these key groups."""
        return AggregationSql(
            keys=self.keys,
            results=self._results(),
            columns=self._with_key_group(groups),
            task=hashed_to(tasks, task_of(self._key_group(groups), groups, tasks)),
            tasks=tasks,
        )

    def grouped(self, frame: DataFrame, groups: KeyGroupRange) -> DataFrame:
        """Return the partial results of a micro-batch by key with their key group, in any order."""
        results = frame.groupBy(*self.keys).agg(*map(expr, self._results()))
        return results.selectExpr(*self._with_key_group(groups))

    def _results(self) -> list[str]:
        return [f"{text} AS {name}" for text, name in self.partials]

    def _with_key_group(self, groups: KeyGroupRange) -> list[str]:
        """Return SQL of the columns of a task's input, made of what is grouped."""
        names = (name for _, name in self.partials)
        return [f"{self._key_group(groups)} AS {INPUT_KEY_GROUP_COLUMN}", *self.keys, *names]

    def _key_group(self, groups: KeyGroupRange) -> str:
        group = f"cast(pmod(xxhash64({', '.join(self.keys)}), {len(groups)}) as int)"
        return f"{group} + {groups.start}" if groups.start else group


class PreAggregator:
    """
    Aggregates the micro-batches of one operator.

    Thread: Spark's thread of the query.
    """

    def __init__(self, aggregation: PreAggregation, groups: KeyGroupRange) -> None:
        self._aggregation = aggregation
        self._groups = groups
        self._by_tasks: dict[int, OneShuffle] = {}

    def partitioned(self, frame: DataFrame, tasks: int, *, is_small: bool = False) -> DataFrame:
        """
        Return the partial results of a micro-batch, with one partition for each task.

        *is_small*: whether one task may read and aggregate all of the input too, without a shuffle.
        """
        if tasks == 1 and (is_small or is_connect(frame)):
            return self._aggregation.grouped(frame.coalesce(1), self._groups)
        rows = self._with_one_shuffle(frame, tasks)
        if rows is not None:
            return rows
        grouped = self._aggregation.grouped(frame, self._groups)
        return by_task(grouped, tasks, self._groups)

    def _with_one_shuffle(self, frame: DataFrame, tasks: int) -> DataFrame | None:
        """Return the partial results by task; None where Spark has to shuffle them twice."""

        def results() -> DataFrame:
            if tasks not in self._by_tasks:
                sql = self._aggregation.sql(self._groups, tasks)
                self._by_tasks[tasks] = OneShuffle(frame, sql)
            return self._by_tasks[tasks].apply(frame)

        return attempt(Trick.ONE_SHUFFLE, frame.sparkSession, results)
