"""
The cells of some key groups in columns, and the changes made by a micro-batch.

Each key has a slot, and each variable a column of cells by slot, so that no key, row or value is a
Python object.  What is written is pending until `fold`.  Beyond a limit of memory, keys that were
not used for long are rows of cold runs instead::

    keys of a micro-batch ──> SlotIndex ──> slots ──> CellColumn of each variable
                                 ▲                        │
                                 │ used again             │ not used for long
                                 └───────── ColdRuns <────┘

A key is in one of the two places: a key that is used, or changed, is moved back before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import CapacityError, UsageError
from statelog.extensions.columns.slots.cell_column import ABSENT, NEVER_MS, CellColumn
from statelog.extensions.columns.slots.cold_runs import ColdRuns
from statelog.extensions.columns.slots.keys import Keys
from statelog.format.arrow_limits import batches_of
from statelog.model import ChangeBatch, KeyGroupRange
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.run_set import contiguous, without_expired
from statelog.state.columnar.sorted_run import RowLayout, by_key_group, group_order, rows_of_group
from statelog.state.encoding.changes import OperatorCodec, joined
from statelog.state.encoding.snapshot_file import parquet_of
from statelog.state.heap import BLOCK, CLOCK_STEP_MS, blocks
from statelog.state.keys.key_hash import Hashes, hash_columns
from statelog.state.keys.slot_index import SlotIndex, are_in
from statelog.state.kinds.kind import OP_CLEAR, RowNumbers

_FIRST_SLOTS: Final = 1024
_SPARE_SLOTS: Final = 65_536
_COPIES: Final = 5
"""Bytes of slots per byte of a table, including spare capacity for growth."""

Writes = dict[int, tuple[RowNumbers, RowNumbers]]
"""By state id: slots, and the positions of their new cells."""


class SlotTable:
    """
    The values and timers of some key groups of one operator.

    Attributes: `now_ms`: processing time of the micro-batch, by which cells expire; `zone`: time
    zone in which a processor gets keys and values; `cold`: the keys without slots.

    Thread: one at a time.
    """

    def __init__(
        self,
        codec: OperatorCodec,
        limit_bytes: int | None = None,
        files: Callable[[RowLayout], RunFiles | None] = lambda _layout: None,
    ) -> None:
        for state_id in codec.live:
            state = codec.states[state_id]
            if not state.kind.replaces:
                raise UsageError(
                    f"state {state.descriptor.name!r} is a {state.descriptor.kind_text} state, which "
                    "a columnar processor does not support; delete it with "
                    f"handle.deleteIfExists({state.descriptor.name!r}), or use a processor of Rows"
                )
        self.codec = codec
        self.layout = RowLayout(codec)
        self.index = SlotIndex(codec.key.schema)
        self.columns = {
            state_id: CellColumn(codec.states[state_id], _FIRST_SLOTS) for state_id in codec.live
        }
        self.limit_bytes = limit_bytes
        self.cold = ColdRuns(self.layout, None if limit_bytes is None else files(self.layout))
        self.now_ms = -1
        self.zone = "UTC"
        self._counts = np.zeros(0, np.int64)
        # Key groups that one array cannot hold: they stay in slots.
        self._too_large: set[int] = set()
        self._tidy_at = _SPARE_SLOTS
        self._folded = 0

    # --- keys -------------------------------------------------------------------------------------

    def find(self, keys: Keys) -> RowNumbers:
        """Return the slots of keys, or -1 for a key without state."""
        if keys.slots is None:
            keys.slots = self.index.find(keys.columns, keys.hashes)
            if self.cold:
                # A key without cells in slots may have its row in a cold run: move it into slots.
                is_cold = self._without_cells(keys.slots)
                rows = self.cold.take(keys.hashes[is_cold], keys.key_groups[is_cold])
                if self._warm(rows):
                    keys.slots = self.index.find(keys.columns, keys.hashes)
        return keys.slots

    def _without_cells(self, slots: RowNumbers) -> npt.NDArray[np.bool_]:
        """
        Return which slots are -1 or do not have a cell.

        A key group that was emptied keeps its slots.
        """
        return (slots < 0) | ~self._with_cells(np.maximum(slots, 0))

    def _with_cells(self, slots: RowNumbers) -> npt.NDArray[np.bool_]:
        """Return which slots have a committed cell of at least one variable."""
        has_cell = np.zeros(len(slots), np.bool_)
        for column in self.columns.values():
            has_cell |= column.committed(slots) >= 0
        return has_cell

    def _warm(self, rows: Iterable[tuple[pa.Table, Hashes]]) -> bool:
        """Move rows from cold runs into slots; return whether any were moved."""
        tables = list(rows)
        if tables:
            hashes = np.concatenate([hashes for _, hashes in tables])
            for batch in batches_of(pa.concat_tables([table for table, _ in tables])):
                self._insert(batch, hashes[: batch.num_rows])
                hashes = hashes[batch.num_rows :]
        return bool(tables)

    def add(self, keys: Keys) -> RowNumbers:
        """Return the slots of keys, allocating slots for keys without state."""
        if keys.origin is not None:
            # Keys that repeat get their slots through the distinct ones, or each would get several.
            distinct, key_numbers = keys.origin
            keys.slots = self.add(distinct)[key_numbers]
            return keys.slots
        slots = self.find(keys)
        is_new = slots < 0
        if is_new.any():
            new = keys.take(is_new)
            # `keys.slots` is shared with other `Keys` of the same rows.
            slots = slots.copy()
            slots[is_new] = self._add(new.columns, new.hashes, new.key_groups)
            keys.slots = slots
        return slots

    def _add(
        self, columns: Sequence[pa.Array], hashes: Hashes, key_groups: npt.NDArray[np.int32]
    ) -> RowNumbers:
        slots = self.index.add(columns, hashes, key_groups)
        for column in self.columns.values():
            column.reserve(len(self.index))
        return slots

    def keys_of(self, slots: RowNumbers) -> Keys:
        """Return the keys of slots, which may occur more than once, without rows."""
        none = np.zeros(len(slots), np.int64)
        keys = Keys(
            self.codec.key.schema,
            self.index.keys(slots),
            self.index.key_groups(slots),
            none,
            none,
        )
        keys.slots = slots
        keys.zone = self.zone
        return keys

    # --- what is pending --------------------------------------------------------------------------

    def changes(self) -> ChangeBatch:
        """Return the pending writes as changes for the log."""
        parts = []
        for state_id, column in self.columns.items():
            slots, positions = column.written()
            if not len(slots):
                continue
            # The log has the changes by key group; the order within one does not matter.
            key_groups = self.index.key_groups(slots)
            order = group_order(key_groups)
            slots = slots[order]
            positions = positions[order]
            operations = column.operations(self.index.keys(slots), positions)
            parts.append(self.codec.encode_operations(state_id, key_groups[order], operations))
        return joined(parts)

    def writes(self) -> Writes:
        """Return the pending writes."""
        return {state_id: column.written() for state_id, column in self.columns.items()}

    def forget_pending(self) -> None:
        """Discard pending writes that were not staged."""
        for column in self.columns.values():
            column.forget_pending()

    def due(
        self, key_group_range: KeyGroupRange, state_id: int, until_ms: int
    ) -> tuple[RowNumbers, npt.NDArray[np.int64]]:
        """Return (slots, times) for the timers up to *until_ms*, sorted by time."""
        # Keys with a due timer in a cold run get slots first.
        self._warm(self.cold.take_due(key_group_range, self.layout.columns[state_id], until_ms))
        column = self.columns[state_id]
        # Candidates: committed cells whose earliest timer is due, and all cells that are pending,
        # which take the place of the committed ones.
        written, written_positions = column.written()
        first_ms = column.first_ms[: len(self.index)]
        committed = np.flatnonzero(first_ms <= until_ms)
        committed = np.setdiff1d(committed, written, assume_unique=True)
        slots = np.concatenate([committed, written])
        positions = np.concatenate([column.committed(committed), written_positions])
        # One row for each timer of the candidates in these key groups: its slot and its time.
        is_inside = are_in(self.index.key_groups(slots), key_group_range)
        (cells,) = column.heap.take(positions[is_inside])
        times = cells.flatten().to_numpy()
        owners = np.repeat(slots[is_inside], np.diff(cells.offsets.to_numpy()))
        is_due = times <= until_ms
        times = times[is_due]
        owners = owners[is_due]
        order = np.argsort(times, kind="stable")
        return owners[order], times[order]

    def next_due_ms(self, key_group_range: KeyGroupRange, state_id: int, after_ms: int) -> int:
        """Return the earliest timer left after `due`, pending ones included, or `NEVER_MS`."""
        column = self.columns[state_id]
        written, positions = column.written()
        first_ms = column.first_ms[: len(self.index)].copy()
        first_ms[written] = column.first_times(positions)
        in_slots = int(first_ms[self.index.slots_in(key_group_range)].min(initial=NEVER_MS))
        cold = self.cold.first_timer(key_group_range, self.layout.columns[state_id], after_ms)
        return in_slots if cold is None else min(in_slots, cold)

    def drop(self, state_id: int, key_group_range: KeyGroupRange) -> None:
        """Remove a variable for every key in some key groups, and log the removal."""
        self._warm(self.cold.take_all(key_group_range))
        column = self.columns[state_id]
        slots = self.index.slots_in(key_group_range)
        column.clear(slots[column.positions(slots) >= 0])

    # --- figures ----------------------------------------------------------------------------------

    def entry_counts(self, key_group_range: KeyGroupRange) -> list[int]:
        """Return the number of state entries of each key group, without pending writes."""
        self._reserve_counts(key_group_range.end)
        counts: list[int] = self._counts[key_group_range.start : key_group_range.end + 1].tolist()
        cold = map(self.cold.live_count, key_group_range)
        return [count + more for count, more in zip(counts, cold, strict=True)]

    # --- committed cells --------------------------------------------------------------------------

    def fold(self, state_id: int, slots: RowNumbers, positions: RowNumbers) -> None:
        """Make the cells at *positions* the current cells of *slots*; -1 removes a cell."""
        if not len(slots):
            return
        column = self.columns[state_id]
        # Count entries: 1 for a new cell, -1 for one that goes away, 0 for one that is replaced.
        change = (positions >= 0).astype(np.int64) - (column.committed(slots) >= 0)
        changed = np.flatnonzero(change)
        key_groups = self.index.key_groups(slots[changed])
        self._reserve_counts(int(key_groups.max(initial=0)))
        np.add.at(self._counts, key_groups, change[changed])
        column.fold(slots, positions)
        self._folded += len(slots)

    def remove(self, key_groups: Collection[int]) -> None:
        """Remove all cells of some key groups."""
        self.cold.forget(key_groups)
        self._too_large.difference_update(key_groups)
        self._remove_slots(key_groups)

    def _remove_slots(self, key_groups: Collection[int]) -> None:
        self._reserve_counts(max(key_groups, default=0))
        if not key_groups or not len(self.index):
            return
        slots = np.flatnonzero(np.isin(self.index.all_key_groups, list(key_groups)))
        for column in self.columns.values():
            column.remove(slots)
        self._counts[list(key_groups)] = 0

    def insert(self, key_groups: KeyGroupRange, table: pa.Table) -> None:
        """Insert the rows of a snapshot into slots, or as a cold run if there are too many."""
        if self.limit_bytes is not None and self.nbytes + _COPIES * table.nbytes > self.limit_bytes:
            try:
                # Too much for slots: the rows stay columns, and keys get slots when they are used.
                self.cold.place(key_groups, table)
                return
            except CapacityError:  # more than one array can hold: each key group alone, or in slots
                if len(key_groups) > 1:
                    for key_group in key_groups:
                        rows = rows_of_group(table, key_group)
                        self.insert(KeyGroupRange(key_group, key_group), rows)
                    return
        for batch in batches_of(table):
            keys = batch.columns[1 : self.layout.first_state]
            self._insert(batch, hash_columns(keys, self.codec.key.schema))

    def _insert(self, batch: pa.RecordBatch, hashes: Hashes) -> None:
        """Insert rows of a snapshot into slots; their keys must not have slots with cells."""
        keys = self.codec.key.uniform(batch.columns[1 : self.layout.first_state])
        key_groups = batch.column(0).to_numpy()
        slots = self._add(keys, hashes, key_groups)
        for state_id, number in self.layout.columns.items():
            cells = batch.column(number)
            present = np.flatnonzero(cells.is_valid().to_numpy(zero_copy_only=False))
            cells = cells.drop_null()
            column = self.columns[state_id]
            positions = column.heap.append([cells] if column.is_timers else cells.flatten())
            self.fold(state_id, slots[present], positions)

    def apply(self, state_id: int, changes: Sequence[tuple[int, pa.RecordBatch]]) -> None:
        """Apply changes in the current schema: key groups and operations, with distinct keys."""
        counts = [operations.num_rows for _, operations in changes]
        key_groups = np.repeat(np.array([kg for kg, _ in changes], np.int32), counts)
        for batch in batches_of(pa.Table.from_batches([operations for _, operations in changes])):
            self._apply(state_id, batch, key_groups[: batch.num_rows])
            key_groups = key_groups[batch.num_rows :]

    def _apply(
        self, state_id: int, batch: pa.RecordBatch, key_groups: npt.NDArray[np.int32]
    ) -> None:
        width = len(self.codec.key.schema)
        keys = self.codec.key.uniform(batch.columns[:width])
        hashes = hash_columns(keys, self.codec.key.schema)
        if self.cold:  # its row would count again otherwise
            is_cold = self._without_cells(self.index.find(keys, hashes))
            self._warm(self.cold.take(hashes[is_cold], key_groups[is_cold]))
        slots = self._add(keys, hashes, key_groups)
        column = self.columns[state_id]
        positions = column.heap.append(batch.columns[width + 1 :])
        positions[batch.column(width).to_numpy() == OP_CLEAR] = ABSENT
        self.fold(state_id, slots, positions)

    def expire(self) -> int:
        """
        Remove expired cells if enough was written since; return how many were removed.

        Nothing may be staged.  Expired cells are hidden from reads at once.
        """
        expiring = [state_id for state_id, column in self.columns.items() if column.state.expires]
        if not expiring or self.now_ms < 0 or 2 * self._folded < len(self.index):
            return 0
        self._folded = 0
        removed = 0
        slots = np.arange(len(self.index))
        for state_id in expiring:
            column = self.columns[state_id]
            until_ms = self.now_ms - CLOCK_STEP_MS
            expired = slots[column.expiry_ms(column.committed(slots)) <= until_ms]
            self.fold(state_id, expired, np.full(len(expired), ABSENT, np.int64))
            removed += len(expired)
        return removed

    def tidy(self) -> None:
        """
        Drop old cells and empty slots if there are many.

        Nothing may be pending or staged.
        """
        for column in self.columns.values():
            column.compact()
        if len(self.index) < self._tidy_at:
            return
        # Slots are never freed one by one: once most are empty, the others are numbered again.
        live = np.flatnonzero(self._with_cells(np.arange(len(self.index))))
        if 2 * len(live) < len(self.index):
            self._keep(live)
        self._tidy_at = len(self.index) * 3 // 2 + _SPARE_SLOTS

    def _keep(self, live: RowNumbers) -> None:
        """Keep only some slots, and renumber them 0, 1, ..."""
        self.index = self.index.keep(live)
        for column in self.columns.values():
            column.renumber(live, max(_FIRST_SLOTS, len(live)))
            column.compact(spare=0)

    @property
    def nbytes(self) -> int:
        """Memory use of all slots in bytes."""
        return self.index.nbytes + sum(column.nbytes for column in self.columns.values())

    @property
    def is_full(self) -> bool:
        """Whether the slots use more memory than the limit."""
        return self.limit_bytes is not None and self.nbytes > self.limit_bytes

    def bound(self) -> int:
        """
        Move key groups to cold runs while slots exceed the limit; return how many moved.

        Then half of the limit is free, so that few micro-batches have to.  Nothing may be pending
        or staged.
        """
        if self.limit_bytes is None or not self.is_full:
            return 0
        key_groups = self.index.all_key_groups
        blocks_of_slots = key_groups // BLOCK
        sizes = np.bincount(blocks_of_slots)
        slots_to_keep = len(key_groups) * (self.limit_bytes / 2) / self.nbytes
        # Move whole blocks of key groups, the largest first, until half of the limit is free.
        moved: list[int] = []
        cold: list[int] = []
        for block in np.argsort(-sizes, kind="stable").tolist():
            if len(key_groups) - sizes[moved].sum() <= slots_to_keep:
                break
            moved.append(block)
            slots = np.flatnonzero(blocks_of_slots == block)
            slots = slots[group_order(key_groups[slots])]
            present = np.unique(key_groups[slots]).tolist()
            for block_groups in contiguous(kg for kg in present if kg not in self._too_large):
                cold += self._to_cold(block_groups, slots)
        # Then drop their slots, and number the others from 0 on.
        are_moved = np.isin(key_groups, cold)
        self._remove_slots(cold)
        self._keep(np.flatnonzero(~are_moved))
        return len(moved)

    def _to_cold(self, block_groups: KeyGroupRange, slots: RowNumbers) -> list[int]:
        """
        Copy some key groups from slots to cold runs.

        Return those that fit into one array.
        """
        slots_of_part = slots[are_in(self.index.key_groups(slots), block_groups)]
        try:
            self.cold.place(
                block_groups, whole_rows(self, slots_of_part, block_groups, self.now_ms)
            )
        except CapacityError:
            if len(block_groups) == 1:
                self._too_large.update(block_groups)
                return []
            singles = [KeyGroupRange(key_group, key_group) for key_group in block_groups]
            return [cold for single in singles for cold in self._to_cold(single, slots)]
        return list(block_groups)

    def _reserve_counts(self, key_group: int) -> None:
        if key_group >= len(self._counts):
            more = np.zeros(key_group + 1 - len(self._counts), np.int64)
            self._counts = np.concatenate([self._counts, more])


# --- rows of slots in the columns of a snapshot


def snapshot_of(table: SlotTable, key_group_range: KeyGroupRange, now_ms: int) -> bytes:
    """Return the state, including pending writes, as Parquet in the layout of `write_snapshot`."""
    key_groups = table.index.all_key_groups
    order = group_order(key_groups)
    grouped = key_groups[order]

    def tables() -> Iterator[pa.Table]:
        for block in blocks(key_group_range):
            start, stop = np.searchsorted(grouped, [block.start, block.end + 1]).tolist()
            yield whole_rows(table, order[start:stop], block, now_ms)

    return parquet_of(tables())


def whole_rows(
    table: SlotTable, slots: RowNumbers, key_groups: KeyGroupRange, now_ms: int
) -> pa.Table:
    """Return the rows of some key groups: first those in slots, ascending, then cold rows."""
    hot = slot_rows(table, slots, now_ms)
    cold = [without_expired(table.layout, rows, now_ms) for rows in table.cold.table(key_groups)]
    if not any(rows.num_rows for rows in cold):
        return hot
    return by_key_group(pa.concat_tables([hot, *cold]))


def slot_rows(table: SlotTable, slots: RowNumbers, now_ms: int) -> pa.Table:
    """
    Return the cells of slots in snapshot columns, without cells that expired long ago.

    The table has several chunks if one array cannot hold a column.
    """
    try:
        return _slot_rows(table, slots, now_ms)
    except CapacityError:
        half = len(slots) // 2
        if not half:
            raise
        return pa.concat_tables(
            slot_rows(table, half_slots, now_ms) for half_slots in np.split(slots, [half])
        )


def _slot_rows(table: SlotTable, slots: RowNumbers, now_ms: int) -> pa.Table:
    until_ms = now_ms - CLOCK_STEP_MS
    positions_by_state = {
        state_id: column.live(slots, until_ms) if now_ms >= 0 else column.positions(slots)
        for state_id, column in table.columns.items()
    }
    # A slot without a cell of any variable does not get a row.
    has_cell = np.zeros(len(slots), np.bool_)
    for positions in positions_by_state.values():
        has_cell |= positions >= 0
    slots = slots[has_cell]
    # The columns of a snapshot: key group, key, and for each variable its cells, null for none.
    arrays = [pa.array(table.index.key_groups(slots), pa.int32()), *table.index.keys(slots)]
    for state_id, positions in positions_by_state.items():
        column = table.columns[state_id]
        positions = positions[has_cell]
        columns = column.heap.take(positions)
        if column.is_timers:
            arrays.append(columns[0])
            continue
        fields = column.state.entry_fields()
        is_missing = pa.array(positions < 0)
        arrays.append(pa.StructArray.from_arrays(columns, fields=fields, mask=is_missing))
    schema = table.layout.table_schema
    cast = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
    return pa.Table.from_arrays(cast, schema=schema)
