"""
Timers: a set of times in milliseconds for each key.

A cell is an ascending tuple of times.  A delta is all times of the key, ascending; an empty one
removes them.  A `TimerTable` finds the timers that are due without a look at the others.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.arguments import whole_number
from statelog.errors import check
from statelog.state.kinds.kind import (
    OP_CLEAR,
    OP_SET,
    Entry,
    EntryCodec,
    FromPython,
    Key,
    Kind,
    Migration,
    Operations,
    RowNumbers,
    Table,
    Times,
    cell_of_element,
    lists_of_lengths,
)

TimerCell = tuple[int, ...]
_MANY: Final = 16
"""From this number on, the timers of a key are looked up in a set."""

_Hint = tuple[int, int, Key]
"""A time, and a key that may have a timer then.  The number decides between equal times, because keys may not be
orderable."""
FIRES_COLUMN: Final = "fires_at_ms"

_TIMES: Final = pa.list_(pa.int64())
_VALUE_SCHEMA: Final = pa.schema([("times", _TIMES)])


class TimerKind(Kind[TimerCell, Sequence[int]]):
    """The kind of state that stores the times of a key's timers."""

    name = "timer"
    replaces = True
    fires = True
    row_columns = (FIRES_COLUMN,)
    order_column = FIRES_COLUMN

    def value_schema(self, declared: pa.Schema) -> pa.Schema:
        """Return the schema of a list of times; timers do not declare fields."""
        return _VALUE_SCHEMA

    def new_table(self) -> TimerTable:
        """Return an empty table of timers."""
        return TimerTable()

    def clear_delta(self) -> TimerCell:
        """Return a delta that removes all timers."""
        return ()

    def replacing_delta(self, cell: TimerCell) -> TimerCell:
        """Return the times themselves, which also serve as the delta."""
        return cell

    def copy_delta(self, delta: Sequence[int]) -> list[int]:
        """Copy the times to a list, which a task's timers can change in place."""
        return list(delta)

    def fold(self, table: dict[Key, TimerCell], deltas: Mapping[Key, Sequence[int]]) -> None:
        """Replace the timers of each key."""
        timer_table(table).fold(deltas)

    def merge(
        self, table: dict[Key, TimerCell], deltas: Mapping[Key, Sequence[int]]
    ) -> dict[Key, TimerCell]:
        """Return a copy of *table* with *deltas* applied."""
        merged = TimerTable(table)
        merged.fold(deltas)
        return merged

    def remove(self, table: dict[Key, TimerCell], key: Key) -> None:
        """Remove the timers of *key*, if any."""
        timer_table(table).fold({key: ()})

    def insert_cells(
        self,
        tables: Mapping[int, dict[Key, TimerCell]],
        cells: Iterable[tuple[int, Key, TimerCell | None]],
    ) -> None:
        """Store decoded cells, and add their times to the indexes of the tables."""
        deltas: dict[int, dict[Key, TimerCell]] = {key_group: {} for key_group in tables}
        for key_group, key, cell in cells:
            if cell:
                deltas[key_group][key] = cell
        for key_group, cells_of_group in deltas.items():
            timer_table(tables[key_group]).fold(cells_of_group)

    def operations(self, deltas: Mapping[Key, Sequence[int]]) -> Operations:
        """Return one operation per key."""
        entries: list[Entry | None] = [
            (list(times),) if times else None for times in deltas.values()
        ]
        ops = [OP_CLEAR if entry is None else OP_SET for entry in entries]
        return Operations(list(deltas), ops, entries, [])

    def deltas(self, operations: Operations) -> dict[Key, Sequence[int]]:
        """Return all times of each key."""
        keys, ops, entries, _ = operations
        return {
            key: () if op == OP_CLEAR or entry is None else tuple(entry[0])
            for key, op, entry in zip(keys, ops, entries, strict=True)
        }

    def operation_cells(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field]) -> pa.Array:
        """Encode operations as lists of times; see `Kind.operation_cells`."""
        return columns[0]

    def encode_cells(self, codec: EntryCodec, cells: Sequence[TimerCell | None]) -> pa.Array:
        """Encode timers as a column of lists of times."""
        return pa.array([None if cell is None else list(cell) for cell in cells], _TIMES)

    def decode_cells(self, codec: EntryCodec, column: pa.Array) -> list[TimerCell | None]:
        """Decode the timers in a column of lists of times."""
        return [None if cell is None else tuple(cell) for cell in column.to_pylist()]

    def row_fields(self, codec: EntryCodec) -> list[pa.Field]:
        """Return the single field of a row: the time of a timer."""
        return [pa.field(FIRES_COLUMN, pa.int64())]

    def rows(self, column: pa.Array) -> tuple[RowNumbers, list[pa.Array]]:
        """Return a row for each timer."""
        return cell_of_element(column), [column.flatten()]

    def cells_of_rows(
        self, parents: RowNumbers, columns: Sequence[pa.Array], keys: int, kind: pa.DataType
    ) -> pa.Array:
        """Rebuild timers from rows; if a time occurs twice for a key, it counts once."""
        times = columns[0].to_numpy()
        first = np.ones(len(times), np.bool_)
        # The rows are sorted, so equal ones are neighbours.
        first[1:] = (np.diff(parents) != 0) | (np.diff(times) != 0)
        counts = np.bincount(parents[first], minlength=keys)
        return lists_of_lengths(counts, pa.array(times[first]), kind)

    def from_python(self, state: Any, convert: FromPython, expiry: Any = None) -> TimerCell:
        """Sort a list of times."""
        return tuple(sorted({whole_number(time, "a timer") for time in state}))

    def to_python(self, cell: TimerCell, entry: Callable[[Entry], object]) -> list[int]:
        """Return the times as a list."""
        return list(cell)

    def from_items(self, items: Sequence[int]) -> list[int]:
        """Return the times in ascending order."""
        return sorted(items)

    def migrate_deltas(
        self, deltas: dict[Key, Sequence[int]], migrate: Migration
    ) -> dict[Key, Sequence[int]]:
        """Return *deltas* unchanged: a time is the same in every schema."""
        return deltas

    def migrate_cell(self, cell: TimerCell, migrate: Migration) -> TimerCell:
        """Return *cell* unchanged: a time is the same in every schema."""
        return cell


class TimerTable(dict[Key, TimerCell]):
    """
    The timers of one key group, with an index of their times.

    The index is an array heap of hints, made when it is first needed; what counts is the dict.
    """

    __slots__ = ("_count", "_heap", "_numbers")

    def __init__(self, cells: Mapping[Key, TimerCell] | None = None) -> None:
        super().__init__(cells or {})
        self._heap: list[_Hint] | None = None
        self._count = 0
        self._numbers = itertools.count()

    def fold(self, deltas: Mapping[Key, Sequence[int]]) -> None:
        """Replace the timers of each key; an empty sequence removes them."""
        heap = self._heap
        for key, times in deltas.items():
            before = self.get(key, ())
            if times:
                self[key] = tuple(times)
            else:
                self.pop(key, None)
            # The count of timers in the dict: it tells when the heap has too many stale hints.
            self._count += len(times) - len(before)
            if heap is None:
                continue
            # A removed timer stays in the heap: `due` and `first` look into the dict before they
            # believe it.
            old_times = before if len(before) < _MANY else frozenset(before)
            for time in times:
                if time not in old_times:
                    heapq.heappush(heap, (time, next(self._numbers), key))

    def due(self, until_ms: int) -> Iterator[tuple[int, Key]]:
        """
        Yield (time, key) for the timers up to *until_ms*, in no particular order.

        The timers due cost time, the others do not: the heap is walked from its root.
        """
        heap = self._index()
        seen: set[tuple[int, Key]] = set()
        pending = [0] if heap else []
        # A node of a heap is not later than its children, so a subtree ends at the first later
        # node.
        while pending:
            index = pending.pop()
            time, _, key = heap[index]
            if time > until_ms:
                continue
            pending += [child for child in (2 * index + 1, 2 * index + 2) if child < len(heap)]
            if (time, key) not in seen and holds_time(self.get(key, ()), time):
                seen.add((time, key))
                yield time, key

    def first(self, changed: Collection[Key]) -> int | None:
        """
        Return the earliest timer of any key not in *changed*, or None.

        Only the timers before it cost time.
        """
        heap = self._index()
        while heap and not holds_time(self.get(heap[0][2], ()), heap[0][0]):
            heapq.heappop(heap)  # the timer was removed; a fold that adds it adds a new hint
        first: int | None = None
        pending = [0] if heap else []
        while pending:
            index = pending.pop()
            time, _, key = heap[index]
            if first is not None and time >= first:
                continue
            if key not in changed and holds_time(self.get(key, ()), time):
                first = time
            else:
                pending += [child for child in (2 * index + 1, 2 * index + 2) if child < len(heap)]
        return first

    def _index(self) -> list[_Hint]:
        heap = self._heap
        if heap is None:  # the cells may have been put in without a fold
            self._count = sum(map(len, self.values()))
        # Made again once most of it is stale.
        if heap is None or len(heap) > 64 + 2 * self._count:
            heap = [
                (time, next(self._numbers), key) for key, times in self.items() for time in times
            ]
            heapq.heapify(heap)
            self._heap = heap
        return heap


def timer_table(table: Table) -> TimerTable:
    """Cast the table of a timer variable to the type `TimerTable`."""
    check(isinstance(table, TimerTable), "only timers have an index of times")
    return table  # type: ignore[return-value]


def holds_time(times: Sequence[int], time: int) -> bool:
    """Return whether *time* is among *times*, which are in ascending order."""
    index = bisect.bisect_left(times, time)
    return index < len(times) and times[index] == time


def first_times(
    column: pa.Array, rows: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], Times]:
    """Return the rows of a column that have timers, and the earliest timer of each."""
    starts = column.offsets.to_numpy()
    present = np.flatnonzero((np.diff(starts) > 0) & rows)
    return present, column.values.to_numpy()[starts[present]]
