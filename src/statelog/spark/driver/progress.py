"""Combine the figures of a micro-batch's tasks, and name them for Spark's progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from statelog.core.task_count import BatchCost
from statelog.spark.query.progress import BatchProgress
from statelog.spark.worker.protocol import TaskAck
from statelog.store.requests import REPEATED_REQUESTS

_NS_PER_MS: Final = 1_000_000


def slowest_phases(acks: Sequence[TaskAck]) -> dict[str, float]:
    """Return the longest duration of each phase over all tasks."""
    longest: dict[str, float] = {}
    for ack in acks:
        for phase, milliseconds in ack.costs.milliseconds.items():
            longest[phase] = max(longest.get(phase, 0.0), milliseconds)
    return longest


def summed_catch_up(acks: Sequence[TaskAck]) -> dict[str, int]:
    """Return the sums of how the tasks brought their state forward."""
    return {
        "folded": sum(ack.costs.caught_up.folded for ack in acks),
        "replayed": sum(ack.costs.caught_up.replayed for ack in acks),
        "restored": sum(ack.costs.caught_up.restored for ack in acks),
        "local": sum(ack.costs.caught_up.local for ack in acks),
        "compacted": sum(ack.costs.caught_up.compacted for ack in acks),
    }


class UploadFigures(NamedTuple):
    """The fields of these names of a `BatchProgress`."""

    uploads: int
    upload_bytes: int
    upload_attempts: int
    upload_failures: int
    upload_timeouts: int
    upload_retries: int
    slowest_upload_ms: float
    upload_wait_ms: float


def upload_figures(acks: Sequence[TaskAck]) -> UploadFigures:
    """Return the figures of the uploads of all tasks."""
    values: dict[str, list[float]] = {}
    for ack in acks:
        for name, value in ack.costs.uploads:
            values.setdefault(name, []).append(value)

    def total(name: str) -> float:
        return sum(values.get(name, ()))

    attempts_of_each = values.get("total_attempts_per_upload", [])
    return UploadFigures(
        uploads=len(attempts_of_each),
        upload_bytes=int(total("upload_sizes")),
        upload_attempts=int(total("number_of_upload_requests")),
        upload_failures=int(total("number_of_upload_failures")),
        upload_timeouts=int(total("number_of_upload_timeouts")),
        upload_retries=int(sum(attempts_of_each)) - len(attempts_of_each),
        slowest_upload_ms=max(values.get("upload_durations", ()), default=0.0) / _NS_PER_MS,
        upload_wait_ms=total("changelog_busy_time") / _NS_PER_MS,
    )


def repeated_by(acks: Sequence[TaskAck]) -> int:
    """Return how many requests to the store the tasks sent again."""
    return int(
        sum(value for ack in acks for name, value in ack.costs.uploads if name == REPEATED_REQUESTS)
    )


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
        "failedKeys": progress.failed_keys,
        "deadLetters": progress.dead_letters,
        "sideOutputRows": progress.side_output_rows,
        "stateEntries": progress.state_entries,
        "deltaBytes": progress.delta_bytes,
        "outputBytes": progress.output_bytes,
        "objects": progress.objects,
        "objectBytes": progress.object_bytes,
        "uploads": progress.uploads,
        "uploadBytes": progress.upload_bytes,
        "uploadAttempts": progress.upload_attempts,
        "uploadFailures": progress.upload_failures,
        "uploadTimeouts": progress.upload_timeouts,
        "uploadRetries": progress.upload_retries,
        "slowestUploadMs": round(progress.slowest_upload_ms),
        "uploadWaitMs": round(progress.upload_wait_ms),
        "repeatedRequests": progress.repeated_requests,
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


_WORK = ("input", "process", "output", "append", "stage")


def batch_cost(acks: Sequence[TaskAck], size: int | None) -> BatchCost:
    """Return the cost of a micro-batch, from the answers of its tasks."""
    return BatchCost(
        tasks=len(acks),
        rows=sum(ack.rows.count for ack in acks),
        input_bytes=size,
        work_ms=sum(
            sum(ack.costs.milliseconds.get(phase, 0.0) for phase in _WORK)
            - ack.costs.milliseconds.get("wait", 0.0)
            for ack in acks
        ),
        input_ms=max((ack.costs.milliseconds.get("wait", 0.0) for ack in acks), default=0.0),
    )
