"""Combine the figures of a micro-batch's tasks, and name them for Spark's progress."""

from __future__ import annotations

from collections.abc import Sequence

from statelog.spark.query.progress import BatchProgress
from statelog.spark.worker.protocol import TaskAck


def slowest_phases(acks: Sequence[TaskAck]) -> dict[str, float]:
    """Return the longest duration of each phase over all tasks."""
    longest: dict[str, float] = {}
    for ack in acks:
        for phase, milliseconds in ack.milliseconds.items():
            longest[phase] = max(longest.get(phase, 0.0), milliseconds)
    return longest


def summed_catch_up(acks: Sequence[TaskAck]) -> dict[str, int]:
    """Return the sums of how the tasks brought their state forward."""
    return {
        "folded": sum(ack.caught_up.folded for ack in acks),
        "replayed": sum(ack.caught_up.replayed for ack in acks),
        "restored": sum(ack.caught_up.restored for ack in acks),
        "local": sum(ack.caught_up.local for ack in acks),
        "compacted": sum(ack.caught_up.compacted for ack in acks),
    }


def source_metrics(progress: BatchProgress) -> dict[str, str]:
    """
    Return the figures of a micro-batch as the metrics of a source in Spark's progress.

    Spark's type for them is a map of texts, and its names are in camelCase.
    """
    figures: dict[str, object] = {
        "batchId": progress.batch_id,
        "checkpointId": progress.checkpoint_id,
        "replayed": str(progress.replayed).lower(),
        "tasks": progress.tasks,
        "rows": progress.rows,
        "lateRows": progress.late_rows,
        "keys": progress.keys,
        "outputRows": progress.output_rows,
        "stateEntries": progress.state_entries,
        "deltaBytes": progress.delta_bytes,
        "outputBytes": progress.output_bytes,
        "objects": progress.objects,
        "objectBytes": progress.object_bytes,
        "logBytes": progress.log_bytes,
        "logHandles": progress.log_handles,
        "snapshots": progress.snapshots,
        "snapshotsFailed": progress.snapshots_failed,
    }
    for phase, milliseconds in progress.milliseconds.items():
        first, *others = phase.split("_")
        name = first + "".join(other.capitalize() for other in others)
        figures[f"{name}Ms"] = round(milliseconds)
    return {name: str(figure) for name, figure in figures.items()}
