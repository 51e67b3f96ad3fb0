"""
The cells of one variable before and after events, see `statelog.state.reader.window`.

All are computed when an object is made; `cells` takes the cells of some events.  `LoggedOperations`
collects the operations that the log holds, in the columns of the present schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.state.columnar.sorted_run import one_batch
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.heap.tables import Overlay
from statelog.state.keys.key_hash import hash_columns
from statelog.state.kinds.kind import OP_ADD_ELEMENT, OP_CLEAR, OP_PUT, RowNumbers, Times
from statelog.state.reader.joining import numbered_keys, stable_order

NO_ROW: Final = -1


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

    def cells(self, some: RowNumbers, after: bool, times: Times | None) -> pa.Array:
        """Return the cells of *some* events, without what expired by *times*."""
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

    def cells(self, some: RowNumbers, after: bool, times: Times | None) -> pa.Array:
        return _live(self._state, _taken(self._column, self._rows[some]), times)


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
        batch, events = operations[0].batch, operations[1]
        width = len(state.key.schema)
        cleared = batch.column(width).to_numpy() == OP_CLEAR
        cells = state.kind.operation_cells(batch.columns[width + 1 :], state.entry_fields())
        self._column = pa.concat_arrays([column, cells.cast(column.type)])
        # For an index given twice, numpy keeps the last value: the last operation.
        source = np.full(len(key_of), NO_ROW, np.int64)
        source[events] = np.where(cleared, NO_ROW, len(column) + np.arange(len(cleared)))
        touched = np.zeros(len(key_of), np.bool_)
        touched[events] = True
        first = _first_of_key(key_of)
        last = np.maximum.accumulate(np.where(touched, np.arange(len(key_of)), NO_ROW))
        self._after = np.where(last >= first, source[last], base_rows[key_of])
        self._before = np.where(
            first == np.arange(len(key_of)), base_rows[key_of], np.roll(self._after, 1)
        )

    def sizes(self) -> npt.NDArray[np.int64]:
        return _list_sizes(self._column, self._after)

    def cells(self, some: RowNumbers, after: bool, times: Times | None) -> pa.Array:
        rows = self._after if after else self._before
        return _live(self._state, _taken(self._column, rows[some]), times)


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
        batch, events = operations[0].batch, operations[1]
        width = len(state.key.schema)
        ops = batch.column(width).to_numpy()
        element = column.type.value_type
        added = state.kind.operation_elements(batch.columns[width + 1 :], element)
        lengths = _lengths(column)
        held = column.flatten()
        elements = pa.concat_arrays([held, added])
        owners = np.full(len(column), NO_ROW, np.int64)
        owners[base_rows[base_rows >= 0]] = np.flatnonzero(base_rows >= 0)
        keys = np.concatenate([np.repeat(owners, lengths), key_of[events]])
        at = np.concatenate([np.full(len(held), NO_ROW), events])
        self._order = stable_order(keys + 1)
        keys, at = keys[self._order], at[self._order]
        kinds = np.concatenate([np.full(len(held), OP_ADD_ELEMENT), ops])[self._order]
        self._added = (kinds == OP_ADD_ELEMENT) | (kinds == OP_PUT)
        self._elements = elements
        # Where the elements of each event begin and end: events and elements are sorted alike.
        number, size = np.arange(len(key_of)), len(key_of) + 1
        codes = keys * size + (at + 1)
        starts = np.searchsorted(codes, key_of * size)
        clears = np.maximum.accumulate(np.where(kinds == OP_CLEAR, np.arange(1, len(at) + 1), 0))
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
        columns, codec = self._state.kind.element_keys(self._elements), self._state.user_key
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

    def cells(self, some: RowNumbers, after: bool, times: Times | None) -> pa.Array:
        start, end = (each[some] for each in self._spans[after])
        lengths = end - start
        owners = np.repeat(np.arange(len(some)), lengths)
        offsets = np.cumsum(lengths) - lengths
        places = np.arange(len(owners)) - np.repeat(offsets - start, lengths)
        keep = self._added[places]
        if self._next is not None:
            keep &= self._next[places] >= end[owners]
        if times is not None and self._expiry is not None:
            keep &= self._expiry[places] > times[owners]
        places, owners = places[keep], owners[keep]
        counts = np.bincount(owners, minlength=len(some))
        bounds = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(bounds),
            self._elements.take(pa.array(self._order[places])),
            type=self._type,
            mask=pa.array(counts == 0),
        )


def _first_of_key(key_of: RowNumbers) -> RowNumbers:
    """Return for each event the first event of its key."""
    starts = np.flatnonzero(np.diff(key_of, prepend=NO_ROW))
    return np.repeat(starts, np.diff(starts, append=len(key_of)))


def _taken(column: pa.Array, rows: RowNumbers) -> pa.Array:
    return column.take(pa.array(rows, mask=rows == NO_ROW))


def _live(state: StateCodec, column: pa.Array, times: Times | None) -> pa.Array:
    """Return cells without what has expired at the time of each."""
    if times is None:
        return column
    if pa.types.is_list(column.type):
        times = np.repeat(times, _lengths(column))
    return state.kind.live_column(column, times)


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return lengths


def _list_sizes(column: pa.Array, rows: RowNumbers) -> npt.NDArray[np.int64]:
    """Return the number of elements of the cells at *rows*."""
    if not pa.types.is_list(column.type):
        return np.zeros(len(rows), np.int64)
    sizes = np.concatenate((_lengths(column), [0]))
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
            IncompatibleFormatError: A newer statelog wrote it.
        """
        reader = self._reader
        batches = reader.batches(changes.column(0).to_pylist(), changes.column(1).to_pylist())
        if reader.is_present:
            for state_id, parts in batches.items():
                self._parts.setdefault(state_id, []).extend(
                    (checkpoint, key_group, batch) for key_group, batch in parts
                )
            return
        # Of an earlier schema: through the values, which are converted one by one.
        for state_id, parts in batches.items():
            for part in parts:
                for key_group, overlay in reader.overlays({state_id: [part]}).items():
                    self._add_deltas(checkpoint, key_group, overlay)

    def _add_deltas(self, checkpoint: int, key_group: int, overlay: Overlay) -> None:
        for state_id, deltas in enumerate(overlay):
            codec = self._codec.states[state_id]
            if deltas:
                batch = codec.batch(codec.operations(deltas))
                self._parts.setdefault(state_id, []).append((checkpoint, key_group, batch))

    def operations(self) -> dict[int, Operations]:
        """Return the operations by state id."""
        operations = {}
        for state_id, parts in self._parts.items():
            batch = one_batch(pa.Table.from_batches([part for _, _, part in parts]))
            counts = [part.num_rows for _, _, part in parts]
            if batch.num_rows:
                operations[state_id] = Operations(
                    batch,
                    np.repeat(np.array([each for _, each, _ in parts], np.int32), counts),
                    np.repeat(np.array([each for each, _, _ in parts], np.int64), counts),
                )
        return operations
