"""
State in sorted Arrow columns, which are compact and invisible to the garbage collector.

A `SortedRun` holds the state of a few key groups as rows sorted by key group and hash, one row per
key, in the columns of a snapshot with a hash column after them.  Its rows are never changed.  A
key that a task uses is *moved* (see `RunSet`): its cells are copied to the dict tables, and its row
no longer counts.  The state of a key group is its rows that were not moved and its dict
tables; no key is in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import CapacityError
from statelog.format.arrow_limits import one_batch, rows_of
from statelog.model import KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import snapshot_table
from statelog.state.keys.key_hash import Hashes, hash_columns
from statelog.state.kinds import Key
from statelog.state.kinds.kind import RowNumbers
from statelog.state.kinds.timer import first_times

HASH_COLUMN: Final = "$hash"
_NEVER: Final = np.iinfo(np.int64).max


class RowLayout:
    """The columns of runs: the columns of a snapshot, and the hash of the key."""

    def __init__(self, codec: OperatorCodec) -> None:
        self.codec = codec
        empty = snapshot_table(codec, {}, {}, KeyGroupRange(0, 0), now_ms=-1)
        self.table_schema: pa.Schema = empty.schema
        self.schema = self.table_schema.append(pa.field(HASH_COLUMN, pa.uint64()))
        self.first_state = 1 + len(codec.key.schema)
        self.columns = {
            state_id: self.first_state + index for index, state_id in enumerate(codec.live)
        }
        """Index of the column of each variable, by state id."""

    def hashes(self, columns: Sequence[pa.Array]) -> Hashes:
        """Compute the hash of each key from its columns."""
        return hash_columns(columns, self.codec.key.schema)

    def keys(self, batch: pa.RecordBatch) -> list[Key]:
        """Return the keys of the rows in *batch*."""
        return self.codec.key.decode(batch.columns[1 : self.first_state])


class SortedRun:
    """The state of a few key groups, in sorted columns."""

    __slots__ = ("_earliest", "_starts", "hashes", "key_group_range", "moved", "rows")

    def __init__(self, key_group_range: KeyGroupRange, rows: pa.RecordBatch) -> None:
        self.key_group_range = key_group_range
        self.rows = rows
        self.hashes: Hashes = rows.column(rows.num_columns - 1).to_numpy()
        key_groups = rows.column(0).to_numpy()
        # Where each key group begins, so that `span` is a look-up.
        bounds = np.arange(key_group_range.start, key_group_range.end + 2)
        self._starts: list[int] = np.searchsorted(key_groups, bounds).tolist()
        self.moved = np.zeros(rows.num_rows, np.bool_)
        self._earliest: int | None = None

    def span(self, key_group: int) -> slice:
        """Return the range of rows that belong to *key_group*."""
        index = key_group - self.key_group_range.start
        return slice(self._starts[index], self._starts[index + 1])

    def live_count(self, key_group: int) -> int:
        """Return how many rows of *key_group* are still in the run."""
        moved = self.moved[self.span(key_group)]
        return len(moved) - int(np.count_nonzero(moved))

    def live_rows(self, key_group: int) -> RowNumbers:
        """Return the positions of the rows of *key_group* that are still in the run."""
        span = self.span(key_group)
        rows: RowNumbers = np.flatnonzero(~self.moved[span]) + span.start
        return rows

    def live_table(self, key_group_range: KeyGroupRange) -> pa.Table:
        """Return the rows of these key groups that are still in the run, without their hashes."""
        start = self.span(key_group_range.start).start
        stop = self.span(key_group_range.end).stop
        rows = self.rows.slice(start, stop - start)
        table = pa.Table.from_batches([rows]).drop_columns([HASH_COLUMN])
        moved = self.moved[start:stop]
        return table.filter(pa.array(~moved)) if moved.any() else table

    def candidates(self, key_group: int, hashes: Hashes) -> tuple[RowNumbers, RowNumbers]:
        """
        Return the positions at which keys of *key_group* may be, by their hashes.

        Returns:
            Positions of rows, and for each the index into *hashes*.  Rows that were moved are left
            out; a hash that several rows share appears several times.
        """
        span = self.span(key_group)
        stored = self.hashes[span]
        if not len(stored):
            none = np.empty(0, np.int64)
            return none, none
        # The first row of each hash, if the key group has the hash.
        rows = np.searchsorted(stored, hashes)
        indexes = np.flatnonzero(stored[np.minimum(rows, len(stored) - 1)] == hashes)
        rows = rows[indexes]
        all_rows = [rows]
        all_indexes = [indexes]
        # Further rows of the same hash follow it; there are rarely any.
        while len(rows):
            more = np.flatnonzero(rows + 1 < len(stored))
            more = more[stored[rows[more] + 1] == stored[rows[more]]]
            rows = rows[more] + 1
            indexes = indexes[more]
            all_rows.append(rows)
            all_indexes.append(indexes)
        numbers = np.concatenate(all_rows) + span.start
        is_live = ~self.moved[numbers]
        return numbers[is_live], np.concatenate(all_indexes)[is_live]

    def first_timer(self, column: int, after_ms: int) -> int | None:
        """
        Return the earliest timer in *column* among the rows still in the run, or None.

        After `due_rows` up to *after_ms* it does not read the rows.  It may return the timer of
        a row that was moved since, which is only too early.
        """
        # The bound is remembered: most batches find no timer that is due.
        if self._earliest is None or self._earliest <= after_ms:
            self.due_rows(column, after_ms)
        return None if self._earliest in (None, _NEVER) else self._earliest

    def due_rows(self, column: int, until_ms: int) -> RowNumbers:
        """Return the rows still in the run that have a timer in *column* up to *until_ms*."""
        if self._earliest is not None and self._earliest > until_ms:
            return np.empty(0, np.int64)
        present, first = first_times(self.rows.column(column), ~self.moved)
        # Rows that are due now will be moved; until then they keep the bound low, which is safe.
        self._earliest = int(first.min(initial=_NEVER))
        due: RowNumbers = present[first <= until_ms]
        return due

    def put_back(self, rows: RowNumbers) -> None:
        """Mark rows that were moved out of the run as present again."""
        self.moved[rows] = False
        self._earliest = None


def build_run(layout: RowLayout, key_group_range: KeyGroupRange, table: pa.Table) -> SortedRun:
    """Convert rows to a run."""
    batch = one_batch(table)
    hashes = layout.hashes(batch.columns[1 : layout.first_state])
    # Rows of a snapshot are by key group, but not by hash.
    order = order_of(batch.column(0).to_numpy(), hashes)
    if order is not None:
        batch = batch.take(pa.array(order))
        hashes = hashes[order]
    return run_of(layout, key_group_range, batch.columns, hashes)


def run_of(
    layout: RowLayout,
    key_group_range: KeyGroupRange,
    columns: Sequence[pa.Array],
    hashes: Hashes,
) -> SortedRun:
    """Build a run from sorted columns and their hashes."""
    arrays = [*columns, pa.array(hashes)]
    return SortedRun(key_group_range, pa.RecordBatch.from_arrays(arrays, schema=layout.schema))


def group_order(key_groups: npt.NDArray[np.int32]) -> RowNumbers:
    """Return the permutation that stably sorts rows by key group."""
    order: RowNumbers = np.argsort(key_groups.astype(np.uint16), kind="stable")  # sorted by radix
    return order


def by_key_group(table: pa.Table) -> pa.Table:
    """
    Split rows in snapshot columns by key group.

    Several chunks if they are too large.
    """
    order = group_order(table.column(0).to_numpy())
    try:
        return pa.Table.from_batches([one_batch(table).take(pa.array(order))])
    except CapacityError:
        return rows_of(table, order)


def rows_of_group(table: pa.Table, key_group: int) -> pa.Table:
    """Return the rows of one key group, in snapshot columns."""
    return table.filter(pa.array(table.column(0).to_numpy() == key_group))


def order_of(
    key_groups: npt.NDArray[np.int32], hashes: Hashes, *, stable: bool = False
) -> RowNumbers | None:
    """Return the permutation that sorts rows by key group and hash, or None if they are sorted."""
    if len(key_groups) < 2:
        return None
    # Are the rows sorted already, by key group, and within each by hash?
    steps = np.diff(key_groups)
    if (steps >= 0).all() and (hashes[1:] >= hashes[:-1])[steps == 0].all():
        return None
    # By key group first, which is a radix sort; then each short group by its hashes.
    order = group_order(key_groups)
    grouped = key_groups[order]
    bounds = [0, *(np.flatnonzero(np.diff(grouped)) + 1).tolist(), len(order)]
    kind: Literal["stable"] | None = "stable" if stable else None
    for start, end in pairwise(bounds):
        group = order[start:end]
        order[start:end] = group[np.argsort(hashes[group], kind=kind)]
    return order
