"""
Compute, in columns, what some checkpoints changed in some key groups.

An *event* is a key and a checkpoint that changed it.  For every event the state of the key before
and after it is found at once, without a Python object for any of them: operations and the state at
the beginning are numbered by key, sorted, and each event refers to a place in that order::

    state at the beginning    a=1   b=5
    log of checkpoint 1       a=2   b cleared
    log of checkpoint 2       a=3               c=7

    event   key   checkpoint   before   after
    0       a     1            a=1      a=2
    1       a     2            a=2      a=3
    2       b     1            b=5      none
    3       c     2            none     c=7

`event_cells` computes the cells of one variable.  `LoggedOperations` collects the operations that
the log holds, in the columns of the present schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.extensions.read.event_cells import NO_ROW, EventCells, Operations, event_cells
from statelog.extensions.read.joining import (
    any_valid,
    change_words,
    equal_rows,
    numbered,
    numbered_keys,
    stable_order,
)
from statelog.format.arrow_limits import joined_arrays, joined_batches
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.keys.key_hash import Hashes
from statelog.state.kinds.kind import RowNumbers, Times

EVENTS: Final = 65_536
"""Rows of a batch of events."""
_FILTER_BITS: Final = 22
"""Number of hash bits for skipping rows: 4 MiB of marks."""
_ELEMENTS: Final = 1_000_000
"""Elements that the events of a batch may refer to, if they are more than one event."""


class LoggedOperations:
    """
    The operations of several checkpoints, in the order in which they were added.

    Args:
        codec: The operator's codec, into whose schema all is converted.
    """

    def __init__(self, codec: OperatorCodec) -> None:
        self._codec = codec
        self._reader = codec.reader()
        self._parts: dict[int, list[tuple[int, int, pa.RecordBatch]]] = {}

    def add(self, checkpoint: int, changes: pa.RecordBatch) -> None:
        """
        Add changes in log order.

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
                (changes for _, _, changes in parts), f"changes to state {name!r},"
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


@dataclass(frozen=True, slots=True)
class _Keys:
    """
    The distinct keys that occur in a window, numbered from 0.

    A row is a row of `before`, or after these an operation of any variable.

    Attributes:
        touched: Rows of the state at the beginning that operations may touch.
        before: These rows.
        columns: The columns of the key, of each row.
        key_groups: Of each row.
        numbers: The key number of each row.
        rows: By key number, a row with the key.
    """

    touched: RowNumbers
    before: pa.RecordBatch
    columns: list[pa.Array]
    key_groups: npt.NDArray[np.int32]
    numbers: RowNumbers
    rows: RowNumbers


@dataclass(frozen=True, slots=True)
class _Events:
    """
    The events in a window, ordered by key and then by checkpoint.

    Attributes:
        key_of: The key number of each event.
        checkpoint_of: Of each event, the index of its checkpoint in the window.
        of_operation: The event of each operation of all variables.
        first_operation: The first operation of each event.
    """

    key_of: RowNumbers
    checkpoint_of: RowNumbers
    of_operation: RowNumbers
    first_operation: RowNumbers


def _keys_of(layout: RowLayout, base: pa.RecordBatch, logged: Sequence[Operations]) -> _Keys:
    """Return the keys of the operations, with the rows of *base* that may contain them."""
    width = layout.first_state - 1
    batches = [operations.batch for operations in logged]
    asked = np.concatenate([layout.hashes(batch.columns[:width]) for batch in batches])
    hashes = layout.hashes(base.columns[1 : 1 + width])
    # Most keys of the state did not change: by their hashes they are passed over at once.
    touched = _rows_with(hashes, asked)
    before = base.take(pa.array(touched))
    columns = [
        joined_arrays([before.column(1 + number), *(batch.column(number) for batch in batches)])
        for number in range(width)
    ]
    numbers, rows = numbered_keys(
        columns, np.concatenate([hashes[touched], asked]), layout.codec.key.decode
    )
    key_groups = np.concatenate(
        [before.column(0).to_numpy(), *(operations.key_groups for operations in logged)]
    )
    return _Keys(touched, before, columns, key_groups, numbers, rows)


def _events_of(keys: _Keys, logged: Sequence[Operations], checkpoints: int) -> _Events:
    """Return the events; all operations on a key in one checkpoint form one event."""
    checkpoint_of = np.concatenate([operations.checkpoints for operations in logged])
    # An event as one number, which sorts first by key, then by checkpoint.
    codes = keys.numbers[keys.before.num_rows :] * checkpoints + checkpoint_of
    events, of_operation = numbered(codes)
    # From the last operation to the first: numpy keeps the last value assigned to an index.
    first_operation = np.empty(len(events), np.int64)
    first_operation[of_operation[::-1]] = np.arange(len(of_operation))[::-1]
    return _Events(events // checkpoints, events % checkpoints, of_operation, first_operation)


def _replaced_rows(keys: _Keys, events: _Events) -> RowNumbers:
    """Return the rows of the initial state whose keys have at least one event."""
    has_event = np.zeros(len(keys.rows), np.bool_)
    has_event[events.key_of] = True
    replaced: RowNumbers = keys.touched[has_event[keys.numbers[: keys.before.num_rows]]]
    return replaced


def _cells_of(
    layout: RowLayout, operations: Mapping[int, Operations], keys: _Keys, events: _Events
) -> dict[int, EventCells]:
    """Return the cells of each variable before and after each event."""
    base_rows = np.full(len(keys.rows), NO_ROW, np.int64)
    base_rows[keys.numbers[: keys.before.num_rows]] = np.arange(keys.before.num_rows)
    variables = {}
    start = 0
    for state_id, position in layout.columns.items():
        changes = None
        if state_id in operations:
            stop = start + len(operations[state_id].checkpoints)
            changes = operations[state_id], events.of_operation[start:stop]
            start = stop
        variables[state_id] = event_cells(
            layout.codec.states[state_id],
            keys.before.column(position),
            base_rows,
            changes,
            events.key_of,
        )
    return variables


class Window:
    """
    The events in some key groups, from consecutive checkpoints.

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
        # In the order of the columns, which is the order of the operations in all that follows.
        self._operations = {
            state_id: operations[state_id] for state_id in layout.columns if state_id in operations
        }
        logged = list(self._operations.values())
        keys = _keys_of(layout, base, logged)
        events = _events_of(keys, logged, len(times_ms))
        self._variables = _cells_of(layout, self._operations, keys, events)
        self._replaced = _replaced_rows(keys, events)
        # What else is read later; the rows at the beginning that were touched are not.
        self._keys = keys.columns
        self._key_groups = keys.key_groups
        self._rows = keys.rows
        self._key_of = events.key_of
        self._checkpoint_of = events.checkpoint_of
        self._first_operation = events.first_operation

    def __len__(self) -> int:
        return len(self._key_of)

    def batches(
        self, states: Sequence[int], schema: pa.Schema, ids: Sequence[int]
    ) -> Iterator[pa.RecordBatch]:
        """
        Yield the events in order of checkpoint, as rows of a feed.

        Args:
            states: The variables to show.
            schema: `change`, `checkpoint_id`, the key group, the key, the variables before, after.
            ids: The id of each checkpoint of the window.
        """
        names = np.array(ids, np.int64)
        # By checkpoint, and of a checkpoint in the order of its log, in which the cells are stored.
        order = stable_order(
            self._checkpoint_of * (1 + self._first_operation.max()) + self._first_operation
        )
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
        """Return the state of the key groups after the last checkpoint, with expired entries."""
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
        """Yield the events in portions of limited size."""
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
    """Return the rows that may have the requested keys, and possibly a few more."""
    bits = np.uint64(64 - _FILTER_BITS)
    marks = np.zeros(1 << _FILTER_BITS, np.bool_)
    marks[asked >> bits] = True
    rows: RowNumbers = np.flatnonzero(marks[hashes >> bits])
    return rows
