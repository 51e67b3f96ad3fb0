"""
The tables of state, and what a micro-batch changes in them.

State lives in dicts, one per variable and key group, at a *version*: the checkpoint up to which
they are complete.  A micro-batch never writes into them.  It fills an *overlay* of deltas, which
goes to the log; only when the checkpoint is known to be committed is the overlay folded into the
tables.  An attempt that failed is forgotten by dropping its overlay, and a worker that missed a
batch folds in the deltas it reads from the log: both ways are one function, `fold`.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from statelog.state.schema.descriptors import StateKind

Key = tuple[Any, ...]
Values = tuple[Any, ...]
Table = dict[Key, Any]
"""Value: tuple | (expires_at_ms, tuple).  List: list of those.  Map: dict user key -> those, in
the order of their last write.  Timers: ascending tuple of milliseconds."""


class ListDelta:
    """
    What happened to one list: *tail* was appended, to nothing if *replaced*.

    Args:
        replaced: Whether the list before is gone.
    """

    __slots__ = ("replaced", "tail")

    def __init__(self, replaced: bool = False) -> None:
        self.replaced = replaced
        self.tail: list[Any] = []


class MapDelta:
    """
    What happened to one map: *entries* were set (or removed, None), on nothing if *cleared*.

    Args:
        cleared: Whether the map before is gone.
    """

    __slots__ = ("cleared", "entries")

    def __init__(self, cleared: bool = False) -> None:
        self.cleared = cleared
        self.entries: dict[Key, Any] = {}


Overlay = list[dict[Key, Any]]
"""By state id: key -> delta.  Value: the new value or None.  Timers: all of them, ascending."""


def nothing(kind: StateKind) -> Any:
    """Return the delta that removes what a key has of a variable."""
    match kind:
        case StateKind.VALUE:
            return None
        case StateKind.LIST:
            return ListDelta(replaced=True)
        case StateKind.MAP:
            return MapDelta(cleared=True)
        case StateKind.TIMER:
            return ()


class KeyGroupState:
    """
    All state of one key group.

    Args:
        kinds: Kind of each variable, by state id.
        version: Checkpoint up to which the tables are complete; -1 for none.

    Attributes: `folded`: deltas folded in since the last look for expired entries;
    `sweep_due_ms`: before this time no entry can be one.
    """

    __slots__ = (
        "_timer_count",
        "_timer_heap",
        "folded",
        "kinds",
        "sweep_due_ms",
        "tables",
        "version",
    )

    def __init__(self, kinds: Sequence[StateKind], version: int = -1) -> None:
        self.kinds = kinds
        self.tables: list[Table] = [{} for _ in kinds]
        self.version = version
        self.folded = 0
        self.sweep_due_ms = -1
        self._timer_heap: list[tuple[int, _Opaque]] | None = None
        self._timer_count = 0

    def fold(self, overlay: Overlay) -> None:
        """Bring the tables forward by *overlay*."""
        for state_id, deltas in enumerate(overlay):
            if deltas:
                self.folded += len(deltas)
                self._fold_one(state_id, deltas)

    def remove(self, key: Key) -> None:
        """Take all that a key has out of the tables."""
        for state_id, table in enumerate(self.tables):
            if key in table:
                if self.kinds[state_id] is StateKind.TIMER:
                    self._fold_timers(table, {key: ()})
                else:
                    del table[key]

    def _fold_one(self, state_id: int, deltas: dict[Key, Any]) -> None:
        table = self.tables[state_id]
        match self.kinds[state_id]:
            case StateKind.VALUE:
                _fold_values(table, deltas)
            case StateKind.LIST:
                _fold_lists(table, deltas)
            case StateKind.MAP:
                _fold_maps(table, deltas)
            case StateKind.TIMER:
                self._fold_timers(table, deltas)

    def _fold_timers(self, table: Table, deltas: dict[Key, Sequence[int]]) -> None:
        heap = self._timer_heap
        for key, times in deltas.items():
            before = table.get(key, ())
            self._timer_count += len(times) - len(before)
            if times:
                table[key] = tuple(times)
            else:
                table.pop(key, None)
            if heap is not None:
                for time in set(times).difference(before):
                    heapq.heappush(heap, (time, _Opaque(key)))

    def timers_due(self, state_id: int, until_ms: int) -> Iterator[tuple[int, Key]]:
        """
        Yield (time, key) of the folded timers at or before *until_ms*, in no order.

        The cost is that of the timers due, not of all: an array heap is walked from its root.  Its
        entries are hints; what counts is the table.
        """
        table = self.tables[state_id]
        heap = self._heap(table)
        seen: set[tuple[int, Key]] = set()
        pending = [0] if heap else []
        while pending:
            index = pending.pop()
            time, opaque = heap[index]
            if time > until_ms:
                continue
            pending += [child for child in (2 * index + 1, 2 * index + 2) if child < len(heap)]
            key = opaque.key
            if (time, key) not in seen and holds_time(table.get(key, ()), time):
                seen.add((time, key))
                yield time, key

    def first_timer(self, state_id: int, changed: Collection[Key]) -> int | None:
        """
        Return the earliest folded timer of the keys that are not in *changed*, or None.

        The cost is that of the timers before it.
        """
        table = self.tables[state_id]
        heap = self._heap(table)
        while heap and not holds_time(table.get(heap[0][1].key, ()), heap[0][0]):
            heapq.heappop(heap)  # the timer is gone; if it comes again, a fold brings a new hint
        first: int | None = None
        pending = [0] if heap else []
        while pending:
            index = pending.pop()
            time, opaque = heap[index]
            if first is not None and time >= first:
                continue
            if opaque.key not in changed and holds_time(table.get(opaque.key, ()), time):
                first = time
            else:
                pending += [child for child in (2 * index + 1, 2 * index + 2) if child < len(heap)]
        return first

    def _heap(self, table: Table) -> list[tuple[int, _Opaque]]:
        heap = self._timer_heap
        if heap is None:  # the table may have been put in whole, by a snapshot
            self._timer_count = sum(map(len, table.values()))
        if heap is None or len(heap) > 64 + 2 * self._timer_count:
            heap = [(time, _Opaque(key)) for key, times in table.items() for time in times]
            heapq.heapify(heap)
            self._timer_heap = heap
        return heap


def holds_time(times: Sequence[int], time: int) -> bool:
    """Return whether *time* is one of the ascending *times*."""
    at = bisect.bisect_left(times, time)
    return at < len(times) and times[at] == time


class _Opaque:
    """A key in a heap entry that never takes part in comparisons (keys may not be orderable)."""

    __slots__ = ("key",)

    def __init__(self, key: Key) -> None:
        self.key = key

    def __lt__(self, other: _Opaque) -> bool:
        return False


def _fold_values(table: Table, deltas: dict[Key, Any]) -> None:
    if None in deltas.values():
        for key, value in deltas.items():
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
    else:
        table.update(deltas)


def _fold_lists(table: Table, deltas: dict[Key, ListDelta]) -> None:
    for key, delta in deltas.items():
        if delta.replaced or key not in table:
            if delta.tail:
                table[key] = list(delta.tail)
            else:
                table.pop(key, None)
        else:
            table[key].extend(delta.tail)


def _fold_maps(table: Table, deltas: dict[Key, MapDelta]) -> None:
    for key, delta in deltas.items():
        entries = {} if delta.cleared else table.get(key, {})
        for user_key, value in delta.entries.items():
            # Popped first: entries stand in the order of their last write, on every way.
            entries.pop(user_key, None)
            if value is not None:
                entries[user_key] = value
        if entries:
            table[key] = entries
        else:
            table.pop(key, None)


def merged(base: Table, deltas: dict[Key, Any], kind: StateKind) -> Table:
    """Return *base* with *deltas* folded in, leaving both as they are (for a snapshot)."""
    group = KeyGroupState((kind,))
    copy = dict(base)
    for key in deltas:  # only what a fold would change in place needs a copy of its own
        value = copy.get(key)
        if isinstance(value, list):
            copy[key] = list(value)
        elif isinstance(value, dict):
            copy[key] = dict(value)
    group.tables[0] = copy
    group.fold([deltas])
    return copy
