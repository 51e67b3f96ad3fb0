"""
State as Python objects in one process, for processors that use Rows.

Small state is kept in dict tables.  State beyond the memory budget is kept in runs of columns (see
`statelog.state.columnar.sorted_run`), in files of the host where these are allowed.  A task then
names the keys it will use (`prepare`), and they are moved into the dict tables first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.state.cache import ABSENT, CatchUp, Staged, StateCache, path_of, snapshots_ahead
from statelog.state.columnar.run_set import RunSet, contiguous
from statelog.state.columnar.sorted_run import RowLayout, SortedRun
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import (
    parquet_of,
    read_snapshot,
    snapshot_row_count,
    tables_in_schema,
    write_snapshot,
)
from statelog.state.heap import (
    IncrementalExpiry,
    KeyGroupState,
    MemoryLimits,
    Overlay,
    blocks,
)
from statelog.state.kinds import Key
from statelog.state.replay import Replay, keys_of
from statelog.store import ObjectStore

if TYPE_CHECKING:
    from statelog.state.columnar.run_files import RunFiles


@dataclass(frozen=True, slots=True)
class _Writes:
    """The writes of an attempt: its overlays, and the runs that contained their keys."""

    overlays: dict[int, Overlay]
    runs: dict[int, SortedRun]


class KeyedState(StateCache[_Writes]):
    """
    The tables of some key groups of one operator, in this process.

    Thread: one at a time; Spark runs one task in a Python worker.
    """

    def __init__(
        self,
        codec: OperatorCodec,
        limits: MemoryLimits | None = None,
        local: Callable[[RowLayout], RunFiles | None] = lambda _layout: None,
    ) -> None:
        super().__init__(codec)
        self.groups: dict[int, KeyGroupState] = {}
        self.changed: set[int] = set()
        layout = RowLayout(codec)
        self._runs = RunSet(layout, self.groups, limits or MemoryLimits.unbounded(), local(layout))
        self._restored_rows = 0
        states = codec.schema.states
        self._expiry = IncrementalExpiry(codec.kinds, [state.ttl_ms for state in states])

    def expire_incrementally(self, key_group_range: KeyGroupRange, now_ms: int) -> int:
        """
        Remove some expired entries from memory; return how many.

        Expired entries in columns are removed when their block is rewritten.
        """
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
        """Store the overlays of an attempt until the next `catch_up`."""
        # With the runs of now: by them `_fold` sees whether keys were put into columns since.
        writes = _Writes(overlays, dict(self._runs.by_group))
        self._staged.append(
            Staged(checkpoint_id, base_id, state_handle_id, key_group_range, writes)
        )

    def prepare(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """
        Prepare keys, grouped by key group, so that they can be read and changed.

        Every key that an overlay will hold must be passed here, or be found by `prepare_due` or
        `prepare_all`, before it is read.
        """
        self._runs.move(keys)

    def borrow(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """
        Prepare keys, like `prepare`, until `give_back` is called.

        For a task with more keys than memory, which drops their changes in between.
        """
        self._runs.borrow(keys)

    def give_back(self) -> None:
        """Return borrowed keys to the columns; they must not have been changed."""
        self._runs.give_back()

    def prepare_due(self, key_group_range: KeyGroupRange, state_id: int, until_ms: int) -> None:
        """Prepare the keys that have a timer at or before *until_ms*."""
        self._runs.move_due(key_group_range, state_id, until_ms)

    def first_timer_in_columns(
        self, key_group_range: KeyGroupRange, state_id: int, after_ms: int
    ) -> int | None:
        """Return the earliest timer that is still in columns after `prepare_due`, or None."""
        return self._runs.first_timer(key_group_range, state_id, after_ms)

    def prepare_all(self, key_group_range: KeyGroupRange) -> None:
        """Prepare all keys, which must all fit into memory."""
        self._runs.move_all(key_group_range)

    @property
    def is_columnar(self) -> bool:
        """Whether any state is in columns, which makes `prepare` necessary."""
        return bool(self._runs.by_group)

    def entry_count(self, key_group_range: KeyGroupRange) -> int:
        """Return the number of state entries; each key in columns counts as one entry."""
        entries = sum(len(table) for kg in key_group_range for table in self.groups[kg].tables)
        return entries + self._runs.live_count(key_group_range)

    def entry_counts(self, key_group_range: KeyGroupRange) -> list[int]:
        """Return the number of state entries of each key group; see `entry_count`."""
        if self.is_columnar:
            return [self.entry_count(KeyGroupRange(kg, kg)) for kg in key_group_range]
        return [sum(map(len, self.groups[kg].tables)) for kg in key_group_range]

    def table(self, key_group_range: KeyGroupRange) -> pa.Table:
        """Return all state of these key groups in snapshot columns."""
        return self._runs.table(key_group_range)

    def snapshot(
        self, key_group_range: KeyGroupRange, overlays: Mapping[int, Overlay], now_ms: int
    ) -> bytes:
        """
        Write the state, with *overlays* applied, as Parquet; see `write_snapshot`.

        Call `end_snapshot` when it is written.
        """
        runs = self._runs
        if not self.is_columnar:
            return write_snapshot(self.codec, self.groups, overlays, key_group_range, now_ms=now_ms)
        runs.drop_snapshot()  # of an attempt that failed
        self.prepare({kg: keys_of(overlay) for kg, overlay in overlays.items()})

        def tables() -> Iterator[pa.Table]:
            # Block by block, so that no more than one block is in memory twice.
            for block in blocks(key_group_range):
                table = runs.table(block, overlays, now_ms)
                runs.begin_snapshot(table, block)
                yield table

        return parquet_of(tables())

    def end_snapshot(self, snapshot: MaterializedHandle) -> None:
        """Record the file to which the bytes of `snapshot` were written."""
        self._runs.end_snapshot(path_of(snapshot), snapshot.checkpoint_id)

    def version(self, key_group: int) -> int:
        """
        Return the checkpoint of a key group.

        -1 for the empty state, `ABSENT` if it is not held.
        """
        group = self.groups.get(key_group)
        return ABSENT if group is None else group.version

    def reached(self, key_groups: Iterable[int], checkpoint_id: int, applied: str = "") -> None:
        """Record the checkpoint that key groups have reached, and the object last applied."""
        for key_group in key_groups:
            self.groups[key_group].version = checkpoint_id
            if applied:
                self._runs.last_applied[key_group] = applied

    def forget(self, key_groups: Iterable[int]) -> None:
        """Discard the state of some key groups; the next `catch_up` restores it."""
        for key_group in key_groups:
            self.changed.add(key_group)
            self.groups[key_group] = KeyGroupState(self.codec.kinds)
            self._runs.forget(key_group)

    def _fold(self, staged: Staged[_Writes], key_groups: Sequence[int]) -> None:
        overlays = staged.writes.overlays
        runs = staged.writes.runs
        for key_group in key_groups:
            overlay = overlays.get(key_group)
            if overlay is None:
                continue
            # The block was put into columns after the attempt: its keys have to be moved out again.
            if self._runs.by_group.get(key_group) is not runs.get(key_group):
                self.prepare({key_group: keys_of(overlay)})
            self.groups[key_group].fold(overlay)

    def _bring_forward(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        caught_up: CatchUp,
    ) -> None:
        # Files of this host help only where a snapshot would be read.
        fresh = {kg for kg in key_group_range if self.version(kg) < 0}
        for _, _, old in snapshots_ahead(handle, key_group_range, self.version):
            fresh.update(old)
        caught_up.local += len(self._runs.restore_local(handle, fresh))
        self._restored_rows = 0
        self._restore(store, handle, key_group_range, caught_up)
        Replay(self, self._runs, bool(fresh), caught_up).run(store, handle, key_group_range)

    def _insert(
        self, data: memoryview, key_group_range: KeyGroupRange, key_groups: Sequence[int]
    ) -> None:
        # Counted over all snapshots of this restore: many small ones are as much as a large one.
        self._restored_rows += snapshot_row_count(data, key_group_range)
        if self._restored_rows > self._runs.limits.dict_rows:
            self._restore_columns(data, contiguous(key_groups))
            return
        tables = read_snapshot(self.codec, data, key_group_range)
        for key_group in key_groups:
            if key_group in tables:
                self.groups[key_group].tables = tables[key_group]

    def _end_attempt(self) -> None:
        self._runs.keep_borrowed()

    def _bound(self) -> int:
        return self._runs.bound()

    def _restore_columns(self, data: memoryview, key_groups: Iterable[KeyGroupRange]) -> None:
        """Read a snapshot into runs, a few key groups at a time."""
        schema = self._runs.layout.table_schema
        for neighbours in key_groups:
            for block, table in tables_in_schema(self.codec, data, neighbours, schema):
                self._runs.restore(block, table)
