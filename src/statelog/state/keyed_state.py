"""
The state that one process holds, and how it is brought forward.

It is a cache.  Any key group may be missing, or be older than the checkpoint a task starts from.
`catch_up` brings a range to that checkpoint from the cheapest source: the last overlay of the task
itself if that attempt was committed, else the log, else files of this host or a snapshot, then the
log.

Small state is kept in dict tables.  State beyond the memory budget is kept in runs of columns (see
`statelog.state.columnar.sorted_run`), in files of the host where these are allowed.  A task then
names the keys it will use (`prepare`), and they are moved into the dict tables first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from statelog.checkpoint.state_stream import read_materialized
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.run_set import RunSet, contiguous, path_of
from statelog.state.columnar.sorted_run import RowLayout, SortedRun, build_run
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import (
    is_of_schema,
    parquet_of,
    read_snapshot,
    snapshot_row_count,
    snapshot_table,
    snapshot_tables,
    write_snapshot,
)
from statelog.state.heap.expiry import IncrementalExpiry
from statelog.state.heap.memory import BLOCK, MemoryLimits, blocks
from statelog.state.heap.tables import KeyGroupState, Overlay
from statelog.state.kinds import Key
from statelog.state.replay import CatchUp, Replay, by_outcome, keys_of, snapshots_ahead
from statelog.store import ObjectStore


@dataclass(frozen=True, slots=True)
class _Staged:
    """The overlays of an attempt that may be committed."""

    checkpoint_id: int
    base_id: int
    state_handle_id: str
    key_group_range: KeyGroupRange
    overlays: dict[int, Overlay]
    runs: dict[int, SortedRun]
    """The runs that the overlays' keys were moved out of."""


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
        local: Callable[[RowLayout], RunFiles | None] = lambda _layout: None,
    ) -> None:
        self.codec = codec
        self.groups: dict[int, KeyGroupState] = {}
        self.changed: set[int] = set()
        self._staged: list[_Staged] = []
        self._runs: RunSet | None = None
        if limits is not None:
            layout = RowLayout(codec)
            self._runs = RunSet(layout, self.groups, limits, local(layout))
        states = codec.schema.states
        self._expiry = IncrementalExpiry(codec.kinds, [state.ttl_ms for state in states])

    def expire_incrementally(self, key_group_range: KeyGroupRange, now_ms: int) -> int:
        """
        Remove some expired entries from memory; return how many.

        Expired entries in columns are removed when their block is rewritten.
        """
        if self._runs is not None:
            self._runs.now_ms = now_ms
        return self._expiry.expire({kg: self.groups[kg] for kg in key_group_range}, now_ms)

    def stage(
        self,
        checkpoint_id: int,
        base_id: int,
        state_handle_id: str,
        key_group_range: KeyGroupRange,
        overlays: dict[int, Overlay],
    ) -> None:
        """Keep the overlays of an attempt for the next `catch_up`."""
        runs = {} if self._runs is None else dict(self._runs.by_group)
        self._staged.append(
            _Staged(checkpoint_id, base_id, state_handle_id, key_group_range, overlays, runs)
        )

    def prepare(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """
        Make keys, by key group, ready to be read and changed.

        Every key that an overlay will hold must be passed here, or be found by `prepare_due` or
        `prepare_all`, before it is read.
        """
        if self._runs is not None:
            self._runs.move(keys)

    def borrow(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """
        Make keys ready as `prepare` does, until `give_back`.

        For a task with more keys than memory, which drops their changes in between.
        """
        if self._runs is not None:
            self._runs.borrow(keys)

    def give_back(self) -> None:
        """Return borrowed keys to the columns; no fold may have changed them."""
        if self._runs is not None:
            self._runs.give_back()

    def prepare_due(self, key_group_range: KeyGroupRange, state_id: int, until_ms: int) -> None:
        """Make the keys ready that have a timer at or before *until_ms*."""
        if self._runs is not None:
            self._runs.move_due(key_group_range, state_id, until_ms)

    def first_timer_in_columns(
        self, key_group_range: KeyGroupRange, state_id: int, after_ms: int
    ) -> int | None:
        """Return the earliest timer in columns after `prepare_due`, or None."""
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

    def entry_counts(self, key_group_range: KeyGroupRange) -> list[int]:
        """Return the number of state entries of each key group; see `entry_count`."""
        return [self.entry_count(KeyGroupRange(kg, kg)) for kg in key_group_range]

    def object_count(self) -> int:
        """Return the number of entries in dict tables, of all key groups."""
        return sum(len(table) for group in self.groups.values() for table in group.tables)

    def table(self, key_group_range: KeyGroupRange) -> pa.Table:
        """Return all state of these key groups in the columns of a snapshot."""
        if self._runs is not None:
            return self._runs.table(key_group_range)
        return snapshot_table(self.codec, self.groups, {}, key_group_range, now_ms=-1)

    def table_of_key(self, key_group: int, key: Key) -> pa.Table:
        """Return the state of one key in the columns of a snapshot; no row without any."""
        self.borrow({key_group: [key]})
        try:
            group = self.groups[key_group]
            alone = KeyGroupState(self.codec.kinds, group.version)
            for mine, table in zip(alone.tables, group.tables, strict=True):
                if key in table:
                    mine[key] = table[key]
            span = KeyGroupRange(key_group, key_group)
            return snapshot_table(self.codec, {key_group: alone}, {}, span, now_ms=-1)
        finally:
            self.give_back()

    def snapshot(
        self, key_group_range: KeyGroupRange, overlays: Mapping[int, Overlay], now_ms: int
    ) -> bytes:
        """
        Return the state with *overlays* as Parquet; see `write_snapshot`.

        Call `end_snapshot` when it is written.
        """
        runs = self._runs
        if runs is None or not self.is_columnar:
            return write_snapshot(self.codec, self.groups, overlays, key_group_range, now_ms=now_ms)
        runs.end_snapshot("", -1)  # of an attempt that failed
        self.prepare({kg: keys_of(overlay) for kg, overlay in overlays.items()})

        def tables() -> Iterator[pa.Table]:
            for part in blocks(key_group_range):
                table = runs.table(part, overlays, now_ms)
                runs.begin_snapshot(table, part)
                yield table

        return parquet_of(tables())

    def end_snapshot(self, snapshot: MaterializedHandle) -> None:
        """Note the file that the bytes of `snapshot` were written to."""
        if self._runs is not None:
            self._runs.end_snapshot(path_of(snapshot), snapshot.checkpoint_id)

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
        made, earlier, self._staged = by_outcome(self._staged, base_id, committed)
        for staged in made:
            self._fold(staged, done)
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
                store, handle = load()
                logged = {log.state_handle_id for log in handle.log}
                for staged in earlier:  # of a micro-batch before those that were missed
                    if staged.state_handle_id in logged:
                        self._fold(staged, done)
                self._bring_forward(key_group_range, base_id, missing, (store, handle), done)
            except BaseException:
                if self._runs is not None:
                    self._runs.drop_files()
                for key_group in missing:  # half brought forward: append twice would be wrong
                    self._begin(key_group)
                raise
        if self._runs is not None:
            done.compacted += self._runs.bound()
        return done

    def forget(self, key_groups: Iterable[int]) -> None:
        """Drop the state of some key groups; the next `catch_up` restores them."""
        for key_group in key_groups:
            self._begin(key_group)

    def _begin(self, key_group: int) -> None:
        self.changed.add(key_group)
        self.groups[key_group] = KeyGroupState(self.codec.kinds)
        if self._runs is not None:
            self._runs.forget(key_group)

    def _fold(self, staged: _Staged, done: CatchUp) -> None:
        """Fold the overlays of an attempt that was committed."""
        for key_group in staged.key_group_range:
            group = self.groups.get(key_group)
            if group is None or group.version != staged.base_id:
                continue
            overlay = staged.overlays.get(key_group)
            if overlay is not None:
                if self._runs is not None and (
                    self._runs.by_group.get(key_group) is not staged.runs.get(key_group)
                ):
                    self.prepare({key_group: keys_of(overlay)})
                group.fold(overlay)
            self.reached(key_group, staged.checkpoint_id, staged.state_handle_id)
            done.folded += 1

    def reached(self, key_group: int, version: int, last_applied: str) -> None:
        """Note the checkpoint of a key group, and the handle applied last."""
        self.groups[key_group].version = version
        if self._runs is not None:
            self._runs.last_applied[key_group] = last_applied

    def _bring_forward(
        self,
        key_group_range: KeyGroupRange,
        base_id: int,
        missing: Sequence[int],
        source: tuple[ObjectStore, ChangelogStateBackendHandle],
        done: CatchUp,
    ) -> None:
        store, handle = source
        fresh = {kg for kg in missing if self.groups[kg].version < 0}
        for snapshot in handle.materialized:
            for kg in snapshot.key_group_range.intersection(key_group_range):
                if self.groups[kg].version < snapshot.checkpoint_id:
                    fresh.add(kg)
        if self._runs is not None and fresh:
            done.local += len(self._runs.restore_local(handle, fresh))
        self._restore(store, handle, key_group_range, done)
        replay = Replay(self, self._runs, bool(fresh), done)
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
        for snapshot, wanted, old in snapshots_ahead(
            handle, key_group_range, lambda kg: self.groups[kg].version
        ):
            data = read_materialized(store, snapshot)
            done.restored += 1
            for key_group in old:
                self._begin(key_group)
                self.reached(key_group, snapshot.checkpoint_id, path_of(snapshot))
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
        self, runs: RunSet, data: memoryview, key_groups: Iterable[KeyGroupRange]
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
