"""Collect the acknowledgements of the tasks."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from functools import partial

from pyspark.sql import DataFrame

from statelog.spark.worker.protocol import TaskAck, TaskSpec
from statelog.spark.worker.task_entry import staged_task
from statelog.spark.worker.task_input import changed_partitions


def collect_acks(frame: DataFrame, spec: TaskSpec) -> list[TaskAck]:
    """Run all tasks of a staged micro-batch, and return their answers."""
    table = frame.mapInArrow(partial(staged_task, spec), "ack binary").toArrow()
    return one_per_task(pickle.loads(data) for data in table.column("ack").to_pylist())


def one_per_task(acks: Iterable[TaskAck]) -> list[TaskAck]:
    """
    Return one answer per task, the last.

    A frame that is evaluated twice, or a stage that runs again, gives several answers of a task.
    Each of them is complete, and any one may be committed.

    Raises:
        UsageError: The answers count different rows: the sink has changed the partitions.
    """
    by_partition: dict[int, TaskAck] = {}
    for ack in acks:
        if by_partition.setdefault(ack.partition, ack).rows != ack.rows:
            raise changed_partitions()
        by_partition[ack.partition] = ack
    return [by_partition[partition] for partition in sorted(by_partition)]
