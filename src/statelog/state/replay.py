"""
Replay the log into the tables, either change by change or in bulk, in columns.

For variables whose deltas replace the whole cell (see `Kind.replaces`), the state after a replay
is, for each key, the last delta.  With keys sorted by their hash that is one pass over columns,
without a Python object for any change: millions of changes a second.  Deltas of other kinds are
folded one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.changelog.reader import read_logs
from statelog.errors import CapacityError
from statelog.format.arrow_limits import joined_arrays, one_batch
from statelog.model import ChangelogStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.state.cache import CatchUp, logs_ahead
from statelog.state.columnar.run_set import RunSet, contiguous
from statelog.state.columnar.sorted_run import (
    RowLayout,
    SortedRun,
    build_run,
    order_of,
    run_of,
)
from statelog.state.encoding.changes import ChangesReader, OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.heap import KeyGroupState, Overlay, blocks
from statelog.state.keys.key_hash import Hashes
from statelog.state.kinds import Key
from statelog.state.kinds.kind import OP_CLEAR, RowNumbers
from statelog.store import ObjectStore

Changes = list[tuple[int, pa.RecordBatch]]
"""Changes of one variable in the order of the log: key group, operations."""

_NO_ROW: Final = -1


def can_replay_columns(codec: OperatorCodec) -> bool:
    """Return whether every change to the operator's state replaces the previous state."""
    return all(codec.states[state_id].kind.replaces for state_id in codec.live)


def replay_columns(
    layout: RowLayout,
    key_group_range: KeyGroupRange,
    table: pa.Table,
    changes: Mapping[int, Changes],
) -> SortedRun | None:
    """
    Return the state of a few key groups after *changes* are applied.

    The rows of the state and all changes are numbered one after another, and sorted together by
    key::

        number  0 1 2 | 3 4 5 | 6 7          state: 3 rows, total: 3 changes, timers: 2 changes
        key     a b c | b d b | a d
        sorted  a a b b b c d d              distinct keys: 0 a, 1 b, 2 c, 3 d

    A column of the new state then has one row for each distinct key: the last change of its
    variable, else the row of the state, else null.

    Returns:
        The run; None if two keys have one hash, which only a fold can tell apart.
    """
    # 1. The rows of the state, and the rows of all changes.
    base = one_batch(table)
    changed = {
        state_id: _ChangedRows(layout, layout.codec.states[state_id], batches)
        for state_id, batches in sorted(changes.items())
        if batches
    }
    if not changed:
        return build_run(layout, key_group_range, table)
    # 2. One after another, in the order of the picture.
    key_groups = np.concatenate(
        [base.column(0).to_numpy(), *(rows.key_groups for rows in changed.values())]
    )
    keys = [
        joined_arrays([base.column(1 + index), *(rows.keys[index] for rows in changed.values())])
        for index in range(layout.first_state - 1)
    ]
    # 3. The distinct keys, sorted as a run has them.
    distinct = _distinct_keys(layout, key_groups, keys)
    if distinct is None:
        return None

    # By distinct key, its row in the state; -1 for a key that is new.
    base_row = np.full(len(distinct.rows), _NO_ROW)
    base_row[distinct.number_of_row[: base.num_rows]] = np.arange(base.num_rows)
    # 4. For each variable, which row is the cell of each key.
    cells = []
    has_state = np.zeros(len(distinct.rows), np.bool_)
    start = base.num_rows
    for state_id, position in layout.columns.items():
        rows = changed.get(state_id)
        if rows is None:
            cells.append(_taken(base.column(position), base_row))
        else:
            numbers = distinct.number_of_row[start : start + rows.length]
            start += rows.length
            cells.append(_with_changes(base.column(position), base_row, rows, numbers))
        has_state |= cells[-1].is_valid().to_numpy(zero_copy_only=False)

    # A key whose every variable was cleared gets no row.
    chosen = distinct.rows if has_state.all() else distinct.rows[has_state]
    if len(chosen) < len(distinct.rows):
        cells = [column.filter(pa.array(has_state)) for column in cells]
    # 5. The columns of the new run.
    taken = pa.array(chosen)
    columns = [pa.array(key_groups[chosen], pa.int32()), *(key.take(taken) for key in keys), *cells]
    return run_of(layout, key_group_range, columns, distinct.hashes[chosen])


class _ChangedRows:
    """The changes to one variable, as columns."""

    def __init__(self, layout: RowLayout, state: StateCodec, changes: Changes) -> None:
        batches = [batch for _, batch in changes]
        rows = one_batch(pa.Table.from_batches(batches))
        key_groups = np.array([key_group for key_group, _ in changes], np.int32)
        self.key_groups: npt.NDArray[np.int32] = np.repeat(
            key_groups, [batch.num_rows for batch in batches]
        )
        self.length = rows.num_rows
        width = layout.first_state - 1
        self.keys = rows.columns[:width]
        self.cleared = rows.column(width).to_numpy() == OP_CLEAR
        self.cells = state.kind.operation_cells(rows.columns[width + 1 :], state.entry_fields())


def _taken(column: pa.Array, rows: RowNumbers) -> pa.Array:
    """Return the cells at *rows*; null where a cell is missing."""
    return column.take(pa.array(rows, mask=rows == _NO_ROW))


def _with_changes(
    column: pa.Array, base_row: RowNumbers, changed: _ChangedRows, numbers: RowNumbers
) -> pa.Array:
    """
    Return the cell of each distinct key after the changes to one variable.

    *base_row* has the row of each key in *column*, the cells of the state; *numbers* has the key of
    each change.
    """
    # In one column the cells of the state, then those that changed.  For an index that is assigned
    # twice, numpy keeps the last value: the last change.
    source = base_row.copy()
    source[numbers] = np.where(changed.cleared, _NO_ROW, len(column) + np.arange(changed.length))
    return _taken(joined_arrays([column, changed.cells.cast(column.type)]), source)


class _Distinct(NamedTuple):
    """
    The distinct keys of some rows, in ascending order of key group and hash.

    Args:
        rows: The first row of each.
        number_of_row: By row, the number of its key among them.
        hashes: By row, the hash of its key.
    """

    rows: RowNumbers
    number_of_row: RowNumbers
    hashes: Hashes


def _distinct_keys(
    layout: RowLayout, key_groups: npt.NDArray[np.int32], keys: Sequence[pa.Array]
) -> _Distinct | None:
    """Return the distinct keys, or None if different keys of a key group have the same hash."""
    hashes = layout.hashes(keys)
    # Stable, so that the row of the state comes first, then the changes in the order of the log.
    order = order_of(key_groups, hashes, stable=True)
    if order is None:
        order = np.arange(len(hashes))
    # In this order, rows of one key are neighbours: they have the key group and the hash in common.
    sorted_groups = key_groups[order]
    sorted_hashes = hashes[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (sorted_groups[1:] != sorted_groups[:-1]) | (
        sorted_hashes[1:] != sorted_hashes[:-1]
    )
    if not _same_keys(layout, keys, order, np.flatnonzero(~is_new) - 1):
        return None
    number_of_row = np.empty(len(order), np.int64)
    number_of_row[order] = np.cumsum(is_new) - 1
    return _Distinct(order[is_new], number_of_row, hashes)


def _same_keys(
    layout: RowLayout, keys: Sequence[pa.Array], order: RowNumbers, again: RowNumbers
) -> bool:
    """Return whether each row listed in *again* has the same key as the row after it."""
    if not len(again):
        return True
    before = pa.array(order[again])
    after = pa.array(order[again + 1])
    keys_before = [column.take(before) for column in keys]
    keys_after = [column.take(after) for column in keys]
    if layout.codec.key.is_plain:
        pairs = zip(keys_before, keys_after, strict=True)
        return all(column.equals(other) for column, other in pairs)
    # As tables see them: all NaNs are one key, and both zeros.
    return layout.codec.key.decode(keys_before) == layout.codec.key.decode(keys_after)


_COLUMNAR_REPLAY_BYTES = 16 * 1024 * 1024
_COLUMNAR_RESTORE_BYTES = 2 * 1024 * 1024
"""Sizes from which a log is replayed in columns: into state in use, into state just restored."""
_FOLDED_SHARE = 0.125
"""Bytes in the log per byte that changes folded into dicts take in memory."""


class ReplayTarget(Protocol):
    """The state that a replay updates, for example a `KeyedState`."""

    groups: dict[int, KeyGroupState]
    codec: OperatorCodec
    changed: set[int]
    """Key groups whose content a replay or restore changed, since the owner emptied it."""

    @property
    def is_columnar(self) -> bool:
        """Whether any state is in columns, which makes `prepare` necessary."""

    def prepare(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """Prepare keys, grouped by key group, so that they can be changed."""

    def version(self, key_group: int) -> int:
        """Return the checkpoint of a key group."""

    def reached(self, key_groups: Iterable[int], checkpoint_id: int, applied: str = "") -> None:
        """Record the checkpoint that key groups have reached, and the handle last applied."""


class Replay:
    """Replays the log into dict tables, or many changes at once in columns."""

    def __init__(self, state: ReplayTarget, runs: RunSet, fresh: bool, caught_up: CatchUp) -> None:
        self._state = state
        self._runs = runs
        self._fresh = fresh
        self._caught_up = caught_up
        self._pending: dict[int, Changes] = {}
        self._pending_bytes = 0
        self._folded_bytes = 0
        self._reached: dict[int, tuple[int, str]] = {}
        self._rows = 0
        self._light: list[SortedRun] = []

    def run(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
    ) -> None:
        """Replay the part of *handle*'s log that has not been applied to the state yet."""
        # A few changes are folded faster; sorting pays off for many.
        in_columns = self._is_long(handle.log)
        logs = list(logs_ahead(handle, key_group_range, self._state.version))
        changes = read_logs(store, [(log, key_groups) for log, key_groups, _ in logs])
        with self._runs.replaying():
            for (log, _, old), batches in zip(logs, changes, strict=True):
                reader = self._state.codec.reader()
                for batch in batches:
                    self._caught_up.replayed += 1
                    self._take(reader, batch, old, in_columns)
                    self._bound(old)
                # A handle is applied whole, or its key groups stay at the version before.
                for key_group in old:
                    self._reached[key_group] = log.checkpoint_id, log.state_handle_id
                if not in_columns or self._pending_bytes > self._limit:
                    self._flush()
            self._flush()
            self._settle()

    def _bound(self, key_groups: Collection[int]) -> None:
        """Apply pending changes in the middle of a log handle, if memory requires it."""
        runs = self._runs
        if self._pending_bytes > self._limit:
            runs.go_ahead(key_groups)
            self._flush()
        if self._folded_bytes > self._limit * _FOLDED_SHARE:
            runs.go_ahead(key_groups)
            self._folded_bytes = 0
            self._caught_up.compacted += runs.bound()

    def _take(
        self, reader: ChangesReader, batch: pa.RecordBatch, old: Collection[int], in_columns: bool
    ) -> None:
        """Apply or collect the changes to the key groups in *old*."""
        wanted_changes = changes_of(reader, batch, old)
        if in_columns and reader.is_present:
            self._collect(wanted_changes)
        else:
            self._flush()  # changes before these in the log
            self._fold(reader, wanted_changes)
            self._folded_bytes += batch.nbytes

    @property
    def _limit(self) -> int:
        return self._runs.limits.pending_bytes

    def _is_long(self, log: Sequence[ChangelogStateHandle]) -> bool:
        if not (self._runs.limits.is_bounded and can_replay_columns(self._state.codec)):
            return False
        version = self._state.version
        size = sum(
            handle.size_bytes
            for handle in log
            if any(version(kg) < handle.checkpoint_id for kg in handle.key_group_range)
        )
        return size > (_COLUMNAR_RESTORE_BYTES if self._fresh else _COLUMNAR_REPLAY_BYTES)

    def _collect(self, changes: Mapping[int, Changes]) -> None:
        for state_id, batches in changes.items():
            self._pending.setdefault(state_id, []).extend(batches)
            self._pending_bytes += sum(batch.nbytes for _, batch in batches)

    def _fold(self, reader: ChangesReader, changes: Mapping[int, Changes]) -> None:
        overlays = reader.overlays({s: batches for s, batches in changes.items() if batches})
        if self._state.is_columnar:
            self._state.prepare({kg: keys_of(overlay) for kg, overlay in overlays.items()})
        self._state.changed.update(overlays)
        for key_group, overlay in overlays.items():
            self._state.groups[key_group].fold(overlay)

    def _flush(self) -> None:
        """Apply pending changes, and record the versions reached."""
        if not self._reached and not self._pending:
            return
        reached = self._reached
        self._reached = {}
        pending = self._pending
        self._pending = {}
        self._pending_bytes = 0
        touched = sorted({kg for batches in pending.values() for kg, _ in batches})
        self._state.changed.update(touched)
        # The versions first: `place` names a file by what was applied last.
        for key_group, (version, applied) in reached.items():
            self._state.reached([key_group], version, applied)
        for key_groups in (block for run in contiguous(touched) for block in blocks(run)):
            self._merge(self._runs, key_groups, _within(pending, key_groups))
        if not touched:
            self._caught_up.compacted += self._runs.bound()

    def _merge(self, runs: RunSet, block: KeyGroupRange, changes: Mapping[int, Changes]) -> None:
        try:
            run = replay_columns(runs.layout, block, runs.table(block), changes)
        except CapacityError:  # dict tables hold any number of bytes
            run = None
        if run is None:
            reader = self._state.codec.present_reader()
            for state_id, batches in changes.items():
                for change in batches:  # one by one: a key group may have several
                    self._fold(reader, {state_id: [change]})
            return
        # As for a restore: few rows go back to dict tables at the end, many become files.
        self._rows += run.rows.num_rows
        if self._rows > runs.limits.dict_rows:
            runs.place(run)
        else:
            runs.place_in_memory(run)
            self._light.append(run)

    def _settle(self) -> None:
        """Convert a small state to dict tables, and write a large state to files."""
        for run in self._light:
            key_groups = run.key_group_range
            if any(self._runs.by_group.get(kg) is not run for kg in key_groups):
                continue
            if self._rows > self._runs.limits.dict_rows:
                if self._runs.is_whole(run):  # later changes may have been folded into dict tables
                    self._runs.place(run)
            else:
                self._runs.move_all(key_groups)


def changes_of(
    reader: ChangesReader, batch: pa.RecordBatch, key_groups: Collection[int]
) -> dict[int, Changes]:
    """Return the changes to some key groups in a log batch, by state id."""
    changes = reader.batches(batch.column(0).to_pylist(), batch.column(1).to_pylist())
    return _within(changes, key_groups)


def _within(
    changes: Mapping[int, Changes], key_groups: Collection[int] | KeyGroupRange
) -> dict[int, Changes]:
    """Return only the changes to some key groups."""
    return {
        state_id: [change for change in batches if change[0] in key_groups]
        for state_id, batches in changes.items()
    }


def keys_of(overlay: Overlay) -> set[Key]:
    """Return the keys that *overlay* changes, across all state variables."""
    return {key for deltas in overlay for key in deltas}
