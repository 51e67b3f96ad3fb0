"""
What the changes of some checkpoints did to the keys of some key groups, computed in columns.

An *event* is a key and a checkpoint that changed it.  For every event the state of the key before
and after it is found at once, without a Python object for any of them: operations and the state at
the beginning are numbered by key, sorted, and each event refers to a place in that order.  For a
kind whose deltas replace the cell (see `Kind.replaces`) that is the last operation up to the event;
for lists and maps it is a span of elements, after the last operation that cleared them.

The cells of one variable before and after all events are computed when an object for them is made.
`LoggedOperations` collects the operations that the log holds, in the columns of the present schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.extensions.read.joining import (
    any_valid,
    change_words,
    equal_rows,
    lengths_of,
    numbered,
    numbered_keys,
    stable_order,
)
from statelog.format.arrow_limits import joined_arrays, joined_batches, take_rows
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.keys.key_hash import Hashes, hash_columns
from statelog.state.kinds.kind import OP_ADD_ELEMENT, OP_CLEAR, OP_PUT, RowNumbers, Times

NO_ROW: Final = -1

EVENTS: Final = 65_536
"""Rows of a batch of events."""
_FILTER_BITS: Final = 22
"""Bits of a hash by which rows are passed over: 4 MiB of marks."""
_ELEMENTS: Final = 1_000_000
"""Elements that the events of a batch may refer to, if they are more than one event."""


@dataclass(frozen=True, slots=True)
class Operations:
    """
    The operations of one variable in a window, in the order of the log.

    Args:
        batch: In the columns of `StateCodec`, of the present schema.
        key_groups: Of each operation.
        checkpoints: Of each operation, the index of its checkpoint in the window; ascending.
    """

    batch: pa.RecordBatch
    key_groups: npt.NDArray[np.int32]
    checkpoints: npt.NDArray[np.int64]


class EventCells(Protocol):
    """The cells of one variable before and after events."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return how many elements each event refers to."""
        ...

    def cells(self, events: RowNumbers, after: bool, times: Times | None) -> pa.Array:
        """Return the cells of *events*, without what expired by *times*."""
        ...


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
    """A variable that no checkpoint of the window changed."""

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
    A variable whose operations add elements to a cell, or remove some: a list or a map.

    The elements of each key stand one after the other: those at the beginning, then those that
    operations added.  The cell at an event is a span of them, without those that a later element
    of the span replaced.
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
        # All elements in one column: first the elements at the beginning, then what the operations add.
        lengths = lengths_of(column)
        before = column.flatten()
        elements = joined_arrays([before, added], _what(state))
        # The key and the event of each element, and their order: by key, then by event.
        owners = np.full(len(column), NO_ROW, np.int64)
        owners[base_rows[base_rows >= 0]] = np.flatnonzero(base_rows >= 0)
        keys = np.concatenate([np.repeat(owners, lengths), key_of[events]])
        event_of = np.concatenate([np.full(len(before), NO_ROW), events])
        self._order = stable_order(keys + 1)
        keys = keys[self._order]
        event_of = event_of[self._order]
        kinds = np.concatenate([np.full(len(before), OP_ADD_ELEMENT), ops])[self._order]
        self._added = (kinds == OP_ADD_ELEMENT) | (kinds == OP_PUT)
        self._elements = elements
        # Where the elements of each event begin and end: events and elements are sorted alike.
        # A span begins after the last operation that cleared the cell.
        number = np.arange(len(key_of))
        size = len(key_of) + 1
        codes = keys * size + (event_of + 1)
        starts = np.searchsorted(codes, key_of * size)
        clears = np.maximum.accumulate(
            np.where(kinds == OP_CLEAR, np.arange(1, len(event_of) + 1), 0)
        )
        clears = np.concatenate(([0], clears))
        limits = key_of * size + (number + 1)
        ends = (np.searchsorted(codes, limits), np.searchsorted(codes, limits, side="right"))
        self._spans = [(np.maximum(starts, clears[end]), end) for end in ends]
        self._next = self._replaced_at(keys)
        self._expiry: Times | None = None
        if state.expires:
            expiry = state.kind.element_expiry(elements).fill_null(0).to_numpy()
            self._expiry = expiry[self._order]

    def _replaced_at(self, keys: RowNumbers) -> RowNumbers | None:
        """Return for each place the next one with the same map key."""
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


def _first_of_key(key_of: RowNumbers) -> RowNumbers:
    """Return for each event the first event of its key."""
    starts = np.flatnonzero(np.diff(key_of, prepend=NO_ROW))
    return np.repeat(starts, np.diff(starts, append=len(key_of)))


def _taken(state: StateCodec, column: pa.Array, rows: RowNumbers) -> pa.Array:
    return take_rows(column, pa.array(rows, mask=rows == NO_ROW), _what(state))


def _what(state: StateCodec) -> str:
    return f"state {state.descriptor.name!r} before and after its changes"


def _live(state: StateCodec, column: pa.Array, times: Times | None) -> pa.Array:
    """Return cells without what has expired at the time of each."""
    if times is None:
        return column
    if pa.types.is_list(column.type):
        times = np.repeat(times, lengths_of(column))
    return state.kind.live_column(column, times)


def _list_sizes(column: pa.Array, rows: RowNumbers) -> npt.NDArray[np.int64]:
    """Return the number of elements of the cells at *rows*."""
    if not pa.types.is_list(column.type):
        return np.zeros(len(rows), np.int64)
    sizes = np.concatenate((lengths_of(column), [0]))
    return sizes[rows]  # the last one is that of no row


class LoggedOperations:
    """
    The operations of several checkpoints, in the order in which they are added.

    Args:
        codec: The operator's codec, into whose schema all is converted.
    """

    def __init__(self, codec: OperatorCodec) -> None:
        self._codec = codec
        self._reader = codec.reader()
        self._parts: dict[int, list[tuple[int, int, pa.RecordBatch]]] = {}

    def add(self, checkpoint: int, changes: pa.RecordBatch) -> None:
        """
        Add changes in the order of the log.

        Args:
            checkpoint: Index of the checkpoint in its window; not below that of the call before.
            changes: A batch of `read_change_batches`.

        Raises:
            CorruptionError: A change cannot be read.
            IncompatibleFormatError: It has a different format version.
        """
        batches = self._reader.batches(changes.column(0).to_pylist(), changes.column(1).to_pylist())
        for state_id, parts in self._reader.in_present_schema(batches).items():
            self._parts.setdefault(state_id, []).extend(
                (checkpoint, key_group, batch) for key_group, batch in parts
            )

    def operations(self) -> dict[int, Operations]:
        """Return the operations by state id."""
        operations = {}
        for state_id, parts in self._parts.items():
            name = self._codec.states[state_id].descriptor.name
            batch = joined_batches(
                (changes for _, _, changes in parts), f"changes of state {name!r},"
            )
            counts = [batch.num_rows for _, _, batch in parts]
            if batch.num_rows:
                operations[state_id] = Operations(
                    batch,
                    np.repeat(np.array([key_group for _, key_group, _ in parts], np.int32), counts),
                    np.repeat(
                        np.array([checkpoint for checkpoint, _, _ in parts], np.int64), counts
                    ),
                )
        return operations


class Window:
    """
    The events of some key groups in some checkpoints that follow one another.

    Args:
        layout: The columns of state.
        base: The state of these key groups before the first checkpoint, in columns of a snapshot.
        operations: By state id; variables that are not there did not change.
        times_ms: The time of each checkpoint, by which it is told what has expired.
    """

    def __init__(
        self,
        layout: RowLayout,
        base: pa.RecordBatch,
        operations: Mapping[int, Operations],
        times_ms: Sequence[int],
    ) -> None:
        self._layout = layout
        self._base = base
        self._times_ms = np.array(times_ms, np.int64)
        operations = {
            column: operations[column] for column in layout.columns if column in operations
        }
        self._operations = operations
        codec = layout.codec
        width = layout.first_state - 1
        parts = list(operations.values())
        batches = [logged.batch for logged in parts]
        # The keys: of the rows at the beginning that operations may touch, then of all operations.
        asked = np.concatenate([layout.hashes(batch.columns[:width]) for batch in batches])
        hashes = layout.hashes(base.columns[1 : 1 + width])
        touched = _rows_with(hashes, asked)
        before = base.take(pa.array(touched))
        self._keys = [
            joined_arrays([before.column(1 + number), *(batch.column(number) for batch in batches)])
            for number in range(width)
        ]
        self._key_groups = np.concatenate(
            [before.column(0).to_numpy(), *(logged.key_groups for logged in parts)]
        )
        numbers, self._rows = numbered_keys(
            self._keys, np.concatenate([hashes[touched], asked]), codec.key.decode
        )
        # An event as one number: first by key, then by checkpoint.  Operations of one key in one
        # checkpoint are one event.
        steps = len(times_ms)
        codes = []
        start = before.num_rows
        for logged in parts:
            codes.append(
                numbers[start : start + len(logged.checkpoints)] * steps + logged.checkpoints
            )
            start += len(logged.checkpoints)
        self._events, inverse = numbered(np.concatenate(codes))
        # The first operation of each event, as numpy keeps the last value that is assigned to an index.
        self._logged = np.empty(len(self._events), np.int64)
        self._logged[inverse[::-1]] = np.arange(len(inverse))[::-1]
        self._key_of = self._events // steps
        self._checkpoint_of = self._events % steps
        # The row at the beginning of each key, and which of these rows an event replaces.
        has_event = np.zeros(len(self._rows), np.bool_)
        has_event[self._key_of] = True
        self._replaced = touched[has_event[numbers[: before.num_rows]]]
        base_rows = np.full(len(self._rows), NO_ROW, np.int64)
        base_rows[numbers[: before.num_rows]] = np.arange(before.num_rows)
        # The cells of each variable before and after the events.
        self._variables: dict[int, EventCells] = {}
        first = 0
        for state_id, position in layout.columns.items():
            changes = None
            if state_id in operations:
                count = len(operations[state_id].checkpoints)
                changes = operations[state_id], inverse[first : first + count]
                first += count
            self._variables[state_id] = event_cells(
                codec.states[state_id], before.column(position), base_rows, changes, self._key_of
            )

    def __len__(self) -> int:
        return len(self._events)

    def batches(
        self, states: Sequence[int], schema: pa.Schema, ids: Sequence[int]
    ) -> Iterator[pa.RecordBatch]:
        """
        Yield the events in the order of checkpoints, as rows of a feed.

        Args:
            states: The variables to show.
            schema: `change`, `checkpoint_id`, the key group, the key, the variables before, after.
            ids: The id of each checkpoint of the window.
        """
        names = np.array(ids, np.int64)
        # Of a checkpoint in the order of its log, in which the cells after the events are stored.
        order = stable_order(self._checkpoint_of * (1 + self._logged.max()) + self._logged)
        for events in self._portions(order):
            times = self._times_ms[self._checkpoint_of[events]]
            before, after = (
                [self._cells(state_id, events, side, times) for state_id in states]
                for side in (False, True)
            )
            same = np.ones(len(events), np.bool_)
            for state_id, old, new in zip(states, before, after, strict=True):
                if state_id in self._operations:
                    same &= equal_rows(old, new)
            was = any_valid(before, len(events))
            there = any_valid(after, len(events))
            numbers = np.where(~was, 0, np.where(there, 1, 2)).astype(np.int8)
            rows = pa.array(self._rows[self._key_of[events]])
            columns = [
                change_words(numbers),
                pa.array(names[self._checkpoint_of[events]]),
                pa.array(self._key_groups[rows.to_numpy()]),
                *(column.take(rows) for column in self._keys),
                *before,
                *after,
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            if same.any():
                batch = batch.filter(pa.array(~same))
            if batch.num_rows:
                yield batch

    def state_after(self) -> pa.RecordBatch:
        """Return the state of the key groups after the last checkpoint, expired entries too."""
        last = np.flatnonzero(np.diff(self._key_of, append=NO_ROW))
        rows = pa.array(self._rows[self._key_of[last]])
        changed = [
            pa.array(self._key_groups[rows.to_numpy()]),
            *(column.take(rows) for column in self._keys),
        ]
        cells = [
            self._variables[state_id].cells(last, True, None) for state_id in self._layout.columns
        ]
        has_state = pa.array(any_valid(cells, len(last)))
        schema = self._base.schema
        new = pa.RecordBatch.from_arrays([*changed, *cells], schema=schema).filter(has_state)
        is_unchanged = np.ones(self._base.num_rows, np.bool_)
        is_unchanged[self._replaced] = False
        return pa.concat_batches([self._base.filter(pa.array(is_unchanged)), new])

    def _cells(self, state_id: int, events: RowNumbers, after: bool, times: Times) -> pa.Array:
        expires = self._layout.codec.states[state_id].expires
        return self._variables[state_id].cells(events, after, times if expires else None)

    def _portions(self, order: RowNumbers) -> Iterator[RowNumbers]:
        """Yield the events in parts of bounded size."""
        sizes = np.ones(len(order), np.float64)
        for variable in self._variables.values():
            sizes += variable.sizes()[order] * (EVENTS / _ELEMENTS)
        totals = np.cumsum(sizes)
        start = 0
        while start < len(order):
            limit = (totals[start - 1] if start else 0.0) + EVENTS
            stop = max(start + 1, int(np.searchsorted(totals, limit, side="right")))
            yield order[start:stop]
            start = stop


def _rows_with(hashes: Hashes, asked: Hashes) -> RowNumbers:
    """Return the rows whose keys may be among those asked for; a few others too."""
    bits = np.uint64(64 - _FILTER_BITS)
    marks = np.zeros(1 << _FILTER_BITS, np.bool_)
    marks[asked >> bits] = True
    rows: RowNumbers = np.flatnonzero(marks[hashes >> bits])
    return rows
