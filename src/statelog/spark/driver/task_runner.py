"""Collect the acknowledgements of the tasks."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterable, Iterator
from functools import partial

from pyspark.sql import DataFrame

from statelog.spark.jvm.arrow_data import ArrowBatches
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.jvm.python_job import PythonJobs
from statelog.spark.worker.protocol import TaskAck, TaskSpec
from statelog.spark.worker.task import staged_task
from statelog.spark.worker.task_input import changed_partitions


class TaskRunner:
    """
    Runs the tasks of one query whose answers have their rows.

    Thread: Spark's thread of the query.
    """

    def __init__(self) -> None:
        self._python = PythonJobs("ack binary")
        self._batches = ArrowBatches()

    def collect_acks(self, rows: DataFrame, spec: TaskSpec) -> list[TaskAck]:
        """Run all tasks of a staged micro-batch, and return their answers."""
        columns = columns_of(spec)
        frame = self._python.frame(
            rows, partial(staged_task, spec), columns, tasks=len(spec.ranges)
        )
        with self._batches.not_measured(rows, columns):
            return one_per_task(pickle.loads(data) for data in _collected(frame))


def columns_of(spec: TaskSpec) -> Hashable:
    """Return what tells inputs of other columns apart, within one query."""
    return spec.state.operator, spec.rows.is_read, spec.rows.initial is None


def _collected(frame: DataFrame) -> Iterator[bytes]:
    """Yield the values of the one column of a frame."""
    if is_connect(frame):
        yield from frame.toArrow().column(0).to_pylist()
        return
    # What `toArrow` does, without asking for a schema and settings that are known.
    for batch in frame._collect_as_arrow():  # type: ignore[operator]
        yield from batch.column(0).to_pylist()


def one_per_task(acks: Iterable[TaskAck]) -> list[TaskAck]:
    """
    Return one answer per task, the last.

    A frame that is evaluated twice, or a stage that runs again, gives several answers of a task.
    Each of them is complete, and any one may be committed.

    A partition without rows does not name its task: it takes the number that Spark shows.  So a
    task of Spark that answers twice has run two partitions under one number.
    """
    by_partition: dict[int, TaskAck] = {}
    spark_tasks: set[int] = set()
    for ack in acks:
        place = ack.place
        is_merged = place.spark_task in spark_tasks
        before = by_partition.setdefault(place.partition, ack)
        if is_merged or before.count("rows") != ack.count("rows"):
            raise changed_partitions()
        by_partition[place.partition] = ack
        if place.spark_task >= 0:
            spark_tasks.add(place.spark_task)
    return [by_partition[partition] for partition in sorted(by_partition)]
