"""
Key groups: shards of the key space, and the ranges of them that tasks own.

The number of key groups of a job never changes (its *maximum parallelism*).  The number of tasks
may change, because a task owns a contiguous range of groups.
Source: Flink, KeyGroupRange and KeyGroupRangeAssignment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from statelog.arguments import whole_number
from statelog.errors import UsageError

METADATA_KEY_GROUP = -1
"""Key group of a metadata change (Flink's constant)."""

DEFAULT_MAX_PARALLELISM = 128
"""Default number of key groups of a job."""

MAX_PARALLELISM_LIMIT = 32768
"""Flink's upper bound for the number of key groups."""


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """
    The key groups from *start* to *end*, both inclusive.

    The empty range is (0, -1), as in Flink.

    Args:
        start: First key group, >= 0.
        end: Last key group, >= *start* (or -1 with *start* 0 for the empty range).

    Raises:
        UsageError: The bounds are negative or reversed.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start.__class__ is not int or self.end.__class__ is not int:
            for name in ("start", "end"):
                number = whole_number(getattr(self, name), f"the key group {name}")
                object.__setattr__(self, name, number)
        if (self.start, self.end) != (0, -1) and not 0 <= self.start <= self.end:
            raise UsageError(f"invalid key group range [{self.start}, {self.end}]")

    @classmethod
    def empty(cls) -> KeyGroupRange:
        """Return the range without key groups."""
        return cls(0, -1)

    @classmethod
    def of(cls, start: int, end: int) -> KeyGroupRange:
        """Return [start, end], or the empty range if *start* is greater than *end*."""
        start = whole_number(start, "start")
        end = whole_number(end, "end")
        return cls(start, end) if start <= end else cls.empty()

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __contains__(self, key_group: int) -> bool:
        return self.start <= key_group <= self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the key groups that are in both ranges."""
        return KeyGroupRange.of(max(self.start, other.start), min(self.end, other.end))

    def split(self, parts: int) -> tuple[KeyGroupRange, ...]:
        """Split the range for *parts* tasks, or fewer if there are fewer key groups."""
        if not len(self):
            return (self,)
        return tuple(
            KeyGroupRange(self.start + split.start, self.start + split.end)
            for split in split_key_groups(len(self), max(1, min(parts, len(self))))
        )

    def __str__(self) -> str:
        return f"[{self.start}, {self.end}]"


def key_group_range_for_operator(
    max_parallelism: int, parallelism: int, operator_index: int
) -> KeyGroupRange:
    """
    Return the key groups of the task with index *operator_index* out of *parallelism* tasks.

    Args:
        max_parallelism: Number of key groups, 1 to 32768.
        parallelism: Number of tasks, 1 to *max_parallelism*.
        operator_index: 0 to *parallelism* - 1.

    Raises:
        UsageError: An argument is out of its range.
    """
    for name, value in (
        ("max_parallelism", max_parallelism),
        ("parallelism", parallelism),
        ("operator_index", operator_index),
    ):
        whole_number(value, name)
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise UsageError(f"max_parallelism {max_parallelism} is outside 1..{MAX_PARALLELISM_LIMIT}")
    if not 1 <= parallelism <= max_parallelism:
        raise UsageError(
            f"parallelism {parallelism} is outside 1..{max_parallelism} (the number of key groups)"
        )
    if not 0 <= operator_index < parallelism:
        raise UsageError(f"operator index {operator_index} is outside 0..{parallelism - 1}")
    start = (operator_index * max_parallelism + parallelism - 1) // parallelism
    end = ((operator_index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def split_key_groups(max_parallelism: int, parallelism: int) -> tuple[KeyGroupRange, ...]:
    """Return the ranges of all tasks in order; together they cover all key groups."""
    parallelism = whole_number(parallelism, "parallelism", low=1)
    return tuple(
        key_group_range_for_operator(max_parallelism, parallelism, index)
        for index in range(parallelism)
    )
