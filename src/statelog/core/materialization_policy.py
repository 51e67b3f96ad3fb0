"""
When to write a snapshot, so that the log behind it stays bounded.

The log of a range may grow to a set multiple of its last snapshot before a new one pays; small
logs are left alone, and long chains of tiny ones are not.  At most one range is chosen at a time,
so that no micro-batch pays for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statelog.errors import InvalidOptionsError
from statelog.options import MaterializationOptions


@dataclass(frozen=True, slots=True)
class LogDistance:
    """
    How far the log of one range has run ahead of its snapshot.

    Args:
        log_bytes: Bytes of all changes behind the snapshot.
        log_handles: Number of log pieces behind it.
        snapshot_bytes: Size of the snapshot; 0 without one.
    """

    log_bytes: int
    log_handles: int
    snapshot_bytes: int


@dataclass(frozen=True, slots=True)
class MaterializationPolicy:
    """
    The bounds of the log behind a snapshot.

    Args:
        log_to_snapshot_ratio: A snapshot is due once the log is this many times its size; > 0.
        min_log_bytes: A smaller log is never due by size.
        max_log_handles: A longer chain is due whatever its size; >= 1.

    Raises:
        InvalidOptionsError: A bound is out of its range.
    """

    log_to_snapshot_ratio: float = 1.0
    min_log_bytes: int = 16 * 1024 * 1024
    max_log_handles: int = 250

    def __post_init__(self) -> None:
        if self.log_to_snapshot_ratio <= 0 or self.min_log_bytes < 0 or self.max_log_handles < 1:
            raise InvalidOptionsError(f"snapshot bounds must be positive: {self}")

    @classmethod
    def of(cls, options: MaterializationOptions) -> MaterializationPolicy:
        """Return the policy that *options* describe."""
        return cls(options.log_to_snapshot_ratio, options.min_log_bytes, options.max_log_handles)

    def urgency(self, distance: LogDistance) -> float:
        """Return how overdue a snapshot is: 1.0 and more means due."""
        allowed = max(self.min_log_bytes, distance.snapshot_bytes * self.log_to_snapshot_ratio)
        by_size = distance.log_bytes / allowed if allowed else float(distance.log_bytes > 0)
        return max(by_size, distance.log_handles / self.max_log_handles)

    def choose(self, distances: Sequence[LogDistance]) -> int | None:
        """Return the index of the most overdue range, or None if none is due."""
        if not distances:
            return None
        urgencies = [self.urgency(distance) for distance in distances]
        most = max(range(len(urgencies)), key=urgencies.__getitem__)
        return most if urgencies[most] >= 1.0 else None
