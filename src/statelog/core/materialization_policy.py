"""
When to write which snapshot, so that the log stays bounded and no micro-batch pays for much.

The key groups are swept in the order of their last snapshots, slice by slice.  A piece of the log
is free once a snapshot covers each of its key groups, so sweeping in that order frees the log from
its old end.  Slices fall due evenly: when a full log is allowed to hold X bytes and the state makes
k slices, one falls due about every X / k bytes of log.  What a micro-batch writes is then in
proportion to what it logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statelog.errors import InvalidOptionsError
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.model.checkpoint import covered_checkpoints
from statelog.options import MaterializationOptions


@dataclass(frozen=True, slots=True)
class LogDistances:
    """
    How far the log has run ahead of the snapshots.

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
        """Return the distances at *checkpoint*; None for the empty state."""
        if checkpoint is None:
            nothing = np.zeros(max_parallelism, np.int64)
            return cls(nothing - 1, nothing, nothing, 0, 0)
        covered = covered_checkpoints(checkpoint.materialized, max_parallelism)
        ids = np.fromiter((log.checkpoint_id for log in checkpoint.log), np.int64)
        sizes = np.fromiter((log.size_bytes for log in checkpoint.log), np.int64)
        order = np.argsort(ids, kind="stable")
        ids, sizes = ids[order], sizes[order]
        after = np.searchsorted(ids, covered, side="right")
        bytes_from = np.append(np.cumsum(sizes[::-1])[::-1], 0)
        distinct = np.unique(ids)
        checkpoints = len(distinct) - np.searchsorted(distinct, covered, side="right")
        return cls(covered, bytes_from[after], checkpoints, int(sizes.sum()), len(ids))


@dataclass(frozen=True, slots=True)
class MaterializationPolicy:
    """
    The bounds of the log, and of what one micro-batch writes.

    Args:
        log_to_snapshot_ratio: The log may grow to this many times the size of the state; > 0.
        min_log_bytes: A smaller log is never due by size.
        max_log_handles: Checkpoints whose log one key group may have to replay; >= 1.
        slice_bytes: Size of the snapshot that one micro-batch writes; >= 1.
        max_slices: A state larger than this many slices is cut into larger ones, so that a sweep
            ends; >= 1.

    Raises:
        InvalidOptionsError: A bound is out of its range.
    """

    log_to_snapshot_ratio: float = 2.0
    min_log_bytes: int = 16 * 1024 * 1024
    max_log_handles: int = 250
    slice_bytes: int = 4 * 1024 * 1024
    max_slices: int = 64

    def __post_init__(self) -> None:
        if (
            not self.log_to_snapshot_ratio > 0
            or self.min_log_bytes < 0
            or min(self.max_log_handles, self.slice_bytes, self.max_slices) < 1
        ):
            raise InvalidOptionsError(f"snapshot bounds must be positive: {self}")

    @classmethod
    def of(cls, options: MaterializationOptions) -> MaterializationPolicy:
        """Return the policy that *options* describe."""
        return cls(
            options.log_to_snapshot_ratio,
            options.min_log_bytes,
            options.max_log_handles,
            options.slice_bytes,
        )

    def choose(
        self,
        distances: LogDistances,
        sizes: Sequence[float] | npt.NDArray[np.float64],
        failures: Sequence[int] | npt.NDArray[np.int64] | None = None,
    ) -> tuple[KeyGroupRange, ...]:
        """
        Return the key groups to write with the next micro-batch: at most two slices, or none.

        Args:
            distances: The log behind the snapshots.
            sizes: By key group: expected bytes of a snapshot.
            failures: By key group: how often its snapshot failed in a row; such come last.
        """
        size = np.asarray(sizes, np.float64)
        state = float(size.sum())
        rank = np.zeros(len(size), np.int64) if failures is None else np.asarray(failures)
        slices = self._slices(np.lexsort((distances.covered, rank)).tolist(), size, state)
        allowed = max(self.min_log_bytes, state * self.log_to_snapshot_ratio, 1)
        count, due = len(slices), 0
        for index, part in enumerate(slices):
            behind = int(distances.behind_checkpoints[part.start : part.end + 1].max())
            by_size = int(distances.behind_bytes[part.start : part.end + 1].max()) / allowed
            used = min(1.0, max(by_size, behind / self.max_log_handles))
            # Its turn must come before the log is used up, after the slices ahead of it.
            if behind:
                due = max(due, math.floor(index - count * (1 - used) + 1e-9) + 1)
        return _joined(slices[: min(due, _SLICES_AT_ONCE)])

    def _slices(
        self, order: Sequence[int], size: npt.NDArray[np.float64], state: float
    ) -> list[KeyGroupRange]:
        """Cut the key groups, in their order, into contiguous ranges of about one slice each."""
        room = max(self.slice_bytes, state / self.max_slices)
        slices: list[KeyGroupRange] = []
        used = 0.0
        for key_group in order:
            own = float(size[key_group])
            if slices and slices[-1].end + 1 == key_group and used + own <= room:
                slices[-1] = KeyGroupRange(slices[-1].start, key_group)
                used += own
            else:
                slices.append(KeyGroupRange(key_group, key_group))
                used = own
        return slices


_SLICES_AT_ONCE = 2
"""What is late is caught up twice as fast as it falls due, and no faster."""


def _joined(slices: Sequence[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    joined: list[KeyGroupRange] = []
    for part in slices:
        if joined and joined[-1].end + 1 == part.start:
            joined[-1] = KeyGroupRange(joined[-1].start, part.end)
        else:
            joined.append(part)
    return tuple(joined)


class MaterializationSchedule:
    """
    What a policy cannot read from a checkpoint: sizes learned, failures, and when to try again.

    Args:
        policy: The bounds.
        max_parallelism: Number of key groups.
        state_entries: State entries there are, as far as known.
        entry_bytes: Bytes that one of them takes in a snapshot; None if none was written yet.
    """

    def __init__(
        self,
        policy: MaterializationPolicy,
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
        """Return the key groups whose snapshot the next micro-batch writes; see the policy."""
        if now_ms < self._not_before_ms:
            return ()
        return self._policy.choose(distances, self._entries * self._entry_bytes, self._failures)

    def has_entries(self, key_groups: KeyGroupRange, entries: Sequence[int]) -> None:
        """Note how many state entries each of *key_groups* has."""
        self._entries[key_groups.start : key_groups.end + 1] = entries

    def completed(self, key_groups: KeyGroupRange, size_bytes: int) -> None:
        """Note that a snapshot of *key_groups* is part of a checkpoint."""
        entries = float(self._entries[key_groups.start : key_groups.end + 1].sum())
        if entries >= _ENTRIES_THAT_TELL:
            self._entry_bytes += (size_bytes / entries - self._entry_bytes) / 2
        self._failures[key_groups.start : key_groups.end + 1] = 0
        self._failed_in_a_row = 0

    def failed(self, key_groups: KeyGroupRange, now_ms: int) -> int:
        """
        Note that a snapshot of *key_groups* could not be written.

        Returns:
            Milliseconds until the next attempt at any: 10 s, twice as much after each failure in
            a row, 10 minutes at most.
        """
        self._failures[key_groups.start : key_groups.end + 1] += 1
        delay = min(_DELAY_MS << min(self._failed_in_a_row, 16), _DELAY_MAX_MS)
        self._failed_in_a_row += 1
        self._not_before_ms = now_ms + delay
        return delay


_ENTRY_BYTES = 32.0
_ENTRIES_THAT_TELL = 100
_DELAY_MS = 10_000
_DELAY_MAX_MS = 600_000
