"""
How much memory the dict tables use, and which of them are put into columns beyond the budget.

Entries are counted exactly, and their size is estimated from a sample.  A *block* is a few
neighbouring key groups, which are rewritten together; no micro-batch rewrites the whole state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from statelog.errors import InvalidOptionsError
from statelog.model import KeyGroupRange
from statelog.state.heap.tables import KeyGroupState
from statelog.state.kinds import Key

BLOCK: Final = 4
"""Key groups that are rewritten together."""
LEAST_BUDGET: Final = 64 << 20
_RECENT_SHARE: Final = 0.3
_PENDING_SHARE: Final = 0.1
_INPUT_SHARE: Final = 0.3
_SLOT_BYTES: Final = 100
"""Bytes of an entry in a dict's arrays, with the spare capacity for growth."""
_SAMPLES: Final = 48
_PARTS: Final = 32
"""Elements of a list or map in the sample; the others are assumed to be like them."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """
    The memory that the state of one worker may use.

    The dict tables get 30 % of the budget, changes waiting to be replayed 10 %, and the rows of a
    micro-batch, with the objects made from them, 30 %; the rest is for the interpreter.

    Args:
        budget_bytes: For the whole process, >= 64 MiB; pages mapped from files do not count.
        dict_rows: A restored range of at most so many keys becomes dict tables; 0 or more.
    """

    budget_bytes: int
    dict_rows: int = 50_000

    def __post_init__(self) -> None:
        if self.budget_bytes < LEAST_BUDGET or self.dict_rows < 0:
            raise InvalidOptionsError(
                f"memoryBudget is at least 64 MiB ({LEAST_BUDGET} bytes); got {self.budget_bytes}"
            )

    @classmethod
    def unbounded(cls) -> MemoryLimits:
        """Return limits within which all state stays in dict tables."""
        return cls(sys.maxsize, sys.maxsize)

    @property
    def is_bounded(self) -> bool:
        """Return whether state may have to leave the dict tables."""
        return self.budget_bytes < sys.maxsize

    @property
    def recent_bytes(self) -> int:
        """Return the bytes that the dict tables may use."""
        return int(self.budget_bytes * _RECENT_SHARE)

    @property
    def pending_bytes(self) -> int:
        """Return the bytes of changes to collect before a replay."""
        return int(self.budget_bytes * _PENDING_SHARE)

    @property
    def input_bytes(self) -> int:
        """Return the bytes of rows, as Python objects, to process at once."""
        return int(self.budget_bytes * _INPUT_SHARE)


def block_sizes(groups: Mapping[int, KeyGroupState]) -> dict[int, int]:
    """Return the estimated bytes of the dict tables of each block."""
    sizes: dict[int, int] = {}
    weights: list[float] | None = None
    for key_group, group in groups.items():
        if weights is None:
            weights = [_weight(state_id, groups.values()) for state_id in range(len(group.tables))]
        size = sum(len(table) * weight for table, weight in zip(group.tables, weights, strict=True))
        block = key_group // BLOCK
        sizes[block] = sizes.get(block, 0) + int(size)
    return sizes


def choose_blocks(sizes: Mapping[int, int], limit: int) -> list[int]:
    """Return the blocks to put into columns, to keep to *limit*."""
    total = sum(sizes.values())
    chosen = []
    for block in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= limit:
            break
        chosen.append(block)
        total -= sizes[block]
    return chosen


def _weight(state_id: int, groups: Iterable[KeyGroupState]) -> float:
    """Return the estimated bytes of an entry of one variable."""
    sample: list[tuple[Key, object]] = []
    for group in groups:
        sample += islice(group.tables[state_id].items(), 4)
        if len(sample) >= _SAMPLES:
            break
    if not sample:
        return 0.0
    return _SLOT_BYTES + sum(_size(key) + _size(cell) for key, cell in sample) / len(sample)


def _size(value: object) -> int:
    """Return the bytes of a value with all its parts."""
    size = sys.getsizeof(value)
    if isinstance(value, dict | list | tuple) and value:
        parts = islice(value.items() if isinstance(value, dict) else value, _PARTS)
        sampled = min(len(value), _PARTS)
        return size + sum(map(_size, parts)) * len(value) // sampled
    return size


def blocks(key_group_range: KeyGroupRange) -> Iterator[KeyGroupRange]:
    """Yield the range in the pieces that are rewritten together."""
    start = key_group_range.start
    while start <= key_group_range.end:
        end = min(start // BLOCK * BLOCK + BLOCK - 1, key_group_range.end)
        yield KeyGroupRange(start, end)
        start = end + 1
