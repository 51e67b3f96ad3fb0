"""
A process's sorted runs: its key groups in columns, and the files that contain them.

Everything here changes the form of the state, never its content: dict tables become columns when
they take too much memory (`bound`), and rows become dict entries before they are used (`move`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from statelog.errors import CapacityError, CorruptionError
from statelog.format.arrow_limits import batches_of, one_batch
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.state.cache import path_of
from statelog.state.columnar.sorted_run import RowLayout, SortedRun, build_run, by_key_group
from statelog.state.encoding.snapshot_file import snapshot_table
from statelog.state.heap import (
    BLOCK,
    CLOCK_STEP_MS,
    KeyGroupState,
    MemoryLimits,
    Overlay,
    block_sizes,
    choose_blocks,
)
from statelog.state.keys.key_hash import Hashes
from statelog.state.kinds import Key
from statelog.state.kinds.kind import RowNumbers

if TYPE_CHECKING:
    from statelog.state.columnar.run_files import PendingRun, RunFile, RunFiles

_log = logging.getLogger("statelog")

Groups = dict[int, KeyGroupState]


class _Moved(NamedTuple):
    """The rows and keys to move at once: rows grouped by run, with their key groups and keys."""

    rows: list[tuple[SortedRun, RowNumbers]]
    keys: list[tuple[int, Key]]


class _Rows(NamedTuple):
    """Rows of a run, and the keys that were searched for; None selects all rows."""

    run: SortedRun
    numbers: RowNumbers
    keys: Sequence[Key] | None


class RunSet:
    """
    The part of a process's state that is stored in columns.

    The state of a key group is in dict tables, in a run, or in both; no key is in both::

        dict tables ── bound, to_columns ──▶ run in memory ── place ──▶ run in a mapped file
             ◀─────────── move, move_due, move_all ───┴────────────────────────┘

    Keys are moved before a task uses them.  Keys that a task borrows return to the columns::

        borrow ─▶ the task reads them and drops its changes ─▶ give_back
                                                            └▶ keep_borrowed, if the task failed

    The name of a file says what was applied to its key groups last.  A replay is ahead of that, so
    the files that it writes get their names at its end::

        with runs.replaying():
            go_ahead ─▶ place, bound        as often as memory requires it
                                            then the files are named, or deleted if the replay failed

    The rows of a snapshot become a file too, which is named when the snapshot is stored::

        begin_snapshot, for each block ─▶ end_snapshot, or drop_snapshot

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
        # Files with the rows of a snapshot that is not stored yet.
        self._snapshot_files: list[PendingRun] = []
        # Rows moved to the dict tables for a task; `give_back` returns them to the columns.
        self._borrowed: list[_Moved] = []
        # Key groups whose state is newer than `last_applied`: their files get no name yet.
        self._ahead: set[int] = set()
        # Files written for `_ahead`, which the end of `replaying` names or deletes.
        self._unnamed: list[tuple[PendingRun, SortedRun]] = []
        # Key groups that one array cannot hold: they stay in the dict tables.
        self._too_large: set[int] = set()

    def forget(self, key_group: int) -> None:
        """Discard the columns of a key group."""
        self.by_group.pop(key_group, None)
        self.last_applied.pop(key_group, None)
        self._too_large.discard(key_group)

    def live_count(self, key_groups: Iterable[int]) -> int:
        """Return the number of keys of these key groups that are stored in columns."""
        return sum(self.by_group[kg].live_count(kg) for kg in key_groups if kg in self.by_group)

    # --- keys moved from runs into the dict tables, all keys of a task at once --------------------

    def move(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """Move keys, grouped by key group, into the dict tables."""
        self._move_keys(keys)

    def borrow(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """Move keys, grouped by key group, into the dict tables until `give_back` is called."""
        self._borrowed.append(self._move_keys(keys))

    def give_back(self) -> None:
        """Return borrowed keys to the columns; they must not have been changed."""
        # The rows count again, and their copies in the dict tables go: no key is in both.
        for moved in self._borrowed:
            for run, numbers in moved.rows:
                run.put_back(numbers)
            for key_group, key in moved.keys:
                self._groups[key_group].remove(key)
        self._borrowed = []

    def keep_borrowed(self) -> None:
        """Leave the keys that a failed task borrowed in the dict tables."""
        self._borrowed = []

    def move_due(self, key_group_range: KeyGroupRange, state_id: int, until_ms: int) -> None:
        """Move every key that has a timer at or before *until_ms* into the dict tables."""
        rows = []
        for run, key_groups in self._in(key_group_range):
            # A run may have more key groups than were asked for: the others are cut off.
            due = run.due_rows(self.layout.columns[state_id], until_ms)
            start = run.span(key_groups.start).start
            stop = run.span(key_groups.end).stop
            rows.append(_Rows(run, due[(due >= start) & (due < stop)], None))
        self._move_rows(rows)

    def first_timer(
        self, key_group_range: KeyGroupRange, state_id: int, after_ms: int
    ) -> int | None:
        """Return the earliest timer that is still in columns after `move_due`."""
        column = self.layout.columns[state_id]
        times = [run.first_timer(column, after_ms) for run, _ in self._in(key_group_range)]
        return min((time for time in times if time is not None), default=None)

    def move_all(self, key_group_range: KeyGroupRange) -> None:
        """Move all keys of these key groups into the dict tables."""
        for key_group in key_group_range:
            # Out of the runs first: no row of the key group will be looked up again.
            run = self.by_group.pop(key_group, None)
            if run is not None:
                self._move_rows([_Rows(run, run.live_rows(key_group), None)])

    def _move_keys(self, keys: Mapping[int, Iterable[Key]]) -> _Moved:
        """Move keys from the runs into the dict tables; return the keys that were in a run."""
        keys_by_group = {kg: list(group) for kg, group in keys.items() if kg in self.by_group}
        all_keys = [key for group in keys_by_group.values() for key in group]
        if not all_keys:
            return _Moved([], [])
        # The keys of all key groups are hashed together, then looked up in the run of each.
        hashes = self._hashes(all_keys)
        rows = []
        end = 0
        for key_group, group in keys_by_group.items():
            start = end
            end += len(group)
            run = self.by_group[key_group]
            numbers, indexes = run.candidates(key_group, hashes[start:end])
            rows.append(_Rows(run, numbers, [group[index] for index in indexes.tolist()]))
        return self._move_rows(rows)

    def _hashes(self, keys: Sequence[Key]) -> Hashes:
        try:
            return self.layout.hashes(self.layout.codec.key.encode(keys))
        except CapacityError:
            # An Arrow column of text holds 2 GiB at most.
            half = len(keys) // 2
            if not half:
                raise
            return np.concatenate([self._hashes(keys[:half]), self._hashes(keys[half:])])

    def _move_rows(self, rows: Sequence[_Rows]) -> _Moved:
        """Move the rows that are still in the columns into the dict tables."""
        moved = _Moved([], [])
        rows = [of_run for of_run in rows if len(of_run.numbers)]
        if not rows:
            return moved
        # The rows of all runs become one batch, or are moved in two halves if they are too large.
        try:
            batch = one_batch(
                pa.Table.from_batches(
                    [of_run.run.rows.take(pa.array(of_run.numbers)) for of_run in rows]
                )
            )
        except CapacityError:
            for half in _halves(rows):
                moved_half = self._move_rows(half)
                moved.rows.extend(moved_half.rows)
                moved.keys.extend(moved_half.keys)
            return moved
        # A row was found by its hash: it counts only if it has the very key.
        keys = self.layout.keys(batch)
        chosen: list[int] = []
        start = 0
        for run, numbers, searched_keys in rows:
            end = start + len(numbers)
            stored_keys = keys[start:end]
            pairs = zip(
                stored_keys, stored_keys if searched_keys is None else searched_keys, strict=True
            )
            same = [index for index, (stored, searched) in enumerate(pairs) if stored == searched]
            run.moved[numbers[same]] = True
            moved.rows.append((run, numbers[same]))
            chosen += [start + index for index in same]
            start = end
        if len(chosen) < len(keys):  # other keys with the same hash
            batch = batch.take(pa.array(chosen, pa.int64()))
            keys = [keys[index] for index in chosen]
        moved.keys.extend(zip(batch.column(0).to_pylist(), keys, strict=True))
        self._insert(batch, keys)
        return moved

    def _insert(self, batch: pa.RecordBatch, keys: Sequence[Key]) -> None:
        """Decode rows and insert them into the dict tables."""
        key_groups: list[int] = batch.column(0).to_pylist()
        present = dict.fromkeys(key_groups)
        for state_id, column in self.layout.columns.items():
            state = self.layout.codec.states[state_id]
            # One conversion for each variable, whatever the number of key groups.
            cells = state.decode_cells(batch.column(column))
            tables = {key_group: self._groups[key_group].tables[state_id] for key_group in present}
            state.kind.insert_cells(tables, zip(key_groups, keys, cells, strict=True))

    # --- runs and dict tables together, in the layout of a snapshot -------------------------------

    def _in(self, key_group_range: KeyGroupRange) -> list[tuple[SortedRun, KeyGroupRange]]:
        """Return the runs of these key groups, each with its contiguous key groups."""
        runs = []
        # Neighbours in the same run are one slice of it.
        for _, neighbours in groupby(key_group_range, lambda kg: id(self.by_group.get(kg))):
            key_groups = list(neighbours)
            run = self.by_group.get(key_groups[0])
            if run is not None:
                runs.append((run, KeyGroupRange(key_groups[0], key_groups[-1])))
        return runs

    def table(
        self,
        key_group_range: KeyGroupRange,
        overlays: Mapping[int, Overlay] | None = None,
        now_ms: int = -1,
    ) -> pa.Table:
        """
        Return all state of these key groups, sorted by key group.

        The columns are a snapshot's, in several chunks if one array cannot hold them.
        """
        tables = [
            without_expired(self.layout, run.live_table(key_groups), now_ms)
            for run, key_groups in self._in(key_group_range)
        ]
        in_dicts = snapshot_table(
            self.layout.codec, self._groups, overlays or {}, key_group_range, now_ms=now_ms
        )
        # Usually one of both is empty, and nothing has to be sorted.
        filled = [table for table in (*tables, in_dicts) if table.num_rows]
        if len(filled) > 1:
            return by_key_group(pa.concat_tables(filled))
        return filled[0] if filled else in_dicts

    # --- dict tables put into columns -------------------------------------------------------------

    def place(self, run: SortedRun) -> None:
        """Replace all state of *run*'s key groups with *run*, in a file if possible."""
        if self._local is not None and run.rows.num_rows:
            try:
                # A file is named only if `last_applied` describes all of its rows.
                if self._ahead.isdisjoint(run.key_group_range):
                    run = self._local.write(run, *self._applied_to(run))
                else:
                    pending = self._local.begin(run)
                    run = self._local.mapped(pending)
                    self._unnamed.append((pending, run))
            except OSError as error:
                self._without_files(error)
        self.place_in_memory(run)

    def _applied_to(self, run: SortedRun) -> tuple[list[str], int]:
        """Return the last object applied to each key group of a run, and its file's version."""
        key_groups = run.key_group_range
        last_applied = [self.last_applied.get(key_group, "") for key_group in key_groups]
        return last_applied, max(self._groups[key_group].version for key_group in key_groups)

    def place_in_memory(self, run: SortedRun) -> None:
        """Replace all state of *run*'s key groups with *run*, without a file."""
        for key_group in run.key_group_range:
            # The dict tables are emptied: their entries are rows of the run.
            old = self._groups[key_group]
            self._groups[key_group] = KeyGroupState(old.kinds, old.version)
            self.by_group[key_group] = run

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Name the files written during a replay when it ends; delete them if it fails."""
        try:
            yield
            for pending, run in self._end_replay():
                self._name_file(pending, run)
        except BaseException:
            for pending, _ in self._end_replay():
                pending.path.unlink(missing_ok=True)
            raise

    def go_ahead(self, key_groups: Iterable[int]) -> None:
        """Mark key groups as newer than `last_applied` until `replaying` ends."""
        self._ahead.update(key_groups)

    def _end_replay(self) -> list[tuple[PendingRun, SortedRun]]:
        unnamed = self._unnamed
        self._unnamed = []
        self._ahead.clear()
        return unnamed

    def _name_file(self, pending: PendingRun, run: SortedRun) -> None:
        """Give a file its name, unless its run no longer contains all state of its key groups."""
        if self._local is None or not self.is_whole(run):
            pending.path.unlink(missing_ok=True)
            return
        try:
            self._local.publish(pending, *self._applied_to(run), committed=True)
        except OSError as error:
            self._without_files(error)

    def is_whole(self, run: SortedRun) -> bool:
        """
        Return whether a run still contains all state of its key groups.

        None of it was superseded, moved or changed.
        """
        key_groups = run.key_group_range
        # The replay went on after the file was written, and may have changed keys of it.
        is_current = all(self.by_group.get(key_group) is run for key_group in key_groups)
        return (
            is_current
            and not run.moved.any()
            and not any(any(self._groups[key_group].tables) for key_group in key_groups)
        )

    def _without_files(self, error: OSError) -> None:
        where = self._local.folder if self._local is not None else ""
        self._local = None
        _log.warning(
            "cannot write state to %s (%s); this worker keeps it in memory from now on, and no "
            "state is lost. Free space there, or set state.local-directory",
            where,
            error,
        )

    def bound(self) -> int:
        """Move dict tables that exceed their limit to columns; return how many blocks moved."""
        if not self.limits.is_bounded:
            return 0
        groups: Mapping[int, KeyGroupState] = self._groups
        if self._too_large:
            groups = {kg: group for kg, group in groups.items() if kg not in self._too_large}
        # The largest blocks first: fewer of them have to be rewritten.
        chosen = choose_blocks(block_sizes(groups), self.limits.recent_bytes)
        for block in chosen:
            present = [kg for kg in range(block * BLOCK, (block + 1) * BLOCK) if kg in groups]
            for key_groups in contiguous(present):
                self.to_columns(key_groups, self.now_ms)
        return len(chosen)

    def to_columns(self, key_groups: KeyGroupRange, now_ms: int = -1) -> None:
        """Move the state of some key groups to columns, unless it does not fit into one array."""
        try:
            run = build_run(self.layout, key_groups, self.table(key_groups, now_ms=now_ms))
        except CapacityError:
            if len(key_groups) == 1:
                self._too_large.update(key_groups)
                return
            for key_group in key_groups:
                self.to_columns(KeyGroupRange(key_group, key_group), now_ms)
        else:
            self.place(run)

    def restore(self, key_groups: KeyGroupRange, table: pa.Table) -> None:
        """Store a snapshot's rows as all of the state of its key groups, which are still empty."""
        try:
            run = build_run(self.layout, key_groups, table)
        except CapacityError:
            for batch in batches_of(table):
                self._insert(batch, self.layout.keys(batch))
            self.to_columns(key_groups)
        else:
            self.place(run)

    # --- files of this host -----------------------------------------------------------------------

    def restore_local(
        self, handle: ChangelogStateBackendHandle, key_groups: Iterable[int]
    ) -> set[int]:
        """Restore key groups from files that are newer than the state in memory; return which."""
        if self._local is None:
            return set()
        # One file may serve several key groups, and is opened and verified once.
        files = self._newest_files(self._local, handle, set(key_groups))
        restored = set()
        for file in {file.path: file for _, file in files.values()}.values():
            try:
                run = self._local.open(file)
            except (CorruptionError, OSError) as error:
                _log.warning("%s; reading from the store instead", error)
                continue
            for key_group, (version, source) in files.items():
                if source is file:
                    kinds = self._groups[key_group].kinds
                    self._groups[key_group] = KeyGroupState(kinds, version)
                    self.by_group[key_group] = run
                    self.last_applied[key_group] = file.last_applied[key_group]
                    restored.add(key_group)
        return restored

    def _newest_files(
        self, local: RunFiles, handle: ChangelogStateBackendHandle, key_groups: set[int]
    ) -> dict[int, tuple[int, RunFile]]:
        """Return the newest usable file of each key group and its version; delete the others."""
        # A file is as new as the checkpoint whose handle it names; its own number may be of a
        # different run.
        ids = _known_ids(handle, key_groups)
        newest: dict[int, tuple[int, RunFile]] = {}
        for file in local.find(handle.key_group_range):
            is_useful = False
            for key_group, applied in file.last_applied.items():
                version = ids.get(key_group, {}).get(applied)
                is_useful = is_useful or version is not None or key_group not in key_groups
                if version is None or version <= self._groups[key_group].version:
                    continue
                if key_group not in newest or version > newest[key_group][0]:
                    newest[key_group] = version, file
            if not is_useful and file.version <= handle.checkpoint_id:
                file.path.unlink(missing_ok=True)  # no later checkpoint will refer to it either
        return newest

    def begin_snapshot(self, table: pa.Table, key_group_range: KeyGroupRange) -> None:
        """Also write a snapshot's rows to a local file, to which `end_snapshot` gives a name."""
        if self._local is None or not self._in(key_group_range):
            return
        try:
            # Written now, because the rows are sorted already; named when the snapshot is stored.
            run = build_run(self.layout, key_group_range, table)
            self._snapshot_files.append(self._local.begin(run))
        except CapacityError:
            return  # without a file, these key groups are restored from the snapshot
        except OSError as error:
            self._without_files(error)

    def end_snapshot(self, path: str, checkpoint_id: int) -> None:
        """Name the files of a snapshot that was stored at *path*; delete them if *path* is ''."""
        if self._local is None or not path:
            self.drop_snapshot()
        files = self._snapshot_files
        self._snapshot_files = []
        for file in files:
            if self._local is None:
                file.path.unlink(missing_ok=True)
                continue
            try:
                self._local.publish(file, [path] * len(file.key_group_range), checkpoint_id)
            except OSError as error:
                self._without_files(error)

    def drop_snapshot(self) -> None:
        """Delete the files of a snapshot that was not stored."""
        for file in self._snapshot_files:
            file.path.unlink(missing_ok=True)
        self._snapshot_files = []


def _known_ids(
    handle: ChangelogStateBackendHandle, key_groups: set[int]
) -> dict[int, dict[str, int]]:
    """Return the ids of the objects in *handle* and their checkpoints, by key group."""
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
    """Convert ascending key groups to contiguous ranges."""
    ranges = []
    # Within a contiguous range, key group minus position is constant.
    for _, pairs in groupby(enumerate(key_groups), lambda pair: pair[1] - pair[0]):
        members = [key_group for _, key_group in pairs]
        ranges.append(KeyGroupRange(members[0], members[-1]))
    return ranges


def _halves(rows: Sequence[_Rows]) -> list[Sequence[_Rows]]:
    """Split rows in half."""
    half = len(rows) // 2
    if half:
        return [rows[:half], rows[half:]]
    run, numbers, keys = rows[0]
    middle = len(numbers) // 2
    cuts = (slice(0, middle), slice(middle, None))
    return [[_Rows(run, numbers[cut], None if keys is None else keys[cut])] for cut in cuts]


def without_expired(layout: RowLayout, table: pa.Table, now_ms: int) -> pa.Table:
    """Drop entries that expired long before *now_ms* from rows; -1 keeps all entries."""
    states = [(index, layout.codec.states[state_id]) for state_id, index in layout.columns.items()]
    if now_ms < 0 or not any(state.expires for _, state in states):
        return table
    live = []
    for batch in batches_of(table):
        columns = list(batch.columns)
        has_state = np.zeros(batch.num_rows, np.bool_)
        for index, state in states:
            if state.expires:
                columns[index] = state.kind.live_column(columns[index], now_ms - CLOCK_STEP_MS)
            has_state |= columns[index].is_valid().to_numpy(zero_copy_only=False)
        rows = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        live.append(rows if has_state.all() else rows.filter(pa.array(has_state)))
    return pa.Table.from_batches(live)
