"""
Entries whose time to live is over: leaving them out of snapshots, and removing them from memory.

An expired entry is hidden from every read at once, so when it is removed only matters for memory.
Nothing is written to the log for it, and a replay that brings it back shows the same state.  It is
kept for a minute more: after a clock was set back a little, all processes still have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from statelog.state.heap.tables import KeyGroupState
from statelog.state.kinds import AnyKind, StateKind, Table

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
    Return the key groups to look through now, and the credit left.

    The longest due are first.  A key group too large for the credit waits until
    enough is saved up, so that the work of many small batches is as bounded as the work of large ones.
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
    """Remove expired entries from the tables, a bounded part in each batch."""

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
        """Look through some of *groups* and return how many entries were removed."""
        if not self._expiring or now_ms < 0:
            return 0
        candidates = {}
        changed = 0
        for key_group, group in groups.items():
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
            count, left = _remove_expired(group.tables[state_id], kind, until_ms)
            removed += count
            if left is not None:
                earliest = min(earliest, left)
        group.expiry_due_ms = earliest + CLOCK_STEP_MS
        return removed


def _remove_expired(table: Table, kind: AnyKind, until_ms: int) -> tuple[int, int | None]:
    """Remove what expired by *until_ms*; return how many, and the next expiry."""
    times_of, live = kind.expiry_times, kind.live_cell
    removed = 0
    earliest: int | None = None
    changed: Table = {}
    for key, cell in table.items():
        times = times_of(cell)
        first = min(times, default=until_ms)
        if first <= until_ms:
            cell = changed[key] = live(cell, until_ms)
            left = times_of(cell) if cell else ()
            removed += len(times) - len(left)
            if not left:
                continue
            first = min(left)
        earliest = first if earliest is None else min(earliest, first)
    for key, cell in changed.items():
        if cell:
            table[key] = cell
        else:
            del table[key]
    return removed, earliest


def without_expired(table: Table, kind: StateKind, now_ms: int) -> Table:
    """Return *table* without what expired long before *now_ms*; it stays as it is."""
    until_ms = now_ms - CLOCK_STEP_MS
    live = kind.rules.live_cell
    cells = ((key, live(cell, until_ms)) for key, cell in table.items())
    return {key: cell for key, cell in cells if cell}
