"""
The runs of one process: which key groups are in columns, and in which file.

Everything here changes the form of the state, never its content: dict tables become columns when
they take too much memory (`bound`), and rows become dict entries before they are used (`move`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from statelog.errors import CapacityError, CorruptionError
from statelog.format.arrow_limits import batches_of, one_batch
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.state.cache import path_of
from statelog.state.columnar.run_files import PendingRun, RunFile, RunFiles
from statelog.state.columnar.sorted_run import (
    RowLayout,
    SortedRun,
    build_run,
    by_key_group,
)
from statelog.state.encoding.snapshot_file import snapshot_table
from statelog.state.heap.expiry import CLOCK_STEP_MS
from statelog.state.heap.memory import BLOCK, MemoryLimits, block_sizes, choose_blocks
from statelog.state.heap.tables import KeyGroupState, Overlay
from statelog.state.keys.key_hash import Hashes
from statelog.state.kinds import Key
from statelog.state.kinds.kind import RowNumbers

_log = logging.getLogger("statelog")

Groups = dict[int, KeyGroupState]


class Moved(NamedTuple):
    """
    The rows and keys of one move.

    Args:
        rows: Positions of rows, by run.
        keys: Key group and key of each.
    """

    rows: list[tuple[SortedRun, RowNumbers]]
    keys: list[tuple[int, Key]]


class _Part(NamedTuple):
    run: SortedRun
    rows: RowNumbers
    keys: Sequence[Key] | None
    """The key searched at each row; None takes each row unconditionally."""


class RunSet:
    """
    The columnar part of a process's state.

    Thread: one at a time.
    """

    def __init__(
        self, layout: RowLayout, groups: Groups, limits: MemoryLimits, local: RunFiles | None
    ) -> None:
        self.layout = layout
        self.limits = limits
        self.by_group: dict[int, SortedRun] = {}
        self.last_applied: dict[int, str] = {}
        self.now_ms = -1
        self._groups = groups
        self._local = local
        self._pending: list[PendingRun] = []
        # Rows moved to the dict tables for a task; `give_back` returns them to the columns.
        self._borrowed: list[Moved] = []
        # Key groups whose state is newer than `last_applied`: their files get no name yet.
        self._ahead: set[int] = set()
        # Files written for `_ahead`; `name_files` publishes or deletes them.
        self._unnamed: list[tuple[PendingRun, SortedRun]] = []
        # Key groups that one array cannot hold: they stay in the dict tables.
        self._too_large: set[int] = set()

    def forget(self, key_group: int) -> None:
        """Drop the columns of a key group."""
        self.by_group.pop(key_group, None)
        self.last_applied.pop(key_group, None)
        self._too_large.discard(key_group)

    def live_count(self, key_groups: Iterable[int]) -> int:
        """Return the number of keys in columns of these key groups."""
        return sum(self.by_group[kg].live_count(kg) for kg in key_groups if kg in self.by_group)

    def move(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """Move keys, by key group, into the dict tables."""
        if self.by_group:
            move_keys(self.layout, self._groups, self.by_group, keys)

    def borrow(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """Move keys, by key group, into the dict tables until `give_back`."""
        if self.by_group:
            self._borrowed.append(move_keys(self.layout, self._groups, self.by_group, keys))

    def give_back(self) -> None:
        """Return borrowed keys to the columns; no fold may have changed them."""
        for moved in self._borrowed:
            for run, rows in moved.rows:
                run.put_back(rows)
            for key_group, key in moved.keys:
                self._groups[key_group].remove(key)
        self._borrowed = []

    def keep_borrowed(self) -> None:
        """Leave the keys that a failed task borrowed in the dict tables."""
        self._borrowed = []

    def move_due(self, key_group_range: KeyGroupRange, state_id: int, until_ms: int) -> None:
        """Move every key with a timer up to *until_ms* into the dict tables."""
        rows = []
        for run, part in self._in(key_group_range):
            due = run.due_rows(self.layout.columns[state_id], until_ms)
            start, stop = run.span(part.start).start, run.span(part.end).stop
            rows.append((run, due[(due >= start) & (due < stop)]))
        move_rows(self.layout, self._groups, rows)

    def first_timer(
        self, key_group_range: KeyGroupRange, state_id: int, after_ms: int
    ) -> int | None:
        """Return the earliest timer in columns after those moved by `move_due`."""
        column = self.layout.columns[state_id]
        times = [run.first_timer(column, after_ms) for run, _ in self._in(key_group_range)]
        return min((time for time in times if time is not None), default=None)

    def move_all(self, key_group_range: KeyGroupRange) -> None:
        """Move all keys of these key groups into the dict tables."""
        for key_group in key_group_range:
            run = self.by_group.pop(key_group, None)
            if run is not None:
                move_rows(self.layout, self._groups, [(run, run.live_rows(key_group))])

    def _in(self, key_group_range: KeyGroupRange) -> list[tuple[SortedRun, KeyGroupRange]]:
        """Return the runs of these key groups, with contiguous key groups of each."""
        parts = []
        for identity, part in groupby(key_group_range, lambda kg: id(self.by_group.get(kg))):
            key_groups = list(part)
            run = self.by_group.get(key_groups[0])
            if run is not None and identity:
                parts.append((run, KeyGroupRange(key_groups[0], key_groups[-1])))
        return parts

    def table(
        self,
        key_group_range: KeyGroupRange,
        overlays: Mapping[int, Overlay] | None = None,
        now_ms: int = -1,
    ) -> pa.Table:
        """Return all state of these key groups; see `whole_table`."""
        return whole_table(
            self.layout,
            self._groups,
            self._in(key_group_range),
            overlays or {},
            key_group_range,
            now_ms=now_ms,
        )

    def place(self, run: SortedRun) -> None:
        """Make *run* all state of its key groups, in a file if possible."""
        if self._local is not None and run.rows.num_rows:
            last_applied = [
                self.last_applied.get(key_group, "") for key_group in run.key_group_range
            ]
            version = max(self._groups[key_group].version for key_group in run.key_group_range)
            try:
                if self._ahead.isdisjoint(run.key_group_range):
                    run = self._local.write(run, last_applied, version)
                else:
                    pending = self._local.begin(run)
                    run = self._local.mapped(pending)
                    self._unnamed.append((pending, run))
            except OSError as error:
                self._without_files(error)
        self.place_in_memory(run)

    def goes_ahead(self, key_groups: Iterable[int]) -> None:
        """Note that key groups are ahead of `last_applied`, until `name_files`."""
        self._ahead.update(key_groups)

    def name_files(self) -> None:
        """Name the files of `goes_ahead`, now that `last_applied` is right."""
        unnamed, self._unnamed = self._unnamed, []
        self._ahead.clear()
        for pending, run in unnamed:
            part = run.key_group_range
            if self._local is None or not self.is_whole(run):
                pending.path.unlink(missing_ok=True)
                continue
            last_applied = [self.last_applied.get(key_group, "") for key_group in part]
            version = max(self._groups[key_group].version for key_group in part)
            try:
                self._local.publish(pending, last_applied, version, committed=True)
            except OSError as error:
                self._without_files(error)

    def is_whole(self, run: SortedRun) -> bool:
        """Whether a run is all state of its key groups: none of it was superseded, moved or changed."""
        part = run.key_group_range
        is_current = all(self.by_group.get(key_group) is run for key_group in part)
        return (
            is_current
            and not run.moved.any()
            and not any(any(self._groups[kg].tables) for kg in part)
        )

    def drop_files(self) -> None:
        """Remove the unnamed files of a replay that failed."""
        unnamed, self._unnamed = self._unnamed, []
        self._ahead.clear()
        for pending, _ in unnamed:
            pending.path.unlink(missing_ok=True)

    def place_in_memory(self, run: SortedRun) -> None:
        """Make *run* all state of its key groups, without a file."""
        for key_group in run.key_group_range:
            old = self._groups[key_group]
            self._groups[key_group] = KeyGroupState(old.kinds, old.version)
            self.by_group[key_group] = run

    def _without_files(self, error: OSError) -> None:
        where = self._local.folder if self._local is not None else ""
        self._local = None
        _log.warning(
            "cannot write state to %s (%s); this worker keeps it in memory from now on, and no "
            "state is lost. Free space there, or set localDirectory",
            where,
            error,
        )

    def bound(self) -> int:
        """Put dict tables beyond their limit into columns; return how many blocks."""
        if not self.limits.is_bounded:
            return 0
        groups: Mapping[int, KeyGroupState] = self._groups
        if self._too_large:
            groups = {kg: group for kg, group in groups.items() if kg not in self._too_large}
        chosen = choose_blocks(block_sizes(groups), self.limits.recent_bytes)
        for block in chosen:
            present = [kg for kg in range(block * BLOCK, (block + 1) * BLOCK) if kg in groups]
            for part in contiguous(present):
                self.to_columns(part, self.now_ms)
        return len(chosen)

    def to_columns(self, part: KeyGroupRange, now_ms: int = -1) -> None:
        """Put the state of some key groups into columns, unless one array cannot hold them."""
        try:
            run = build_run(self.layout, part, self.table(part, now_ms=now_ms))
        except CapacityError:
            if len(part) == 1:
                self._too_large.update(part)
                return
            for key_group in part:
                self.to_columns(KeyGroupRange(key_group, key_group), now_ms)
        else:
            self.place(run)

    def restore(self, part: KeyGroupRange, table: pa.Table) -> None:
        """Take the rows of a snapshot; nothing else of these key groups is here."""
        try:
            run = build_run(self.layout, part, table)
        except CapacityError:
            for batch in batches_of(table):
                _insert(self.layout, self._groups, batch, self.layout.keys(batch))
            self.to_columns(part)
        else:
            self.place(run)

    def restore_local(
        self, handle: ChangelogStateBackendHandle, key_groups: Iterable[int]
    ) -> set[int]:
        """
        Take key groups from files newer than the state in memory.

        Returns:
            The key groups taken.
        """
        if self._local is None:
            return set()
        needed = set(key_groups)
        ids = _known_ids(handle, needed)
        best: dict[int, tuple[int, RunFile]] = {}
        for file in self._local.find(handle.key_group_range):
            useful = False
            for key_group, applied in file.last_applied.items():
                version = ids.get(key_group, {}).get(applied)
                useful = useful or version is not None or key_group not in needed
                if version is None or version <= self._groups[key_group].version:
                    continue
                if key_group not in best or version > best[key_group][0]:
                    best[key_group] = version, file
            if not useful and file.version <= handle.checkpoint_id:
                file.path.unlink(missing_ok=True)  # no later checkpoint will refer to it either
        taken = set()
        for file in {file.path: file for _, file in best.values()}.values():
            try:
                run = self._local.open(file)
            except (CorruptionError, OSError) as error:
                _log.warning("%s; reading from the store instead", error)
                continue
            for key_group, (version, source) in best.items():
                if source is file:
                    kinds = self._groups[key_group].kinds
                    self._groups[key_group] = KeyGroupState(kinds, version)
                    self.by_group[key_group] = run
                    self.last_applied[key_group] = file.last_applied[key_group]
                    taken.add(key_group)
        return taken

    def begin_snapshot(self, table: pa.Table, key_group_range: KeyGroupRange) -> None:
        """Write the rows of a snapshot to a local file too; see `end_snapshot`."""
        if self._local is None or not self._in(key_group_range):
            return
        try:
            run = build_run(self.layout, key_group_range, table)
            self._pending.append(self._local.begin(run))
        except CapacityError:
            return  # without a file, these key groups are restored from the snapshot
        except OSError as error:
            self._without_files(error)

    def end_snapshot(self, path: str, checkpoint_id: int) -> None:
        """Name the files of a snapshot stored at *path*; drop them for ''."""
        pending, self._pending = self._pending, []
        for each in pending:
            if self._local is None or not path:
                each.path.unlink(missing_ok=True)
                continue
            try:
                self._local.publish(each, [path] * len(each.key_group_range), checkpoint_id)
            except OSError as error:
                self._without_files(error)


def _known_ids(
    handle: ChangelogStateBackendHandle, key_groups: set[int]
) -> dict[int, dict[str, int]]:
    """Return the ids in *handle* with their checkpoints, by key group."""
    ids: dict[int, dict[str, int]] = {key_group: {} for key_group in key_groups}
    for snapshot in handle.materialized:
        for key_group in key_groups.intersection(snapshot.key_group_range):
            if path := path_of(snapshot):
                ids[key_group][path] = snapshot.checkpoint_id
    for log in handle.log:
        for key_group in key_groups.intersection(log.key_group_range):
            ids[key_group][log.state_handle_id] = log.checkpoint_id
    return ids


def contiguous(key_groups: Iterable[int]) -> list[KeyGroupRange]:
    """Return ascending key groups as ranges."""
    parts = []
    for _, part in groupby(enumerate(key_groups), lambda pair: pair[1] - pair[0]):
        members = [key_group for _, key_group in part]
        parts.append(KeyGroupRange(members[0], members[-1]))
    return parts


# --- keys moved from runs into the dict tables, all keys of a task at once


def move_keys(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    runs: Mapping[int, SortedRun],
    keys: Mapping[int, Iterable[Key]],
) -> Moved:
    """Move keys from the runs into the dict tables; return those found."""
    keys_by_group = {kg: list(part) for kg, part in keys.items() if kg in runs}
    flat = [key for part in keys_by_group.values() for key in part]
    if not flat:
        return Moved([], [])
    hashes = _hashes(layout, flat)
    parts = []
    end = 0
    for key_group, part in keys_by_group.items():
        start, end = end, end + len(part)
        run = runs[key_group]
        rows, asked = run.candidates(key_group, hashes[start:end])
        if len(rows):
            parts.append(_Part(run, rows, [part[index] for index in asked.tolist()]))
    return _move(layout, groups, parts)


def _hashes(layout: RowLayout, keys: Sequence[Key]) -> Hashes:
    try:
        return layout.hashes(layout.codec.key.encode(keys))
    except CapacityError:
        half = len(keys) // 2
        if not half:
            raise
        return np.concatenate([_hashes(layout, keys[:half]), _hashes(layout, keys[half:])])


def move_rows(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    rows: Sequence[tuple[SortedRun, RowNumbers]],
) -> None:
    """Move rows, which were not moved before, into the dict tables."""
    _move(layout, groups, [_Part(run, part, None) for run, part in rows if len(part)])


def _move(layout: RowLayout, groups: Mapping[int, KeyGroupState], parts: Sequence[_Part]) -> Moved:
    moved = Moved([], [])
    if not parts:
        return moved
    taken = pa.Table.from_batches([part.run.rows.take(pa.array(part.rows)) for part in parts])
    try:
        batch = one_batch(taken)
    except CapacityError:
        for half in _halves(parts):
            some = _move(layout, groups, half)
            moved.rows.extend(some.rows)
            moved.keys.extend(some.keys)
        return moved
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
    _insert(layout, groups, batch, keys)
    return moved


def _halves(parts: Sequence[_Part]) -> list[Sequence[_Part]]:
    """Return some rows in two parts."""
    half = len(parts) // 2
    if half:
        return [parts[:half], parts[half:]]
    run, rows, keys = parts[0]
    cuts = (slice(0, len(rows) // 2), slice(len(rows) // 2, None))
    return [[_Part(run, rows[cut], None if keys is None else keys[cut])] for cut in cuts]


def _insert(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    batch: pa.RecordBatch,
    keys: Sequence[Key],
) -> None:
    """Decode rows into the tables."""
    key_groups: list[int] = batch.column(0).to_pylist()
    present = dict.fromkeys(key_groups)
    for state_id, at in layout.columns.items():
        state = layout.codec.states[state_id]
        cells = state.decode_cells(batch.column(at))
        tables = {key_group: groups[key_group].tables[state_id] for key_group in present}
        state.kind.insert_cells(tables, zip(key_groups, keys, cells, strict=True))


# --- runs and dict tables together, in the layout of a snapshot


def whole_table(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    runs: Iterable[tuple[SortedRun, KeyGroupRange]],
    overlays: Mapping[int, Overlay],
    key_group_range: KeyGroupRange,
    *,
    now_ms: int,
) -> pa.Table:
    """
    Return all state of these key groups, sorted by key group.

    The columns are a snapshot's, in several chunks if one array cannot hold them.
    """
    parts = [without_expired(layout, run.live_table(part), now_ms) for run, part in runs]
    parts.append(snapshot_table(layout.codec, groups, overlays, key_group_range, now_ms=now_ms))
    filled = [part for part in parts if part.num_rows]
    table = pa.concat_tables(filled or parts[-1:])
    if len(filled) > 1:
        table = by_key_group(table)
    return table


def without_expired(layout: RowLayout, table: pa.Table, now_ms: int) -> pa.Table:
    """Return rows without what expired long before *now_ms*; -1 keeps everything."""
    states = [(at, layout.codec.states[state_id]) for state_id, at in layout.columns.items()]
    if now_ms < 0 or not any(state.expires for _, state in states):
        return table
    live = []
    for batch in batches_of(table):
        columns = list(batch.columns)
        some = np.zeros(batch.num_rows, np.bool_)
        for at, state in states:
            if state.expires:
                columns[at] = state.kind.live_column(columns[at], now_ms - CLOCK_STEP_MS)
            some |= columns[at].is_valid().to_numpy(zero_copy_only=False)
        rows = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        live.append(rows if some.all() else rows.filter(pa.array(some)))
    return pa.Table.from_batches(live)
