"""The functions that Spark calls with a partition, one for each delivery."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.accumulators import Accumulator

from statelog.spark.worker.connection import without_delay
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.protocol import TaskAck, TaskSpec
from statelog.spark.worker.task import run_task


def staged_task(spec: TaskSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task whose only result is its answer."""
    acks: list[TaskAck] = []
    with reported_to_driver(spec.state.location):
        for _ in run_task(spec, without_delay(batches), acks.append):
            pass
    yield pa.RecordBatch.from_pydict({"ack": [pickle.dumps(ack) for ack in acks]})


def direct_task(
    spec: TaskSpec, acks: Accumulator[list[TaskAck]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """
    Run a task whose result is its output rows.

    Its answer is added to an accumulator.
    """
    with reported_to_driver(spec.state.location):
        yield from run_task(spec, without_delay(batches), lambda ack: acks.add([ack]))
