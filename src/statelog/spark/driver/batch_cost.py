"""How large the input of a micro-batch is, as Spark knows it before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from statelog.core.task_count import BatchCost
from statelog.spark.worker.protocol import TaskAck

_UNKNOWN_BYTES = 1 << 50
"""Sources that do not know their size claim to be as large as can be."""

_WORK = ("input", "process", "output", "append", "stage")


def input_bytes(frame: DataFrame) -> int | None:
    """
    Return the size of a micro-batch's input by the statistics of its plan.

    Returns:
        Bytes; files know them, most other sources do not (None).
    """
    plan = getattr(frame, "_jdf", None)
    if plan is None:
        return None
    try:
        size = int(plan.queryExecution().optimizedPlan().stats().sizeInBytes())
    except Py4JError:  # statistics are a help, never a reason to fail
        return None
    return size if size < _UNKNOWN_BYTES else None


def batch_cost(acks: Sequence[TaskAck], size: int | None) -> BatchCost:
    """Return what a micro-batch cost, by the answers of its tasks."""
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
