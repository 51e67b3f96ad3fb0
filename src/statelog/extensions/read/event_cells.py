"""
The cells of one variable before and after each event, computed in columns.

For a kind whose deltas replace the cell (see `Kind.replaces`) a cell is the last operation up to
the event.  For lists and maps it is a span of elements, after the last operation that cleared them.
Cells become objects only when `cells` is asked for some events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.extensions.read.joining import lengths_of, numbered_keys, stable_order
from statelog.format.arrow_limits import joined_arrays, take_rows
from statelog.state.encoding.deltas import StateCodec
from statelog.state.keys.key_hash import hash_columns
from statelog.state.kinds.kind import OP_ADD_ELEMENT, OP_CLEAR, OP_PUT, RowNumbers, Times

NO_ROW: Final = -1


@dataclass(frozen=True, slots=True)
class Operations:
    """
    The operations of one variable in a window, in log order.

    Args:
        batch: In the columns of `StateCodec`, of the present schema.
        key_groups: Of each operation.
        checkpoints: Of each operation, the index of its checkpoint in the window; ascending.
    """

    batch: pa.RecordBatch
    key_groups: npt.NDArray[np.int32]
    checkpoints: npt.NDArray[np.int64]


class EventCells(Protocol):
    """The cells of one variable before and after each event."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the number of elements that each event refers to."""
        ...

    def cells(self, events: RowNumbers, after: bool, times: Times | None) -> pa.Array:
        """Return the cells of *events*, without elements that expired by *times*."""
        ...


_Spans: TypeAlias = tuple[RowNumbers, RowNumbers]
"""The start and the end of each event's span."""


def event_cells(
    state: StateCodec,
    column: pa.Array,
    base_rows: RowNumbers,
    operations: tuple[Operations, RowNumbers] | None,
    key_of: RowNumbers,
) -> EventCells:
    """
    Return the cells of a variable.

    Args:
        state: The variable.
        column: Its cells at the beginning.
        base_rows: By key number, the row in *column*; -1 for none.
        operations: What was done to it, and the event of each operation; None for nothing.
        key_of: The key number of each event, ascending; events of one key are in their order.
    """
    if operations is None:
        return _Untouched(state, column, base_rows[key_of])
    kind = _Replaced if state.kind.replaces else _Gathered
    return kind(state, column, base_rows, operations, key_of)


class _Untouched:
    """A variable that none of the window's checkpoints changed."""

    def __init__(self, state: StateCodec, column: pa.Array, rows: RowNumbers) -> None:
        self._state = state
        self._column = column
        self._rows = rows

    def sizes(self) -> npt.NDArray[np.int64]:
        return _list_sizes(self._column, self._rows)

    def cells(self, events: RowNumbers, after: bool, times: Times | None) -> pa.Array:
        return _live(self._state, _taken(self._state, self._column, self._rows[events]), times)


class _Replaced:
    """A variable whose operations replace the whole cell."""

    def __init__(
        self,
        state: StateCodec,
        column: pa.Array,
        base_rows: RowNumbers,
        operations: tuple[Operations, RowNumbers],
        key_of: RowNumbers,
    ) -> None:
        self._state = state
        batch = operations[0].batch
        events = operations[1]
        width = len(state.key.schema)
        cleared = batch.column(width).to_numpy() == OP_CLEAR
        # All cells in one column: first the cells at the beginning, then what the operations set.
        cells = state.kind.operation_cells(batch.columns[width + 1 :], state.entry_fields())
        self._column = joined_arrays([column, cells.cast(column.type)], _what(state))
        # The row that an event makes the cell of its key, if it changes this variable.
        # For an index that is assigned twice, numpy keeps the last value: the last operation.
        source = np.full(len(key_of), NO_ROW, np.int64)
        source[events] = np.where(cleared, NO_ROW, len(column) + np.arange(len(cleared)))
        touched = np.zeros(len(key_of), np.bool_)
        touched[events] = True
        # After an event: the row of the last event of its key that changed the variable, else the
        # row at the beginning.  Before an event: the same after the event before it.
        numbers = np.arange(len(key_of))
        first = _first_of_key(key_of)
        last = np.maximum.accumulate(np.where(touched, numbers, NO_ROW))
        self._after = np.where(last >= first, source[last], base_rows[key_of])
        self._before = np.where(first == numbers, base_rows[key_of], np.roll(self._after, 1))

    def sizes(self) -> npt.NDArray[np.int64]:
        return _list_sizes(self._column, self._after)

    def cells(self, events: RowNumbers, after: bool, times: Times | None) -> pa.Array:
        rows = self._after if after else self._before
        return _live(self._state, _taken(self._state, self._column, rows[events]), times)


class _Gathered:
    """
    A variable whose operations add elements to a cell or remove them, such as a map.

    The elements of each key stand one after the other: those at the beginning, then those that
    operations added.  The cell at an event is a span of them, without those that a later element
    of the span replaced::

        place      0    1    2       3    4          0, 1: the list of a key at the beginning
        element    x    y    z     clear  w          2: event 0 adds z;  3, 4: event 1 sets [w]

        event 0    before [0, 2)   after [0, 3)
        event 1    before [0, 3)   after [4, 5)      after the last place that clears
    """

    def __init__(
        self,
        state: StateCodec,
        column: pa.Array,
        base_rows: RowNumbers,
        operations: tuple[Operations, RowNumbers],
        key_of: RowNumbers,
    ) -> None:
        self._state = state
        self._type = column.type
        batch = operations[0].batch
        events = operations[1]
        width = len(state.key.schema)
        ops = batch.column(width).to_numpy()
        element = column.type.value_type
        added = state.kind.operation_elements(batch.columns[width + 1 :], element)
        # 1. All elements in one column: those at the beginning, then those that operations add.
        lengths = lengths_of(column)
        before = column.flatten()
        self._elements = joined_arrays([before, added], _what(state))
        # 2. The key and the event of each element, and their order: by key, then by event.
        owners = np.full(len(column), NO_ROW, np.int64)
        owners[base_rows[base_rows >= 0]] = np.flatnonzero(base_rows >= 0)
        keys = np.concatenate([np.repeat(owners, lengths), key_of[events]])
        event_of = np.concatenate([np.full(len(before), NO_ROW), events])
        self._order = stable_order(keys + 1)
        keys = keys[self._order]
        event_of = event_of[self._order]
        kinds = np.concatenate([np.full(len(before), OP_ADD_ELEMENT), ops])[self._order]
        self._added = (kinds == OP_ADD_ELEMENT) | (kinds == OP_PUT)
        # 3. Where the elements of each event begin and end, before and after it.
        self._spans = _spans_of(keys, event_of, kinds == OP_CLEAR, key_of)
        # 4. What a span does not show: elements that a later one replaced, and expired ones.
        self._next = self._replaced_at(keys)
        self._expiry: Times | None = None
        if state.expires:
            expiry = state.kind.element_expiry(self._elements).fill_null(0).to_numpy()
            self._expiry = expiry[self._order]

    def _replaced_at(self, keys: RowNumbers) -> RowNumbers | None:
        """Return, for each position, the next position with the same map key."""
        columns = self._state.kind.element_keys(self._elements)
        codec = self._state.user_key
        if columns is None or codec is None:
            return None
        numbers, rows = numbered_keys(columns, hash_columns(columns, codec.schema), codec.decode)
        codes = keys * (len(rows) + 1) + numbers[self._order]
        order = stable_order(codes + len(rows) + 1)
        following = np.full(len(keys), len(keys), np.int64)
        same = np.flatnonzero(codes[order[1:]] == codes[order[:-1]])
        following[order[same]] = order[same + 1]
        return following

    def sizes(self) -> npt.NDArray[np.int64]:
        start, end = self._spans[1]
        sizes: npt.NDArray[np.int64] = end - start
        return sizes

    def cells(self, events: RowNumbers, after: bool, times: Times | None) -> pa.Array:
        # The places of all elements in the spans of the events, and the event of each.
        start, end = (bounds[events] for bounds in self._spans[after])
        lengths = end - start
        owners = np.repeat(np.arange(len(events)), lengths)
        offsets = np.cumsum(lengths) - lengths
        places = np.arange(len(owners)) - np.repeat(offsets - start, lengths)
        # Without removals, without those that a later element replaced, without expired ones.
        keep = self._added[places]
        if self._next is not None:
            keep &= self._next[places] >= end[owners]
        if times is not None and self._expiry is not None:
            keep &= self._expiry[places] > times[owners]
        places = places[keep]
        counts = np.bincount(owners[keep], minlength=len(events))
        bounds = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(bounds),
            take_rows(self._elements, pa.array(self._order[places]), _what(self._state)),
            type=self._type,
            mask=pa.array(counts == 0),
        )


def _spans_of(
    keys: RowNumbers, event_of: RowNumbers, is_clear: npt.NDArray[np.bool_], key_of: RowNumbers
) -> list[_Spans]:
    """
    Return the spans of elements before and after each event.

    Args:
        keys: The key number of each element, ascending.
        event_of: The event of each element, ascending for a key; -1 at the beginning.
        is_clear: Which elements stand for an operation that cleared the cell.
        key_of: The key number of each event, ascending.
    """
    # Key and event as one number: events and elements are sorted alike, so one search finds both.
    size = len(key_of) + 1
    codes = keys * size + (event_of + 1)
    limits = key_of * size + (np.arange(len(key_of)) + 1)
    starts = np.searchsorted(codes, key_of * size)
    # By place, the end of the last clearing before it: a span begins there, if it is of its key.
    clears = np.maximum.accumulate(np.where(is_clear, np.arange(1, len(event_of) + 1), 0))
    clears = np.concatenate(([0], clears))
    # Before an event the span ends at its first operation, after it at its last one.
    ends = (np.searchsorted(codes, limits), np.searchsorted(codes, limits, side="right"))
    return [(np.maximum(starts, clears[end]), end) for end in ends]


def _first_of_key(key_of: RowNumbers) -> RowNumbers:
    """Return, for each event, the first event of the same key."""
    starts = np.flatnonzero(np.diff(key_of, prepend=NO_ROW))
    return np.repeat(starts, np.diff(starts, append=len(key_of)))


def _taken(state: StateCodec, column: pa.Array, rows: RowNumbers) -> pa.Array:
    return take_rows(column, pa.array(rows, mask=rows == NO_ROW), _what(state))


def _what(state: StateCodec) -> str:
    return f"state {state.descriptor.name!r} before and after its changes"


def _live(state: StateCodec, column: pa.Array, times: Times | None) -> pa.Array:
    """Return cells without the elements that have expired by the time of each cell."""
    if times is None:
        return column
    if pa.types.is_list(column.type):
        times = np.repeat(times, lengths_of(column))
    return state.kind.live_column(column, times)


def _list_sizes(column: pa.Array, rows: RowNumbers) -> npt.NDArray[np.int64]:
    """Return the number of elements in the cells at *rows*."""
    if not pa.types.is_list(column.type):
        return np.zeros(len(rows), np.int64)
    sizes = np.concatenate((lengths_of(column), [0]))
    return sizes[rows]  # the last one is that of no row
