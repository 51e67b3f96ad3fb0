"""
State in Arrow columns: large, cheap to hold, out of the garbage collector's sight.

A `ColumnarRun` holds the state of a few key groups as rows sorted by key group and hash, one row
per key, in the columns of a snapshot and a hash column beside them.  It is never changed.  A key
that a task touches is *moved*: its cells go into the dict tables, and its row does not count any
more.  So the state of a key group is its rows that were not moved and its dict tables, and no key
is in both.  All keys of a task are moved at once: hashing, searching and decoding are done for all
of them together, and nothing but a dict stands behind the state objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.model import KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.encoding.snapshot_file import (
    EXPIRES_FIELD,
    KEY_GROUP_COLUMN,
    decode_cells,
    snapshot_table,
)
from statelog.state.heap.expiry import CLOCK_STEP_MS
from statelog.state.heap.tables import Key, KeyGroupState, Overlay
from statelog.state.keys.key_hash import Hashes, hash_columns
from statelog.state.schema.descriptors import StateKind

HASH_COLUMN: Final = "$hash"
Rows: TypeAlias = npt.NDArray[np.int64]
_NEVER: Final = np.iinfo(np.int64).max


class RowLayout:
    """
    The columns of runs: those of a snapshot, and the hash.

    Args:
        codec: The operator's codec.
    """

    def __init__(self, codec: OperatorCodec) -> None:
        self.codec = codec
        empty = snapshot_table(codec, {}, {}, KeyGroupRange(0, 0), now_ms=-1)
        self.table_schema: pa.Schema = empty.schema
        self.schema = self.table_schema.append(pa.field(HASH_COLUMN, pa.uint64()))
        self.first_state = 1 + len(codec.key.schema)
        self.columns = {state_id: self.first_state + at for at, state_id in enumerate(codec.live)}
        """Where the column of each variable stands, by state id."""

    def hashes(self, columns: Sequence[pa.Array[Any]]) -> Hashes:
        """Return the hash of each key, given its columns."""
        return hash_columns(columns, self.codec.key.schema)

    def keys(self, batch: pa.RecordBatch) -> list[Key]:
        """Return the keys of the rows of *batch*."""
        return self.codec.key.decode(batch.columns[1 : self.first_state])


class ColumnarRun:
    """
    The state of a few key groups in sorted columns, and which rows of it still count.

    Args:
        key_group_range: Its key groups; 1 to a few.
        rows: Columns of `RowLayout.schema`, sorted by key group and hash.
    """

    __slots__ = ("_earliest", "_starts", "hashes", "key_group_range", "moved", "rows")

    def __init__(self, key_group_range: KeyGroupRange, rows: pa.RecordBatch) -> None:
        self.key_group_range = key_group_range
        self.rows = rows
        self.hashes: Hashes = rows.column(rows.num_columns - 1).to_numpy()
        key_groups = rows.column(0).to_numpy()
        bounds = np.arange(key_group_range.start, key_group_range.end + 2)
        self._starts: list[int] = np.searchsorted(key_groups, bounds).tolist()
        self.moved = np.zeros(rows.num_rows, np.bool_)
        self._earliest: int | None = None

    def span(self, key_group: int) -> slice:
        """Return where the rows of *key_group* stand."""
        at = key_group - self.key_group_range.start
        return slice(self._starts[at], self._starts[at + 1])

    def live_count(self, key_group: int) -> int:
        """Return how many rows of *key_group* were not moved."""
        moved = self.moved[self.span(key_group)]
        return len(moved) - int(np.count_nonzero(moved))

    def live_rows(self, key_group: int) -> Rows:
        """Return the positions of the rows of *key_group* that were not moved."""
        span = self.span(key_group)
        rows: Rows = np.flatnonzero(~self.moved[span]) + span.start
        return rows

    def live_table(self, key_group_range: KeyGroupRange) -> pa.Table:
        """Return the rows of these key groups that were not moved, without their hash."""
        start = self.span(key_group_range.start).start
        stop = self.span(key_group_range.end).stop
        rows = self.rows.slice(start, stop - start)
        table = pa.Table.from_batches([rows]).drop_columns([HASH_COLUMN])
        moved = self.moved[start:stop]
        return table.filter(pa.array(~moved)) if moved.any() else table

    def candidates(self, key_group: int, hashes: Hashes) -> tuple[Rows, Rows]:
        """
        Return where keys of *key_group* may be, by their hashes.

        Returns:
            Positions of rows, and for each the index into *hashes*; rows that were moved are left
            out, and keys whose hash is shared by several rows come several times.
        """
        span = self.span(key_group)
        part = self.hashes[span]
        if not len(part):
            nothing = np.empty(0, np.int64)
            return nothing, nothing
        at = np.searchsorted(part, hashes)
        asked = np.flatnonzero(part[np.minimum(at, len(part) - 1)] == hashes)
        at = at[asked]
        found, askers = [at], [asked]
        while len(at):  # next rows of the same hash: hardly ever more than none
            more = np.flatnonzero(at + 1 < len(part))
            more = more[part[at[more] + 1] == part[at[more]]]
            at, asked = at[more] + 1, asked[more]
            found.append(at)
            askers.append(asked)
        rows = np.concatenate(found) + span.start
        alive = ~self.moved[rows]
        return rows[alive], np.concatenate(askers)[alive]

    def first_timer(self, column: int, after_ms: int) -> int | None:
        """
        Return the earliest timer in *column* of the rows not moved, or None.

        After a look for what is due up to *after_ms* it costs nothing, but for the rows moved
        since; it may name one of a row that was moved, which is only too early.
        """
        if self._earliest is None or self._earliest <= after_ms:
            self.due_rows(column, after_ms)
        return None if self._earliest in (None, _NEVER) else self._earliest

    def due_rows(self, column: int, until_ms: int) -> Rows:
        """Return the rows not moved whose first timer in *column* is at or before *until_ms*."""
        if self._earliest is not None and self._earliest > until_ms:
            return np.empty(0, np.int64)
        timers = self.rows.column(column)
        starts = timers.offsets.to_numpy()
        present = np.flatnonzero((np.diff(starts) > 0) & ~self.moved)
        first = timers.values.to_numpy()[starts[present]]
        # Those that are due now will be moved; until then they keep the bound low, which is safe.
        self._earliest = int(first.min(initial=_NEVER))
        due: Rows = present[first <= until_ms]
        return due

    def put_back(self, rows: Rows) -> None:
        """Let rows that were moved count again."""
        self.moved[rows] = False
        self._earliest = None


class Moved(NamedTuple):
    """
    What was moved.

    Args:
        rows: Positions of rows, by run.
        keys: Key group and key of each.
    """

    rows: list[tuple[ColumnarRun, Rows]]
    keys: list[tuple[int, Key]]


class _Part(NamedTuple):
    run: ColumnarRun
    rows: Rows
    keys: Sequence[Key] | None
    """What is looked for at each row; None if the rows themselves are meant."""


def move_keys(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    runs: Mapping[int, ColumnarRun],
    keys: Mapping[int, Iterable[Key]],
) -> Moved:
    """
    Move keys from the runs into the dict tables, as far as they are there; return which were.

    Args:
        layout: The columns.
        groups: The tables, by key group.
        runs: The runs, by key group.
        keys: Which keys, by key group; as tables hold them.
    """
    wanted = {kg: list(part) for kg, part in keys.items() if kg in runs}
    flat = [key for part in wanted.values() for key in part]
    if not flat:
        return Moved([], [])
    hashes = layout.hashes(layout.codec.key.encode(flat))
    parts = []
    end = 0
    for key_group, part in wanted.items():
        start, end = end, end + len(part)
        run = runs[key_group]
        rows, asked = run.candidates(key_group, hashes[start:end])
        if len(rows):
            parts.append(_Part(run, rows, [part[index] for index in asked.tolist()]))
    return _move(layout, groups, parts)


def move_rows(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    rows: Sequence[tuple[ColumnarRun, Rows]],
) -> None:
    """Move rows, which were not moved before, into the dict tables."""
    _move(layout, groups, [_Part(run, part, None) for run, part in rows if len(part)])


def _move(layout: RowLayout, groups: Mapping[int, KeyGroupState], parts: Sequence[_Part]) -> Moved:
    moved = Moved([], [])
    if not parts:
        return moved
    taken = pa.Table.from_batches([part.run.rows.take(pa.array(part.rows)) for part in parts])
    batch = one_batch(taken)
    keys = layout.keys(batch)
    chosen: list[int] = []
    position = 0
    for part in parts:
        asked = keys[position : position + len(part.rows)] if part.keys is None else part.keys
        same = [index for index, key in enumerate(asked) if key == keys[position + index]]
        part.run.moved[part.rows[same]] = True
        moved.rows.append((part.run, part.rows[same]))
        chosen += [position + index for index in same]
        position += len(part.rows)
    if len(chosen) < len(keys):  # other keys with the same hash
        batch = batch.take(pa.array(chosen, pa.int64()))
        keys = [keys[index] for index in chosen]
    moved.keys.extend(zip(batch.column(0).to_pylist(), keys, strict=True))
    _admit(layout, groups, batch, keys)
    return moved


def _admit(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    batch: pa.RecordBatch,
    keys: Sequence[Key],
) -> None:
    """Put decoded rows into the tables."""
    key_groups: list[int] = batch.column(0).to_pylist()
    for state_id, at in layout.columns.items():
        state = layout.codec.states[state_id]
        cells = decode_cells(state, batch.column(at))
        tables = {kg: groups[kg].tables[state_id] for kg in set(key_groups)}
        if state.descriptor.kind is StateKind.TIMER:  # folded, for the index of times
            deltas: dict[int, dict[Key, Any]] = {kg: {} for kg in tables}
            for key_group, key, cell in zip(key_groups, keys, cells, strict=True):
                if cell:
                    deltas[key_group][key] = cell
            for key_group, delta in deltas.items():
                overlay: Overlay = [{} for _ in layout.codec.states]
                overlay[state_id] = delta
                groups[key_group].fold(overlay)
            continue
        for key_group, key, cell in zip(key_groups, keys, cells, strict=True):
            if cell:
                tables[key_group][key] = cell


def build_run(layout: RowLayout, key_group_range: KeyGroupRange, table: pa.Table) -> ColumnarRun:
    """
    Return rows as a run.

    Args:
        layout: The columns.
        key_group_range: The key groups of the run.
        table: Columns of a snapshot, no key twice, in any order.
    """
    batch = one_batch(table)
    hashes = layout.hashes(batch.columns[1 : layout.first_state])
    order = order_of(batch.column(0).to_numpy(), hashes)
    if order is not None:
        batch, hashes = batch.take(pa.array(order)), hashes[order]
    return run_of(layout, key_group_range, batch.columns, hashes)


def run_of(
    layout: RowLayout,
    key_group_range: KeyGroupRange,
    columns: Sequence[pa.Array[Any]],
    hashes: Hashes,
) -> ColumnarRun:
    """Return sorted columns and their hashes as a run."""
    arrays = [*columns, pa.array(hashes)]
    return ColumnarRun(key_group_range, pa.RecordBatch.from_arrays(arrays, schema=layout.schema))


def order_of(
    key_groups: npt.NDArray[np.int32], hashes: Hashes, *, stable: bool = False
) -> Rows | None:
    """Return the order by key group and hash; None if the rows stand in it already."""
    if len(key_groups) < 2:
        return None
    steps = np.diff(key_groups)
    if (steps >= 0).all() and (hashes[1:] >= hashes[:-1])[steps == 0].all():
        return None
    order: Rows = np.argsort(key_groups.astype(np.uint16), kind="stable")
    grouped = key_groups[order]
    bounds = [0, *(np.flatnonzero(np.diff(grouped)) + 1).tolist(), len(order)]
    kind: Any = "stable" if stable else None
    for start, end in pairwise(bounds):
        part = order[start:end]
        order[start:end] = part[np.argsort(hashes[part], kind=kind)]
    return order


def whole_table(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    runs: Iterable[tuple[ColumnarRun, KeyGroupRange]],
    overlays: Mapping[int, Overlay],
    key_group_range: KeyGroupRange,
    *,
    now_ms: int,
) -> pa.Table:
    """
    Return all state of these key groups in the columns of a snapshot, sorted by key group.

    Args:
        layout: The columns.
        groups: The dict tables.
        runs: The runs, and which of their key groups to take.
        overlays: Deltas on top; their keys have been moved out of the runs.
        key_group_range: Which key groups.
        now_ms: What expired long before is left out; -1 keeps everything.
    """
    parts = [_without_expired(layout, run.live_table(part), now_ms) for run, part in runs]
    parts.append(snapshot_table(layout.codec, groups, overlays, key_group_range, now_ms=now_ms))
    filled = [part for part in parts if part.num_rows]
    table = pa.concat_tables(filled or parts[-1:])
    if len(filled) > 1:
        key_groups = table.column(KEY_GROUP_COLUMN).to_numpy()
        order = np.argsort(key_groups.astype(np.uint16), kind="stable")
        table = table.combine_chunks().take(pa.array(order))
    return table


def _without_expired(layout: RowLayout, table: pa.Table, now_ms: int) -> pa.Table:
    states = [(at, layout.codec.states[state_id]) for state_id, at in layout.columns.items()]
    if now_ms < 0 or not any(state.expires for _, state in states):
        return table
    batch = one_batch(table)
    columns = list(batch.columns)
    some = np.zeros(batch.num_rows, np.bool_)
    for at, state in states:
        if state.expires:
            columns[at] = _live_cells(state, columns[at], now_ms - CLOCK_STEP_MS)
        some |= columns[at].is_valid().to_numpy(zero_copy_only=False)
    live = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    return pa.Table.from_batches([live if some.all() else live.filter(pa.array(some))])


def _live_cells(state: StateCodec, column: pa.Array[Any], until_ms: int) -> pa.Array[Any]:
    """Return the column with what expired by *until_ms* as null, or out of its lists."""
    if state.descriptor.kind not in (StateKind.LIST, StateKind.MAP):
        live = _expiry(column) > until_ms
        return column.take(pa.array(np.arange(len(column)), mask=~live))
    entries = column.values
    keep = _expiry(entries if state.user_key is None else entries.field(1)) > until_ms
    kept = np.concatenate(([0], np.cumsum(keep)))[column.offsets.to_numpy()].astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(kept),
        entries.filter(pa.array(keep)),
        type=column.type,
        mask=pa.array(np.diff(kept) == 0),
    )


def _expiry(entries: pa.Array[Any]) -> npt.NDArray[np.int64]:
    # Structs keep the times of null entries as something; nobody looks at those.
    field = entries.field(entries.type.get_field_index(EXPIRES_FIELD))
    times: npt.NDArray[np.int64] = field.fill_null(0).to_numpy()
    return times


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table in one piece; raises `pyarrow.ArrowCapacityError` if there is none so large."""
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    if batches:  # Arrow splits texts of more than 2 GiB
        raise pa.ArrowCapacityError("a few key groups hold too much text for one Arrow column")
    empty = [pa.array([], field.type) for field in table.schema]
    return pa.RecordBatch.from_arrays(empty, schema=table.schema)
