"""
Direct delivery: the sink evaluates the tasks in one Spark job.

The driver commits after it.

The sink gets the rows before the commit, so a batch that is repeated delivers rows again: at least
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import BatchRecord
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.runtime.fail_points import fail_point
from statelog.spark.driver.delivery.protocol import CommittedRows
from statelog.spark.driver.task_runner import columns_of, one_per_task
from statelog.spark.jvm.arrow_data import ArrowBatches
from statelog.spark.jvm.python_job import PythonJobs
from statelog.spark.query.delivery import Sink
from statelog.spark.query.query import Query
from statelog.spark.worker.protocol import TaskAck, TaskSpec
from statelog.spark.worker.task import direct_task


class _AckParam(AccumulatorParam[list[TaskAck]]):
    """An accumulator for the answers of tasks."""

    def zero(self, value: list[TaskAck]) -> list[TaskAck]:
        """Return the empty list."""
        return []

    def addInPlace(self, value1: list[TaskAck], value2: list[TaskAck]) -> list[TaskAck]:
        """Return both lists as one."""
        value1.extend(value2)
        return value1


class DirectDelivery:
    """Gives the sink a frame whose evaluation runs the tasks."""

    is_staged = False

    def __init__(self, query: Query, sink: Sink) -> None:
        self._python = PythonJobs(query.output.output)
        self._batches = ArrowBatches()
        self._sink = sink

    def run(self, partitioned: DataFrame, spec: TaskSpec) -> list[TaskAck]:
        """Call the sink, which evaluates the tasks, and return their answers."""
        answers = partitioned.sparkSession.sparkContext.accumulator([], _AckParam())
        task, columns = partial(direct_task, spec, answers), columns_of(spec)
        try:
            output = self._python.frame(partitioned, task, columns, tasks=len(spec.ranges))
            with self._batches.not_measured(partitioned, columns):
                self._sink(output, spec.context.batch_id)
                fail_point("after-sink")
                acks = one_per_task(answers.value)
                if len(acks) < len(spec.ranges):  # the sink left rows; the state needs them
                    output.write.format("noop").mode("append").save()
                    acks = one_per_task(answers.value)
        finally:
            answers.value = []  # PySpark keeps every accumulator with its value for ever
        return acks

    def committed_rows(self, acks: Sequence[TaskAck]) -> CommittedRows:
        """Return no rows: the sink has them."""
        return CommittedRows()

    def deliver(self, frame: DataFrame, record: BatchRecord, acks: Sequence[TaskAck]) -> None:
        """Do nothing: the sink has the rows."""

    def deliver_again(
        self, frame: DataFrame, record: BatchRecord, base: CompletedCheckpoint
    ) -> None:
        """Do nothing: the sink had returned before the commit."""
