"""
Choose the snapshots of a micro-batch, so that the log stays short and writes stay small.

Key groups are written in the order of their last snapshots, slice by slice.  A piece of the log is
no longer needed once a snapshot covers each of its key groups, so this order frees the oldest part
of the log first.  Slices fall due evenly: if a full log may hold X bytes and the state makes k
slices, one falls due about every X / k bytes of log.  A micro-batch then writes in proportion to
what it logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.model.checkpoint import covered_checkpoints
from statelog.options import SnapshotPolicy


@dataclass(frozen=True, slots=True)
class LogDistances:
    """
    Measures how far the log has grown beyond the snapshots.

    Args:
        covered: By key group: the checkpoint its snapshot contains; -1 without one.
        behind_bytes: By key group: bytes of the whole job's log since then.
        behind_checkpoints: By key group: checkpoints with a log since then.
        log_bytes: Bytes of all log pieces that are still needed, each counted once.
        log_handles: Their number.
    """

    covered: npt.NDArray[np.int64]
    behind_bytes: npt.NDArray[np.int64]
    behind_checkpoints: npt.NDArray[np.int64]
    log_bytes: int
    log_handles: int

    @classmethod
    def of(cls, checkpoint: CompletedCheckpoint | None, max_parallelism: int) -> LogDistances:
        """Return the distances as of *checkpoint*, or as of the empty state for None."""
        if checkpoint is None:
            nothing = np.zeros(max_parallelism, np.int64)
            return cls(nothing - 1, nothing, nothing, 0, 0)
        covered = covered_checkpoints(checkpoint.materialized, max_parallelism)
        ids = np.fromiter((log.checkpoint_id for log in checkpoint.log), np.int64)
        sizes = np.fromiter((log.size_bytes for log in checkpoint.log), np.int64)
        # The log by checkpoint, so that "since the snapshot" is a suffix of it.
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        sizes = sizes[order]
        after = np.searchsorted(ids, covered, side="right")
        # bytes_from[i]: the bytes of the log pieces i and later; the last one is 0.
        bytes_from = np.append(np.cumsum(sizes[::-1])[::-1], 0)
        # A checkpoint has a piece for each task, and counts once.
        distinct = np.unique(ids)
        checkpoints = len(distinct) - np.searchsorted(distinct, covered, side="right")
        return cls(covered, bytes_from[after], checkpoints, int(sizes.sum()), len(ids))


def choose_key_groups(
    policy: SnapshotPolicy,
    distances: LogDistances,
    sizes: Sequence[float] | npt.NDArray[np.float64],
    failures: Sequence[int] | npt.NDArray[np.int64] | None = None,
) -> tuple[KeyGroupRange, ...]:
    """
    Return the key groups whose snapshots the next micro-batch should write.

    These are two slices at most.
    """
    # 1. Order the key groups: those that failed least, then those written longest ago.
    size = np.asarray(sizes, np.float64)
    state = float(size.sum())
    rank = np.zeros(len(size), np.int64) if failures is None else np.asarray(failures)
    slices = _slices(policy, np.lexsort((distances.covered, rank)).tolist(), size, state)
    # 2. How long the log may become: in proportion to the state, but not below a minimum.
    allowed = max(policy.min_log_bytes, state * policy.log_to_snapshot_ratio, 1)
    count = len(slices)
    due = 0
    # 3. For each slice: how much of the allowance the log since its snapshot has used.
    for index, slice_groups in enumerate(slices):
        behind = int(distances.behind_checkpoints[slice_groups.start : slice_groups.end + 1].max())
        by_size = (
            int(distances.behind_bytes[slice_groups.start : slice_groups.end + 1].max()) / allowed
        )
        used = min(1.0, max(by_size, behind / policy.max_log_handles))
        # This slice must be written before the log is full, and the slices ahead of it before it.
        if behind:
            due = max(due, math.floor(index - count * (1 - used) + 1e-9) + 1)
    return _joined(slices[: min(due, _SLICES_AT_ONCE)])


def _slices(
    policy: SnapshotPolicy, order: Sequence[int], size: npt.NDArray[np.float64], state: float
) -> list[KeyGroupRange]:
    """Split the key groups, in order, into ranges that are about one slice in size."""
    slice_bytes = max(policy.slice_bytes, state / policy.max_slices)
    slices: list[KeyGroupRange] = []
    used = 0.0
    for key_group in order:
        own_size = float(size[key_group])
        # A slice is one snapshot object, and that has one contiguous range of key groups.
        if slices and slices[-1].end + 1 == key_group and used + own_size <= slice_bytes:
            slices[-1] = KeyGroupRange(slices[-1].start, key_group)
            used += own_size
        else:
            slices.append(KeyGroupRange(key_group, key_group))
            used = own_size
    return slices


_SLICES_AT_ONCE = 2
"""Overdue slices are written at most twice as fast as they fall due."""


def _joined(slices: Sequence[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    joined: list[KeyGroupRange] = []
    for slice_groups in slices:
        if joined and joined[-1].end + 1 == slice_groups.start:
            joined[-1] = KeyGroupRange(joined[-1].start, slice_groups.end)
        else:
            joined.append(slice_groups)
    return tuple(joined)


class SnapshotSchedule:
    """Stores what checkpoints do not record: learned sizes, failures and retry times."""

    def __init__(
        self,
        policy: SnapshotPolicy,
        max_parallelism: int,
        *,
        state_entries: int = 0,
        entry_bytes: float | None = None,
    ) -> None:
        self._policy = policy
        self._entries = np.full(max_parallelism, state_entries / max_parallelism)
        self._entry_bytes = _ENTRY_BYTES if entry_bytes is None else entry_bytes
        self._failures = np.zeros(max_parallelism, np.int64)
        self._failed_in_a_row = 0
        self._not_before_ms = 0

    def choose(self, distances: LogDistances, now_ms: int) -> tuple[KeyGroupRange, ...]:
        """Return the key groups whose snapshots the next micro-batch writes."""
        if now_ms < self._not_before_ms:
            return ()
        return choose_key_groups(
            self._policy, distances, self._entries * self._entry_bytes, self._failures
        )

    def has_entries(self, key_groups: KeyGroupRange, entries: Sequence[int]) -> None:
        """Record the number of state entries in each of *key_groups*."""
        self._entries[key_groups.start : key_groups.end + 1] = entries

    def completed(self, key_groups: KeyGroupRange, size_bytes: int) -> None:
        """Record that a snapshot of *key_groups* is part of a checkpoint."""
        # A moving average: the bytes per entry change with the data.  Few entries are mostly
        # header.
        entries = float(self._entries[key_groups.start : key_groups.end + 1].sum())
        if entries >= _MIN_SAMPLE_ENTRIES:
            self._entry_bytes += (size_bytes / entries - self._entry_bytes) / 2
        self._failures[key_groups.start : key_groups.end + 1] = 0
        self._failed_in_a_row = 0

    def failed(self, key_groups: KeyGroupRange, now_ms: int) -> int:
        """
        Record that writing a snapshot of *key_groups* failed.

        Returns:
            Milliseconds until the next attempt at any: 10 s, twice as much after each failure in
            a row, 10 minutes at most.
        """
        # Failed ranges rank last, so that one bad range does not block the snapshots of the others.
        self._failures[key_groups.start : key_groups.end + 1] += 1
        delay = min(_DELAY_MS << min(self._failed_in_a_row, 16), _DELAY_MAX_MS)
        self._failed_in_a_row += 1
        self._not_before_ms = now_ms + delay
        return delay


_ENTRY_BYTES = 32.0
_MIN_SAMPLE_ENTRIES = 100
_DELAY_MS = 10_000
_DELAY_MAX_MS = 600_000
