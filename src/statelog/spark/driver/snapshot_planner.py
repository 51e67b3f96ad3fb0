"""
Choose the snapshots of a micro-batch, and record their results.

A snapshot that fails is logged and tried again later; its micro-batch commits all the same, because
the log has all changes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from statelog.checkpoint.coordinator import CheckpointRecorder
from statelog.core.snapshot_schedule import (
    LogDistances,
    SnapshotSchedule,
)
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.options import SnapshotPolicy
from statelog.spark.worker.protocol import TaskAck

_log = logging.getLogger("statelog.spark")


class SnapshotPlanner:
    """Plans the snapshots of one run of a query."""

    def __init__(
        self, policy: SnapshotPolicy, max_parallelism: int, recorder: CheckpointRecorder
    ) -> None:
        self._policy = policy
        self._groups = max_parallelism
        self._recorder = recorder
        self._schedule = SnapshotSchedule(policy, max_parallelism)
        self.distances = LogDistances.of(None, max_parallelism)

    def begin(self, base: CompletedCheckpoint | None, state_entries: int) -> None:
        """Begin with *base*, which has about *state_entries* entries."""
        self.advance(base)
        handles = base.materialized if base is not None else ()
        size = sum(max(handle.handle.size_bytes, 0) for handle in handles)
        # An estimate of the bytes per entry, from the snapshots that exist.
        in_snapshots = state_entries * float((self.distances.covered >= 0).mean())
        self._schedule = SnapshotSchedule(
            self._policy,
            self._groups,
            state_entries=state_entries,
            entry_bytes=size / in_snapshots if size and in_snapshots else None,
        )

    def advance(self, base: CompletedCheckpoint | None) -> None:
        """Continue from *base*."""
        self.distances = LogDistances.of(base, self._groups)

    def choose(
        self, ranges: Sequence[KeyGroupRange], now_ms: int
    ) -> dict[KeyGroupRange, KeyGroupRange]:
        """Choose the key groups that each task writes, by the key groups of the task."""
        ranges_chosen: dict[KeyGroupRange, KeyGroupRange] = {}
        for chosen in self._schedule.choose(self.distances, now_ms):
            for key_groups in ranges:
                # A slice may cross the ranges of tasks; each task writes its share as an object of
                # its own.
                overlap = key_groups.intersection(chosen)
                if len(overlap):
                    ranges_chosen.setdefault(key_groups, overlap)
        self._recorder.snapshots_started(len(ranges_chosen))
        return ranges_chosen

    def committed(
        self,
        chosen: Mapping[KeyGroupRange, KeyGroupRange],
        acks: Sequence[TaskAck],
        now_ms: int,
    ) -> None:
        """Record the results of the *chosen* snapshots of a committed micro-batch."""
        completed = 0
        for ack in acks:
            # A task of an operator that was skipped has not counted.
            if len(ack.changes.group_entries) == len(ack.place.key_range):
                self._schedule.has_entries(ack.place.key_range, ack.changes.group_entries)
            if ack.changes.snapshot is not None:
                completed += 1
                size = max(ack.changes.snapshot.handle.size_bytes, 0)
                self._schedule.completed(ack.changes.snapshot.key_group_range, size)
        for ack in acks:
            if ack.changes.snapshot_error:
                delay = self._schedule.failed(chosen[ack.place.key_range], now_ms)
                _log.warning(
                    "the snapshot of key groups %s failed; the next attempt is in %d s or later, and "
                    "the log holds all changes until then: %s",
                    chosen[ack.place.key_range],
                    delay // 1000,
                    ack.changes.snapshot_error,
                )
        longest = max((ack.milliseconds("snapshot") for ack in acks), default=0.0)
        self._recorder.snapshots_completed(completed, longest)
        self._recorder.snapshots_failed(len(chosen) - completed)

    def aborted(self, chosen: Mapping[KeyGroupRange, KeyGroupRange]) -> None:
        """Record that the micro-batch failed, and its snapshots with it."""
        self._recorder.snapshots_failed(len(chosen))
