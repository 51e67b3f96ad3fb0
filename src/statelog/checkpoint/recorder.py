"""
Record checkpoints and snapshots in the metrics, under Flink's names.

Source: Flink, ChangelogMaterializationMetricGroup and ChangelogStateBackendMetricGroup.
Deviation: the values are about the whole job, on the side that completes its checkpoints.
"""

from __future__ import annotations

from functools import partial

from statelog.metrics import Metrics
from statelog.model import CompletedCheckpoint

_SIZES = (
    "last_full_size_of_materialization",
    "last_inc_size_of_materialization",
    "last_full_size_of_non_materialization",
    "last_inc_size_of_non_materialization",
    "log_bytes_behind_snapshots",
    "log_handles_behind_snapshots",
)


class CheckpointRecorder:
    """
    Records the sizes of checkpoints, and the snapshots written.

    Args:
        metrics: Registry that holds the values; replaces the gauges of an earlier recorder.

    Thread: The driver's; values may be read from any thread.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._values: dict[str, float] = dict.fromkeys(_SIZES, 0)
        self._values["last_duration_of_materialization"] = -1
        for name in self._values:
            metrics.gauge(name, partial(self._values.__getitem__, name))

    def completed(
        self, checkpoint: CompletedCheckpoint, previous: CompletedCheckpoint | None
    ) -> None:
        """Record a completed checkpoint; parts shared with *previous* are not new."""
        before = set(previous.materialized) if previous is not None else set()
        sizes = [
            (max(each.handle.size_bytes, 0), each not in before) for each in checkpoint.materialized
        ]
        fresh = [each for each in checkpoint.log if each.checkpoint_id == checkpoint.checkpoint_id]
        behind = sum(each.size_bytes for each in checkpoint.log)
        self._values.update(
            last_full_size_of_materialization=sum(size for size, _ in sizes),
            last_inc_size_of_materialization=sum(size for size, new in sizes if new),
            last_full_size_of_non_materialization=behind,
            last_inc_size_of_non_materialization=sum(each.incremental_size_bytes for each in fresh),
            log_bytes_behind_snapshots=behind,
            log_handles_behind_snapshots=len(checkpoint.log),
        )

    def snapshots_started(self, runs: int) -> None:
        """Count *runs* snapshots that begin."""
        self._metrics.count("started_materialization", runs)

    def snapshots_completed(self, runs: int, milliseconds: float) -> None:
        """Count *runs* snapshots of a completed checkpoint, and record the longest duration."""
        self._metrics.count("completed_materialization", runs)
        if runs:
            self._values["last_duration_of_materialization"] = milliseconds

    def snapshots_failed(self, runs: int) -> None:
        """Count *runs* snapshots that failed, or whose checkpoint was not completed."""
        self._metrics.count("failed_materialization", runs)
