"""Measure the cost of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from statelog.core.task_count import BatchCost
from statelog.spark.worker.protocol import TaskAck

_WORK = ("input", "process", "output", "append", "stage")


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
