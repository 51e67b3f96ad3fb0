"""
State as dict tables: how micro-batches change them, their memory use and their expiry.

State is kept in dicts, one per variable and key group, at a *version*: the checkpoint up to which
they are complete.  A micro-batch never writes into them.  It fills an *overlay* of deltas, which is
appended to the log.  The overlay is folded into the tables once its checkpoint is committed, and
dropped if its attempt failed.  A worker that missed a batch folds the deltas that it reads from the
log, by the same function.  The kind of a variable defines its cells and deltas.

Entries are counted exactly, and their size is estimated from a sample.  A *block* is a few
neighbouring key groups, which are put into columns together; no micro-batch rewrites the whole
state.

An entry whose time to live is over is hidden from every read at once, so when it is removed only
matters for memory.  Nothing is written to the log for it, and a replay that brings it back shows
the same state.  It is kept for a minute more: after a clock was set back a little, all processes
still have it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from statelog.errors import InvalidOptionsError
from statelog.model import KeyGroupRange
from statelog.options import MEMORY_BUDGET
from statelog.state.kinds import AnyKind, Deltas, Key, StateKind, Table
from statelog.state.kinds.timer import timer_table

Overlay: TypeAlias = list[Deltas]
"""By state id."""


class KeyGroupState:
    """
    All state of one key group.

    Attributes: `folded`: deltas folded in since the last look for expired entries;
    `expiry_due_ms`: before this time no entry can be expired.
    """

    __slots__ = ("expiry_due_ms", "folded", "kinds", "tables", "version")

    def __init__(self, kinds: Sequence[StateKind], version: int = -1) -> None:
        self.kinds = kinds
        self.tables: list[Table] = [kind.rules.new_table() for kind in kinds]
        self.version = version
        self.folded = 0
        self.expiry_due_ms = -1

    def fold(self, overlay: Overlay) -> None:
        """Apply *overlay* to the tables."""
        for state_id, deltas in enumerate(overlay):
            if deltas:
                self.folded += len(deltas)
                self.kinds[state_id].rules.fold(self.tables[state_id], deltas)

    def remove(self, key: Key) -> None:
        """Remove all cells of a key."""
        for kind, table in zip(self.kinds, self.tables, strict=True):
            if key in table:
                kind.rules.remove(table, key)

    def timers_due(self, state_id: int, until_ms: int) -> Iterator[tuple[int, Key]]:
        """Yield (time, key) for the applied timers up to *until_ms*, in no particular order."""
        return timer_table(self.tables[state_id]).due(until_ms)

    def first_timer(self, state_id: int, changed: Collection[Key]) -> int | None:
        """Return the earliest applied timer of any key not in *changed*, or None."""
        return timer_table(self.tables[state_id]).first(changed)


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
    Limits on the memory that the state of one worker may use.

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
                f"memoryBudget must be at least 64 MiB ({LEAST_BUDGET} bytes); got {self.budget_bytes}"
            )

    @classmethod
    def unbounded(cls) -> MemoryLimits:
        """Return limits that keep all state in dict tables."""
        return cls(sys.maxsize, sys.maxsize)

    @property
    def is_bounded(self) -> bool:
        """Return whether state may have to leave the dict tables."""
        return self.budget_bytes < sys.maxsize

    @property
    def recent_bytes(self) -> int:
        """Return how many bytes the dict tables may use."""
        return int(self.budget_bytes * _RECENT_SHARE)

    @property
    def pending_bytes(self) -> int:
        """Return how many bytes of changes to collect before replaying them."""
        return int(self.budget_bytes * _PENDING_SHARE)

    @property
    def input_bytes(self) -> int:
        """Return how many bytes of rows, as Python objects, to process at once."""
        return int(self.budget_bytes * _INPUT_SHARE)


@dataclass(frozen=True, slots=True)
class StateBackendConfig:
    """
    Where a worker stores its state.

    Args:
        kind: "auto": dict tables while they fit into the budget, then columns in files of the host;
            "memory": columns too stay in memory; "disk": columns in files from the start.
        budget_bytes: Memory of a worker process, >= 64 MiB; see `MemoryLimits`.
        folder: Host-local folder for files; None for one in the system's temporary directory.

    Raises:
        InvalidOptionsError: An argument is out of range.
    """

    kind: str = "auto"
    budget_bytes: int = MEMORY_BUDGET
    folder: str | None = None

    def __post_init__(self) -> None:
        MemoryLimits(self.budget_bytes)

    @property
    def input_bytes(self) -> int:
        """How many bytes of rows, as Python objects, a task processes at once."""
        return self.limits().input_bytes

    def limits(self) -> MemoryLimits:
        """Return how much memory the state may use."""
        if self.kind == "disk":
            return MemoryLimits(self.budget_bytes, dict_rows=0)
        return MemoryLimits(self.budget_bytes)


def block_sizes(groups: Mapping[int, KeyGroupState]) -> dict[int, int]:
    """Estimate the bytes that the dict tables of each block use."""
    sizes: dict[int, int] = {}
    weights: list[float] | None = None
    for key_group, group in groups.items():
        if weights is None:
            # One sample for all blocks: entries of one variable are of about the same size.
            weights = [_weight(state_id, groups.values()) for state_id in range(len(group.tables))]
        size = sum(len(table) * weight for table, weight in zip(group.tables, weights, strict=True))
        block = key_group // BLOCK
        sizes[block] = sizes.get(block, 0) + int(size)
    return sizes


def choose_blocks(sizes: Mapping[int, int], limit: int) -> list[int]:
    """Choose the blocks to move to columns so that the tables stay within *limit*."""
    total = sum(sizes.values())
    chosen = []
    # The largest first, so that few blocks are rewritten.
    for block in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= limit:
            break
        chosen.append(block)
        total -= sizes[block]
    return chosen


def _weight(state_id: int, groups: Iterable[KeyGroupState]) -> float:
    """Estimate the bytes of one entry of a variable."""
    sample: list[tuple[Key, object]] = []
    for group in groups:
        sample += islice(group.tables[state_id].items(), 4)
        if len(sample) >= _SAMPLES:
            break
    if not sample:
        return 0.0
    return _SLOT_BYTES + sum(_size(key) + _size(cell) for key, cell in sample) / len(sample)


def _size(value: object) -> int:
    """Return the size of a value in bytes, including all its parts."""
    size = sys.getsizeof(value)
    if isinstance(value, dict | list | tuple) and value:
        parts = islice(value.items() if isinstance(value, dict) else value, _PARTS)
        sampled = min(len(value), _PARTS)
        return size + sum(map(_size, parts)) * len(value) // sampled
    return size


def blocks(key_group_range: KeyGroupRange) -> Iterator[KeyGroupRange]:
    """Split the range into blocks of key groups that are rewritten together."""
    start = key_group_range.start
    while start <= key_group_range.end:
        end = min(start // BLOCK * BLOCK + BLOCK - 1, key_group_range.end)
        yield KeyGroupRange(start, end)
        start = end + 1


CLOCK_STEP_MS: Final = 60_000
"""How long an expired entry is kept: a clock set back by less than this does no harm."""

MIN_LOOKED_AT: Final = 4_096
LOOKED_AT_PER_CHANGE: Final = 2
"""
Entries that a batch may look at: so many for each entry that was changed, but never fewer than the
minimum.  A round over n entries is done by the time n / 2 were changed, so dead entries are at
most about half as many as live ones.
"""


def choose_groups(
    candidates: Mapping[int, tuple[int, int]], credit: int, now_ms: int
) -> tuple[list[int], int]:
    """
    Return the key groups to scan now, and the remaining credit.

    The longest due are first.  A key group too large for the credit waits until enough is saved up,
    so that the work of many small batches is as bounded as the work of large ones.
    """
    chosen: list[int] = []
    due = sorted(
        (due_ms, key_group, entries)
        for key_group, (due_ms, entries) in candidates.items()
        if due_ms <= now_ms and entries
    )
    for _, key_group, entries in due:
        if entries > credit:
            return chosen, credit
        credit -= entries
        chosen.append(key_group)
    return chosen, 0


class IncrementalExpiry:
    """Removes expired entries from the tables, a limited number in each batch."""

    def __init__(self, kinds: Sequence[StateKind], ttls_ms: Sequence[int | None]) -> None:
        expiring = [
            (state_id, kind.rules, ttl_ms)
            for state_id, (kind, ttl_ms) in enumerate(zip(kinds, ttls_ms, strict=True))
            if ttl_ms is not None
        ]
        self._expiring = [(state_id, kind) for state_id, kind, _ in expiring]
        self._shortest_ms = min((ttl_ms for _, _, ttl_ms in expiring), default=0)
        self._credit = 0

    def expire(self, groups: Mapping[int, KeyGroupState], now_ms: int) -> int:
        """Scan some of *groups* and return how many entries were removed."""
        if not self._expiring or now_ms < 0:
            return 0
        candidates = {}
        changed = 0
        for key_group, group in groups.items():
            # The allowance grows with the changes, so that the work is a bounded part of a batch.
            changed += group.folded
            group.folded = 0
            entries = sum(len(group.tables[state_id]) for state_id, _ in self._expiring)
            candidates[key_group] = group.expiry_due_ms, entries
        self._credit += max(MIN_LOOKED_AT, LOOKED_AT_PER_CHANGE * changed)
        chosen, self._credit = choose_groups(candidates, self._credit, now_ms)
        return sum(self._expire_group(groups[key_group], now_ms) for key_group in chosen)

    def _expire_group(self, group: KeyGroupState, now_ms: int) -> int:
        until_ms = now_ms - CLOCK_STEP_MS
        # What is written from now on expires a time to live after now, or later.
        earliest = now_ms + self._shortest_ms
        removed = 0
        for state_id, kind in self._expiring:
            count, next_expiry = _remove_expired(group.tables[state_id], kind, until_ms)
            removed += count
            if next_expiry is not None:
                earliest = min(earliest, next_expiry)
        group.expiry_due_ms = earliest + CLOCK_STEP_MS
        return removed


def _remove_expired(table: Table, kind: AnyKind, until_ms: int) -> tuple[int, int | None]:
    """Remove entries that expired by *until_ms*; return their number and the next expiry time."""
    times_of = kind.expiry_times
    live = kind.live_cell
    removed = 0
    earliest: int | None = None
    changed: Table = {}
    for key, cell in table.items():
        times = times_of(cell)
        first = min(times, default=until_ms)
        if first <= until_ms:
            # Collected first: a dict must not change while it is looked through.
            cell = changed[key] = live(cell, until_ms)
            live_times = times_of(cell) if cell else ()
            removed += len(times) - len(live_times)
            if not live_times:
                continue
            first = min(live_times)
        earliest = first if earliest is None else min(earliest, first)
    for key, cell in changed.items():
        if cell:
            table[key] = cell
        else:
            del table[key]
    return removed, earliest


def without_expired(table: Table, kind: StateKind, now_ms: int) -> Table:
    """Return a copy of *table* without the entries that expired long before *now_ms*."""
    until_ms = now_ms - CLOCK_STEP_MS
    live = kind.rules.live_cell
    cells = ((key, live(cell, until_ms)) for key, cell in table.items())
    return {key: cell for key, cell in cells if cell}
