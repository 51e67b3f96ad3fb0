"""
Aggregate a micro-batch's rows in Spark, before they are sent to the tasks.

`PreAggregation` is a value of names and SQL text, because a server of Spark Connect gets it pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from statelog.extensions.columns.aggregation.one_shuffle import AggregationSql, OneShuffle
from statelog.model import KeyGroupRange
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.jvm.tricks import Trick, attempt
from statelog.spark.query.input_plan import KeyedInput
from statelog.spark.query.keyed_frame import ColumnsToRead, Grouping, KeyedFrame, by_task, task_of
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN
from statelog.spark.rows.spark_versions import hashed_to

PARTIAL_WORK_MS: Final = 20.0
"""Work that pays for one more task, less than `TASK_WORK_MS`: the shuffle is there with one task too, and
Spark's own work on the results is shared as well.  Measured with `bench/peers.py` on two cores: one
task and two took the same time at 300,000 events, with some 18 ms of work."""


@dataclass(frozen=True, slots=True)
class PreAggregation:
    """
    The partial results of a micro-batch by key: key columns, and SQL with the names of results.

    It is an `InputReduction`.
    """

    call: ClassVar[str] = "aggregate"
    work_ms: ClassVar[float] = PARTIAL_WORK_MS

    keys: tuple[str, ...]
    partials: tuple[tuple[str, str], ...]

    def reducer(self, groups: KeyGroupRange) -> PreAggregator:
        """Return what aggregates the micro-batches of the operator with these key groups."""
        return PreAggregator(self, groups)

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
        """See `InputReducer`."""
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


@dataclass(frozen=True, slots=True)
class PreAggregated:
    """
    Spark aggregates the micro-batches before the tasks get them.

    Args:
        frame: What flows into the aggregation, by position what flows out of it; its frame does not
            have key groups yet.
        reduction: What is aggregated.
        time_column: Position of the key with the event time in the tasks' input, or None.
    """

    frame: KeyedFrame
    reduction: PreAggregation
    time_column: int | None

    def keyed(
        self, grouping: Callable[[], Grouping], key_groups: KeyGroupRange, to_read: ColumnsToRead
    ) -> KeyedFrame:
        """See `KeyedInputPlan`; Spark itself reads what it aggregates only."""
        return self.frame

    def event_time(self, source: KeyedInput) -> int | None:
        """See `KeyedInputPlan`."""
        return self.time_column
