"""
What the changes of some checkpoints did to the keys of some key groups, computed in columns.

An *event* is a key and a checkpoint that changed it.  For every event the state of the key before
and after it is found at once, without a Python object for any of them: operations and the state at
the beginning are numbered by key, sorted, and each event refers to a place in that order.  For a
kind whose deltas replace the cell (see `Kind.replaces`) that is the last operation up to the event;
for lists and maps it is a span of elements, after the last operation that cleared them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.keys.key_hash import Hashes
from statelog.state.kinds.kind import RowNumbers, Times
from statelog.state.reader.differences import change_words
from statelog.state.reader.event_cells import NO_ROW, EventCells, Operations, event_cells
from statelog.state.reader.joining import (
    Mask,
    equal_rows,
    numbered,
    numbered_keys,
    stable_order,
    valid_rows,
)

EVENTS: Final = 65_536
"""Rows of a batch of events."""
_FILTER_BITS: Final = 22
"""Bits of a hash by which rows are passed over: 4 MiB of marks."""
_ELEMENTS: Final = 1_000_000
"""Elements that the events of a batch may refer to, if they are more than one event."""


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
        batches = [part.batch for part in parts]
        asked = np.concatenate([layout.hashes(batch.columns[:width]) for batch in batches])
        hashes = layout.hashes(base.columns[1 : 1 + width])
        touched = _rows_with(hashes, asked)
        before = base.take(pa.array(touched))
        self._keys = [
            pa.concat_arrays([before.column(1 + at), *(batch.column(at) for batch in batches)])
            for at in range(width)
        ]
        self._key_groups = np.concatenate(
            [before.column(0).to_numpy(), *(part.key_groups for part in parts)]
        )
        numbers, self._rows = numbered_keys(
            self._keys, np.concatenate([hashes[touched], asked]), codec.key.decode
        )
        # An event as one number: first by key, then by checkpoint.
        steps = len(times_ms)
        codes, start = [], before.num_rows
        for part in parts:
            codes.append(numbers[start : start + len(part.checkpoints)] * steps + part.checkpoints)
            start += len(part.checkpoints)
        self._events, inverse = numbered(np.concatenate(codes))
        # For an index given twice, numpy keeps the last value: the first row of an event.
        self._logged = np.empty(len(self._events), np.int64)
        self._logged[inverse[::-1]] = np.arange(len(inverse))[::-1]
        self._key_of = self._events // steps
        self._checkpoint_of = self._events % steps
        has_event = np.zeros(len(self._rows), np.bool_)
        has_event[self._key_of] = True
        self._replaced = touched[has_event[numbers[: before.num_rows]]]
        base_rows = np.full(len(self._rows), NO_ROW, np.int64)
        base_rows[numbers[: before.num_rows]] = np.arange(before.num_rows)
        self._variables: dict[int, EventCells] = {}
        first = 0
        for state_id, position in layout.columns.items():
            done = None
            if state_id in operations:
                count = len(operations[state_id].checkpoints)
                done = operations[state_id], inverse[first : first + count]
                first += count
            self._variables[state_id] = event_cells(
                codec.states[state_id], before.column(position), base_rows, done, self._key_of
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
        for some in self._portions(order):
            times = self._times_ms[self._checkpoint_of[some]]
            before, after = (
                [self._cells(state_id, some, side, times) for state_id in states]
                for side in (False, True)
            )
            same = np.ones(len(some), np.bool_)
            for state_id, old, new in zip(states, before, after, strict=True):
                if state_id in self._operations:
                    same &= equal_rows(old, new)
            was, there = _any_valid(before, len(some)), _any_valid(after, len(some))
            numbers = np.where(~was, 0, np.where(there, 1, 2)).astype(np.int8)
            rows = pa.array(self._rows[self._key_of[some]])
            columns = [
                change_words(numbers),
                pa.array(names[self._checkpoint_of[some]]),
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
        cells = [self._variables[each].cells(last, True, None) for each in self._layout.columns]
        some = pa.array(_any_valid(cells, len(last)))
        schema = self._base.schema
        new = pa.RecordBatch.from_arrays([*changed, *cells], schema=schema).filter(some)
        kept = np.ones(self._base.num_rows, np.bool_)
        kept[self._replaced] = False
        return pa.concat_batches([self._base.filter(pa.array(kept)), new])

    def _cells(self, state_id: int, some: RowNumbers, after: bool, times: Times) -> pa.Array:
        expires = self._layout.codec.states[state_id].expires
        return self._variables[state_id].cells(some, after, times if expires else None)

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


def _any_valid(columns: Sequence[pa.Array], rows: int) -> Mask:
    some = np.zeros(rows, np.bool_)
    for column in columns:
        some |= valid_rows(column)
    return some
