"""
The cells of one variable, addressed by slot.

A cell is the value of a key, or the list of its timers.  It is in a heap, and each slot has the
position of its cell there.  What a micro-batch writes is *pending*: reads see it at once, but it
counts only after `fold`, once its checkpoint is committed.  `forget_pending` drops it::

    slot        0    1    2    3
    committed   0    1    -    2          - no cell
    pending     .    3    4    -          . unchanged
    read        0    3    4    -          the pending one, else the committed one

    heap        A  B  C  B'  D            B and C stay until `compact`, once half is unused
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.state.encoding.deltas import StateCodec
from statelog.state.keys.entry_heap import EntryHeap
from statelog.state.kinds.kind import EXPIRES_FIELD, OP_CLEAR, OP_SET, RowNumbers

ABSENT: Final = -1
_UNCHANGED: Final = -2
_SPARE_ROWS: Final = 65_536
NEVER_MS: Final = int(np.iinfo(np.int64).max)


class CellColumn:
    """
    The column that contains the cells of one variable.

    Attributes: `first_ms`: for timers the earliest time of each slot, `NEVER_MS` for none.
    """

    def __init__(self, state: StateCodec, capacity: int) -> None:
        self.state = state
        self.heap = EntryHeap(state.row_fields(), f"state {state.descriptor.name!r}, field")
        self._rows = np.full(capacity, ABSENT, np.int64)
        self._pending = np.full(capacity, _UNCHANGED, np.int64)
        self._written: list[RowNumbers] = []
        self.is_timers = state.kind.fires
        self._compact_at = _SPARE_ROWS
        self.first_ms = np.full(capacity if self.is_timers else 0, NEVER_MS, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory use in bytes."""
        return self.heap.nbytes + self._rows.nbytes + self._pending.nbytes + self.first_ms.nbytes

    def reserve(self, capacity: int) -> None:
        """Reserve space for at least this number of slots."""
        if capacity > len(self._rows):
            more = max(capacity, 2 * len(self._rows)) - len(self._rows)
            self._rows = np.concatenate([self._rows, np.full(more, ABSENT, np.int64)])
            self._pending = np.concatenate([self._pending, np.full(more, _UNCHANGED, np.int64)])
            if self.is_timers:
                self.first_ms = np.concatenate([self.first_ms, np.full(more, NEVER_MS, np.int64)])

    # --- reading ----------------------------------------------------------------------------------

    def positions(self, slots: RowNumbers) -> RowNumbers:
        """Return cell positions including pending writes; `ABSENT` without a cell or slot."""
        # A slot of -1 reads slot 0, and is overwritten below: no branch for each slot.
        safe = np.maximum(slots, 0)
        rows = self._rows[safe]
        # What this micro-batch wrote hides the committed cell, also where it removed it.
        if self._written:
            pending = self._pending[safe]
            rows = np.where(pending == _UNCHANGED, rows, pending)
        rows[slots < 0] = ABSENT
        return rows

    def live(self, slots: RowNumbers, now_ms: int) -> RowNumbers:
        """Return positions like `positions`, but `ABSENT` for cells that expired by *now_ms*."""
        rows = self.positions(slots)
        if self.state.expires:
            rows[self.expiry_ms(rows) <= now_ms] = ABSENT
        return rows

    def expiry_ms(self, positions: RowNumbers) -> npt.NDArray[np.int64]:
        """Return when the cells at *positions* expire; `NEVER_MS` without a cell."""
        number = [field.name for field in self.heap.fields].index(EXPIRES_FIELD)
        column = self.heap.take_column(number, positions)
        times: npt.NDArray[np.int64] = column.fill_null(NEVER_MS).to_numpy()
        return times

    def committed(self, slots: RowNumbers) -> RowNumbers:
        """Return the positions of committed cells, ignoring pending writes."""
        return self._rows[slots]

    def count(self, slots: RowNumbers) -> int:
        """Return how many of the slots have a committed cell."""
        return int(np.count_nonzero(self._rows[slots] >= 0))

    # --- writing ----------------------------------------------------------------------------------

    def put(self, slots: RowNumbers, columns: Sequence[pa.Array]) -> None:
        """Write cells; if a slot occurs more than once, the last cell wins."""
        # Cells are appended, never overwritten, so the committed ones are intact until `fold`.
        positions = self.heap.append(columns)
        self._pending[slots] = positions
        # A slot that repeats has lost its first position to the last one.
        repeats = (self._pending[slots] != positions).any()
        self._written.append(np.unique(slots) if repeats else slots)

    def clear(self, slots: RowNumbers) -> None:
        """Remove cells; a slot may occur more than once."""
        self._pending[slots] = ABSENT
        self._written.append(np.unique(slots))

    def written(self) -> tuple[RowNumbers, RowNumbers]:
        """Return the distinct slots that were written, and the positions of their cells."""
        if not self._written:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # A slot may have been written several times; joined once, for all later calls.
        if len(self._written) > 1:
            self._written = [np.unique(np.concatenate(self._written))]
        slots = self._written[0]
        return slots, self._pending[slots]

    def forget_pending(self) -> None:
        """Discard pending writes."""
        for slots in self._written:
            self._pending[slots] = _UNCHANGED
        self._written = []

    def operations(self, keys: Sequence[pa.Array], positions: RowNumbers) -> pa.RecordBatch:
        """Return the columns of log entries for these keys and the positions of their cells."""
        ops = np.where(positions >= 0, OP_SET, OP_CLEAR).astype(np.int8)
        columns = [*keys, pa.array(ops), *self.heap.take(positions)]
        return pa.RecordBatch.from_arrays(columns, schema=self.state.schema)

    # --- committed state --------------------------------------------------------------------------

    def fold(self, slots: RowNumbers, positions: RowNumbers) -> None:
        """Make the cells at *positions* the current cells of *slots*."""
        self._rows[slots] = positions
        if self.is_timers:
            self.first_ms[slots] = self.first_times(positions)

    def first_times(self, positions: RowNumbers) -> npt.NDArray[np.int64]:
        """Return the earliest timer in each cell, or `NEVER_MS`."""
        (times,) = self.heap.take(positions)
        # The times of a cell ascend, so the first one is where its list begins.
        starts = times.offsets.to_numpy()
        first = np.full(len(positions), NEVER_MS, np.int64)
        has_timer = np.diff(starts) > 0
        first[has_timer] = times.values.to_numpy()[starts[:-1][has_timer]]
        return first

    def remove(self, slots: npt.NDArray[np.bool_] | RowNumbers) -> None:
        """Remove committed cells."""
        # Many cells may be unused at once now: the next `compact` looks.
        self._compact_at = 0
        self._rows[slots] = ABSENT
        if self.is_timers:
            self.first_ms[slots] = NEVER_MS

    def renumber(self, slots: RowNumbers, capacity: int) -> None:
        """Renumber *slots* to 0, 1, ...; not allowed while writes are pending."""
        rows = np.full(capacity, ABSENT, np.int64)
        rows[: len(slots)] = self._rows[slots]
        self._rows, self._pending = rows, np.full(capacity, _UNCHANGED, np.int64)
        if self.is_timers:
            first = np.full(capacity, NEVER_MS, np.int64)
            first[: len(slots)] = self.first_ms[slots]
            self.first_ms = first

    def compact(self, spare: int | None = None) -> None:
        """Remove unused cells if there are many; not allowed while writes are pending or staged."""
        if spare is None:
            if self.heap.count <= self._compact_at:
                return
            spare = _SPARE_ROWS
        # Once less than half of the heap is in use, copy what is used to the front of a new one.
        used = np.flatnonzero(self._rows >= 0)
        if self.heap.count > 2 * len(used) + spare:
            self.heap.keep(self._rows[used])
            self._rows[used] = np.arange(len(used))
        self._compact_at = 2 * len(used) + _SPARE_ROWS
