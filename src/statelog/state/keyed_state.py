"""
The state that one process holds, and how it is brought forward.

It is a cache.  Any key group may be missing, or be older than the checkpoint a task starts from;
`catch_up` makes the asked range current, from the cheapest source: the task's own last overlay if
that attempt was committed, else the log, else files of this host or a snapshot, and log.

Small state lives in dict tables.  What is too much for them lives in runs of columns (see
`statelog.state.columnar_table`), in files of the host where it may; then a task says which keys it
will touch (`prepare`), and they are moved into the dict tables before it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from statelog.changelog.reader import read_change_batches
from statelog.checkpoint.restore import read_materialized
from statelog.errors import check
from statelog.model import ChangelogStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.state.changes import ChangesReader, OperatorCodec
from statelog.state.columnar_replay import Changes, can_replay_columns, replay_columns
from statelog.state.columnar_table import ColumnarRun, RowLayout, build_run
from statelog.state.expiry import ExpirySweep
from statelog.state.local_runs import LocalRuns
from statelog.state.materialization import (
    is_of_schema,
    parquet_of,
    read_snapshot,
    snapshot_row_count,
    snapshot_tables,
    write_snapshot,
)
from statelog.state.memory import BLOCK, MemoryLimits
from statelog.state.runs import Runs, contiguous, tip_of
from statelog.state.tables import Key, KeyGroupState, Overlay
from statelog.store import ObjectStore

_COLUMNAR_REPLAY_BYTES = 16 * 1024 * 1024
_COLUMNAR_RESTORE_BYTES = 2 * 1024 * 1024
"""So much log is replayed in columns: into state at hand, and into state just restored."""
_FOLDED_SHARE = 0.125
"""Changes folded one by one into dicts take so many times the bytes that they take in the log."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """The overlays of an attempt whose checkpoint may or may not have been committed."""

    checkpoint_id: int
    base_id: int
    state_handle_id: str
    key_group_range: KeyGroupRange
    overlays: dict[int, Overlay]
    runs: dict[int, ColumnarRun]
    """The runs that the overlays' keys were moved out of."""


@dataclass(slots=True)
class CatchUp:
    """
    What `catch_up` did, for the report of a batch.

    Args:
        folded: Key groups brought forward from an own overlay.
        replayed: Change sets read from the log.
        restored: Snapshots read.
        local: Key groups taken from files of this host.
        compacted: Blocks of key groups whose dict tables were put into columns.
    """

    folded: int = 0
    replayed: int = 0
    restored: int = 0
    local: int = 0
    compacted: int = 0


class KeyedState:
    """
    The tables of some key groups of one operator, in this process.

    Args:
        codec: The operator's codec.
        limits: How much memory it may take; None keeps everything in dict tables.
        local: Opens the host's files, if there may be some; only with *limits*.

    Thread: one at a time; Spark runs one task in a Python worker.
    """

    def __init__(
        self,
        codec: OperatorCodec,
        limits: MemoryLimits | None = None,
        local: Callable[[RowLayout], LocalRuns | None] = lambda _layout: None,
    ) -> None:
        self.codec = codec
        self.groups: dict[int, KeyGroupState] = {}
        self._staged: list[_Staged] = []
        self._runs: Runs | None = None
        if limits is not None:
            layout = RowLayout(codec)
            self._runs = Runs(layout, self.groups, limits, local(layout))
        states = codec.schema.states
        self._sweep = ExpirySweep(codec.kinds, [state.ttl_ms for state in states])

    def sweep(self, key_group_range: KeyGroupRange, now_ms: int) -> int:
        """
        Take some expired entries of a task's key groups out of memory; return how many.

        What expired in columns goes when its block is rewritten.
        """
        if self._runs is not None:
            self._runs.now_ms = now_ms
        return self._sweep.sweep({kg: self.groups[kg] for kg in key_group_range}, now_ms)

    def stage(
        self,
        checkpoint_id: int,
        base_id: int,
        state_handle_id: str,
        key_group_range: KeyGroupRange,
        overlays: dict[int, Overlay],
    ) -> None:
        """Keep the overlays of an attempt at *checkpoint_id* until its fate is known."""
        runs = {} if self._runs is None else dict(self._runs.by_group)
        self._staged.append(
            _Staged(checkpoint_id, base_id, state_handle_id, key_group_range, overlays, runs)
        )

    def prepare(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """
        Make keys, by key group, ready to be looked at and changed.

        Every key that an overlay will hold must be named here, or found by `prepare_due` or
        `prepare_all`, before it is looked at.
        """
        if self._runs is not None:
            self._runs.move(keys)

    def borrow(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """
        Make keys ready as `prepare` does, until `give_back`.

        For a task that has more keys than memory: what it holds of them is dropped in between.
        """
        if self._runs is not None:
            self._runs.borrow(keys)

    def give_back(self) -> None:
        """Hold the keys that were borrowed in columns again; they must not have been folded."""
        if self._runs is not None:
            self._runs.give_back()

    def prepare_due(self, key_group_range: KeyGroupRange, state_id: int, until_ms: int) -> None:
        """Make the keys ready that have a timer at or before *until_ms*."""
        if self._runs is not None:
            self._runs.move_due(key_group_range, state_id, until_ms)

    def first_timer_in_columns(
        self, key_group_range: KeyGroupRange, state_id: int, after_ms: int
    ) -> int | None:
        """Return the earliest timer of the keys in columns; None for none.  See `prepare_due`."""
        if self._runs is None:
            return None
        return self._runs.first_timer(key_group_range, state_id, after_ms)

    def prepare_all(self, key_group_range: KeyGroupRange) -> None:
        """Make all keys ready; they must fit into memory."""
        if self._runs is not None:
            self._runs.move_all(key_group_range)

    @property
    def is_columnar(self) -> bool:
        """Whether some state is in columns, so that `prepare` has something to do."""
        return self._runs is not None and bool(self._runs.by_group)

    def entry_count(self, key_group_range: KeyGroupRange) -> int:
        """Return the number of state entries; a key in columns counts as one."""
        entries = sum(len(table) for kg in key_group_range for table in self.groups[kg].tables)
        return entries + (0 if self._runs is None else self._runs.live_count(key_group_range))

    def object_count(self) -> int:
        """Return the number of entries that are Python objects, in all key groups held."""
        return sum(len(table) for group in self.groups.values() for table in group.tables)

    def snapshot(
        self, key_group_range: KeyGroupRange, overlays: Mapping[int, Overlay], now_ms: int
    ) -> bytes:
        """
        Return the state with *overlays* folded in as a Parquet file; see `write_snapshot`.

        Call `end_snapshot` when it is written.
        """
        runs = self._runs
        if runs is None or not self.is_columnar:
            return write_snapshot(self.codec, self.groups, overlays, key_group_range, now_ms=now_ms)
        runs.end_snapshot("", -1)  # of an attempt that failed
        self.prepare({kg: _keys(overlay) for kg, overlay in overlays.items()})

        def tables() -> Iterator[pa.Table]:
            for part in blocks(key_group_range):
                table = runs.table(part, overlays, now_ms)
                runs.begin_snapshot(table, part)
                yield table

        return parquet_of(tables())

    def end_snapshot(self, snapshot: MaterializedHandle) -> None:
        """Tell where the bytes of `snapshot` went."""
        if self._runs is not None:
            self._runs.end_snapshot(tip_of(snapshot), snapshot.checkpoint_id)

    def catch_up(
        self,
        key_group_range: KeyGroupRange,
        base_id: int,
        committed: Collection[str],
        load: Callable[[], tuple[ObjectStore, ChangelogStateBackendHandle]],
    ) -> CatchUp:
        """
        Bring the key groups of *key_group_range* to checkpoint *base_id*.

        Args:
            key_group_range: What the task owns.
            base_id: The checkpoint to start from; -1 for the empty state.
            committed: Ids of the log handles that make up checkpoint *base_id*.
            load: Returns the store and what to restore from; called only if something is missing.

        Raises:
            CorruptionError: A snapshot or log file is damaged.

        Blocks: While objects are read.
        """
        done = CatchUp()
        if self._runs is not None:
            self._runs.keep_borrowed()
        self._fold_staged(base_id, committed, done)
        missing = []
        for key_group in key_group_range:
            group = self.groups.get(key_group)
            # Newer than wanted can only be a leftover of a run that was rolled back.
            if group is None or group.version > base_id:
                self._begin(key_group)
            if self.groups[key_group].version < base_id:
                missing.append(key_group)
        if missing:
            try:
                self._bring_forward(key_group_range, base_id, missing, load, done)
            except BaseException:
                if self._runs is not None:
                    self._runs.drop_files()
                for key_group in missing:  # half brought forward: append twice would be wrong
                    self._begin(key_group)
                raise
        if self._runs is not None:
            done.compacted += self._runs.bound()
        return done

    def _begin(self, key_group: int) -> None:
        self.groups[key_group] = KeyGroupState(self.codec.kinds)
        if self._runs is not None:
            self._runs.forget(key_group)

    def _fold_staged(self, base_id: int, committed: Collection[str], done: CatchUp) -> None:
        for staged in self._staged:
            if staged.checkpoint_id != base_id or staged.state_handle_id not in committed:
                continue
            for key_group in staged.key_group_range:
                group = self.groups.get(key_group)
                if group is None or group.version != staged.base_id:
                    continue
                overlay = staged.overlays.get(key_group)
                if overlay is not None:
                    if self._runs is not None and (
                        self._runs.by_group.get(key_group) is not staged.runs.get(key_group)
                    ):
                        self.prepare({key_group: _keys(overlay)})
                    group.fold(overlay)
                self._reached(key_group, base_id, staged.state_handle_id)
                done.folded += 1
        self._staged = [staged for staged in self._staged if staged.checkpoint_id > base_id]

    def _reached(self, key_group: int, version: int, tip: str) -> None:
        self.groups[key_group].version = version
        if self._runs is not None:
            self._runs.tips[key_group] = tip

    def _bring_forward(
        self,
        key_group_range: KeyGroupRange,
        base_id: int,
        missing: Sequence[int],
        load: Callable[[], tuple[ObjectStore, ChangelogStateBackendHandle]],
        done: CatchUp,
    ) -> None:
        store, handle = load()
        fresh = {kg for kg in missing if self.groups[kg].version < 0}
        for materialized in handle.materialized:
            for kg in materialized.key_group_range.intersection(key_group_range):
                if self.groups[kg].version < materialized.checkpoint_id:
                    fresh.add(kg)
        if self._runs is not None and fresh:
            done.local += len(self._runs.restore_local(handle, fresh))
        self._restore(store, handle, key_group_range, done)
        replay = _Replay(self, self._runs, bool(fresh), done)
        replay.run(store, handle, key_group_range)
        for key_group in missing:
            self.groups[key_group].version = base_id

    def _restore(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        done: CatchUp,
    ) -> None:
        rows = 0
        for materialized in handle.materialized:
            wanted = materialized.key_group_range.intersection(key_group_range)
            version = materialized.checkpoint_id
            old = [kg for kg in wanted if self.groups[kg].version < version]
            if not old:
                continue
            data = read_materialized(store, materialized)
            done.restored += 1
            for key_group in old:
                self._begin(key_group)
                self._reached(key_group, version, tip_of(materialized))
            if self._runs is not None:
                rows += snapshot_row_count(data, wanted)
                if rows > self._runs.limits.dict_rows:
                    self._restore_columns(self._runs, data, contiguous(old))
                    continue
            tables = read_snapshot(self.codec, data, wanted)
            for key_group in old:
                if key_group in tables:
                    self.groups[key_group].tables = tables[key_group]

    def _restore_columns(
        self, runs: Runs, data: memoryview, key_groups: Iterable[KeyGroupRange]
    ) -> None:
        """Read a snapshot into runs, a few key groups at a time."""
        if is_of_schema(self.codec, data):
            for wanted in key_groups:
                schema = runs.layout.table_schema
                for part, table in snapshot_tables(data, wanted, schema, BLOCK):
                    runs.place(build_run(runs.layout, part, table))
            return
        for part in (block for wanted in key_groups for block in blocks(wanted)):
            for key_group, tables in read_snapshot(self.codec, data, part).items():
                self.groups[key_group].tables = tables
            runs.place(build_run(runs.layout, part, runs.table(part)))


class _Replay:
    """
    One replay of the log: change by change into dict tables, or many at once in columns.

    Args:
        state: What is brought forward.
        runs: Its columnar part, if it has one.
        fresh: Whether key groups hold nothing but what was restored just now.
        done: Told what was done.
    """

    def __init__(self, state: KeyedState, runs: Runs | None, fresh: bool, done: CatchUp) -> None:
        self._state = state
        self._runs = runs
        self._fresh = fresh
        self._done = done
        self._pending: dict[int, Changes] = {}
        self._pending_bytes = 0
        self._folded_bytes = 0
        self._reached: dict[int, tuple[int, str]] = {}
        self._rows = 0
        self._light: list[ColumnarRun] = []

    def run(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
    ) -> None:
        """Replay what *handle* has for the range and the state does not."""
        groups = self._state.groups
        in_columns = self._is_long(handle.log)
        last = -1
        for log in handle.log:
            check(log.checkpoint_id >= last, "log handles are not in the order of checkpoints")
            last = log.checkpoint_id
            wanted = log.key_group_range.intersection(key_group_range)
            old = {kg for kg in wanted if groups[kg].version < log.checkpoint_id}
            if not old:
                continue
            reader = self._state.codec.reader()
            for batch in read_change_batches(store, log, key_group_range=wanted):
                self._done.replayed += 1
                self._take(reader, batch, old, in_columns)
                self._bound(old)
            for key_group in old:
                self._reached[key_group] = log.checkpoint_id, log.state_handle_id
            if not in_columns or self._pending_bytes > self._limit:
                self._flush()
        self._flush()
        self._settle()
        if self._runs is not None:
            self._runs.name_files()

    def _bound(self, key_groups: Collection[int]) -> None:
        """Apply what is pending in the middle of a log handle, where it is too much for memory."""
        runs = self._runs
        if runs is None:
            return
        if self._pending_bytes > self._limit:
            runs.goes_ahead(key_groups)
            self._flush()
        if self._folded_bytes > self._limit * _FOLDED_SHARE:
            runs.goes_ahead(key_groups)
            self._folded_bytes = 0
            self._done.compacted += runs.bound()

    def _take(
        self, reader: ChangesReader, batch: pa.RecordBatch, old: Collection[int], in_columns: bool
    ) -> None:
        """Take changes of the key groups in *old*, now or with the next flush."""
        changes = reader.batches(batch.column(0).to_pylist(), batch.column(1).to_pylist())
        kept = {
            state_id: [change for change in part if change[0] in old]
            for state_id, part in changes.items()
        }
        if in_columns and reader.is_present:
            self._collect(kept)
        else:
            self._flush()  # what stands before this in the log
            self._fold(reader, kept)
            self._folded_bytes += batch.nbytes

    @property
    def _limit(self) -> int:
        return 0 if self._runs is None else self._runs.limits.pending_bytes

    def _is_long(self, log: Sequence[ChangelogStateHandle]) -> bool:
        if self._runs is None or not can_replay_columns(self._state.codec):
            return False
        groups = self._state.groups
        size = sum(
            one.size_bytes
            for one in log
            if any(groups[kg].version < one.checkpoint_id for kg in one.key_group_range)
        )
        return size > (_COLUMNAR_RESTORE_BYTES if self._fresh else _COLUMNAR_REPLAY_BYTES)

    def _collect(self, changes: Mapping[int, Changes]) -> None:
        for state_id, part in changes.items():
            self._pending.setdefault(state_id, []).extend(part)
            self._pending_bytes += sum(batch.nbytes for _, batch in part)

    def _fold(self, reader: ChangesReader, changes: Mapping[int, Changes]) -> None:
        overlays = reader.overlays({s: part for s, part in changes.items() if part})
        if self._state.is_columnar:
            self._state.prepare({kg: _keys(overlay) for kg, overlay in overlays.items()})
        for key_group, overlay in overlays.items():
            self._state.groups[key_group].fold(overlay)

    def _flush(self) -> None:
        """Apply what is pending, and note how far the key groups have come."""
        if not self._reached and not self._pending:
            return
        reached, self._reached = self._reached, {}
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        touched = sorted({kg for part in pending.values() for kg, _ in part})
        for key_group, (version, tip) in reached.items():
            self._state._reached(key_group, version, tip)
        if self._runs is None:
            return
        for part in (block for run in contiguous(touched) for block in blocks(run)):
            self._merge(self._runs, part, _of_block(pending, part))
        if not touched:
            self._done.compacted += self._runs.bound()

    def _merge(self, runs: Runs, part: KeyGroupRange, changes: Mapping[int, Changes]) -> None:
        run = replay_columns(runs.layout, part, runs.table(part), changes)
        if run is None:
            reader = self._state.codec.present_reader()
            for state_id, some in changes.items():
                for change in some:  # one by one: a key group may have several
                    self._fold(reader, {state_id: [change]})
            return
        self._rows += run.rows.num_rows
        if self._rows > runs.limits.dict_rows:
            runs.place(run)
        else:
            runs.place_in_memory(run)
            self._light.append(run)

    def _settle(self) -> None:
        """Make dict tables of a small state, and put the beginning of a large one into files."""
        if self._runs is None:
            return
        for run in self._light:
            part = run.key_group_range
            if any(self._runs.by_group.get(kg) is not run for kg in part):
                continue
            if self._rows > self._runs.limits.dict_rows:
                self._runs.place(run)
            else:
                self._runs.move_all(part)


def _of_block(changes: Mapping[int, Changes], part: KeyGroupRange) -> dict[int, Changes]:
    return {
        state_id: [change for change in some if change[0] in part]
        for state_id, some in changes.items()
    }


def blocks(key_group_range: KeyGroupRange) -> Iterator[KeyGroupRange]:
    """Yield the range in the pieces that are rewritten together."""
    start = key_group_range.start
    while start <= key_group_range.end:
        end = min(start // BLOCK * BLOCK + BLOCK - 1, key_group_range.end)
        yield KeyGroupRange(start, end)
        start = end + 1


def _keys(overlay: Overlay) -> set[Key]:
    return {key for deltas in overlay for key in deltas}
