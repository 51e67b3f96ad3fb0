"""Estimate and measure the cost of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from statelog.core.task_count import BatchCost
from statelog.spark.worker.protocol import TaskAck

_UNKNOWN_BYTES = 1 << 50
"""Sources without a known size report the largest possible one."""

_WORK = ("input", "process", "output", "append", "stage")


def input_bytes(frame: DataFrame) -> int | None:
    """
    Return the size of a micro-batch's input by its plan.

    Returns:
        Bytes, or None where the source has no known size; of most sources only files have one.
    """
    plan = getattr(frame, "_jdf", None)
    if plan is None:
        return None
    try:
        # The input of a micro-batch is a leaf, whose size needs no optimizer.
        analyzed = plan.queryExecution().analyzed()
        size = int(analyzed.stats().sizeInBytes())
    except Py4JError:  # the size is optional: without it the query runs too
        return None
    return size if size < _UNKNOWN_BYTES else None


def batch_cost(acks: Sequence[TaskAck], size: int | None) -> BatchCost:
    """Return the cost of a micro-batch, from the answers of its tasks."""
    return BatchCost(
        tasks=len(acks),
        rows=sum(ack.rows for ack in acks),
        input_bytes=size,
        work_ms=sum(
            sum(ack.milliseconds.get(phase, 0.0) for phase in _WORK)
            - ack.milliseconds.get("wait", 0.0)
            for ack in acks
        ),
        input_ms=max((ack.milliseconds.get("wait", 0.0) for ack in acks), default=0.0),
    )
