"""
Snapshots as the driver sees them: which task writes which key groups, and what became of it.

A snapshot that fails is told and tried again later; the micro-batch it came with goes on, because
the log has everything.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from statelog.checkpoint.recorder import CheckpointRecorder
from statelog.core.snapshot_schedule import (
    LogDistances,
    SnapshotSchedule,
)
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.options import SnapshotPolicy
from statelog.spark.worker.protocol import TaskAck

_log = logging.getLogger("statelog.spark")


class Snapshots:
    """
    Chooses and counts the snapshots of one run of a query.

    Args:
        policy: The bounds.
        max_parallelism: Number of key groups.
        recorder: Told of each snapshot.
    """

    def __init__(
        self, policy: SnapshotPolicy, max_parallelism: int, recorder: CheckpointRecorder
    ) -> None:
        self._policy = policy
        self._groups = max_parallelism
        self._recorder = recorder
        self._schedule = SnapshotSchedule(policy, max_parallelism)
        self.distances = LogDistances.of(None, max_parallelism)

    def begin(self, base: CompletedCheckpoint | None, state_entries: int) -> None:
        """Begin with *base*, which is about to have *state_entries*."""
        self.advance(base)
        handles = base.materialized if base is not None else ()
        size = sum(max(one.handle.size_bytes, 0) for one in handles)
        in_snapshots = state_entries * float((self.distances.covered >= 0).mean())
        self._schedule = SnapshotSchedule(
            self._policy,
            self._groups,
            state_entries=state_entries,
            entry_bytes=size / in_snapshots if size and in_snapshots else None,
        )

    def advance(self, base: CompletedCheckpoint | None) -> None:
        """Go on from *base*."""
        self.distances = LogDistances.of(base, self._groups)

    def choose(self, ranges: Sequence[KeyGroupRange], now_ms: int) -> dict[int, KeyGroupRange]:
        """Return what each task is to write, by partition; counted as started."""
        wanted: dict[int, KeyGroupRange] = {}
        for chosen in self._schedule.choose(self.distances, now_ms):
            for partition, key_groups in enumerate(ranges):
                overlap = key_groups.intersection(chosen)
                if len(overlap):
                    wanted.setdefault(partition, overlap)
        self._recorder.snapshots_started(len(wanted))
        return wanted

    def committed(
        self, wanted: Mapping[int, KeyGroupRange], acks: Sequence[TaskAck], now_ms: int
    ) -> None:
        """Take in what became of the *wanted* snapshots in a micro-batch that was committed."""
        done = 0
        for ack in acks:
            if len(ack.group_entries) == len(ack.key_group_range):
                self._schedule.has_entries(ack.key_group_range, ack.group_entries)
            if ack.materialized is not None:
                done += 1
                size = max(ack.materialized.handle.size_bytes, 0)
                self._schedule.completed(ack.materialized.key_group_range, size)
        for ack in acks:
            if ack.snapshot_error:
                delay = self._schedule.failed(wanted[ack.partition], now_ms)
                _log.warning(
                    "a snapshot of key groups %s could not be written, and is tried again in %d s "
                    "at the earliest; the log keeps everything meanwhile: %s",
                    wanted[ack.partition],
                    delay // 1000,
                    ack.snapshot_error,
                )
        longest = max((ack.milliseconds.get("snapshot", 0.0) for ack in acks), default=0.0)
        self._recorder.snapshots_completed(done, longest)
        self._recorder.snapshots_failed(len(wanted) - done)

    def aborted(self, wanted: Mapping[int, KeyGroupRange]) -> None:
        """Note that the micro-batch failed, and the snapshots with it."""
        self._recorder.snapshots_failed(len(wanted))
