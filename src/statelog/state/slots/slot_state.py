"""
The state of a columnar processor in one process, and how it is brought forward.

It is a cache, as `KeyedState` is: `catch_up` brings a range of key groups to the checkpoint that a
task starts from, from the last writes of the task itself if that attempt was committed, else from the
log, else from snapshots and the log.

Snapshots and changes are those of `KeyedState`: a processor of Rows and a columnar one can take over
each other's state, as long as it consists of values and timers.  A change replaces the whole cell, so
that a change that is applied twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statelog.changelog.read_ahead import read_logs
from statelog.checkpoint.state_stream import read_materialized
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.run_set import contiguous
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import ChangesReader, OperatorCodec
from statelog.state.encoding.snapshot_file import (
    is_of_schema,
    read_snapshot,
    snapshot_table,
    snapshot_tables,
)
from statelog.state.heap.memory import BLOCK, MemoryLimits, blocks
from statelog.state.heap.tables import KeyGroupState
from statelog.state.replay import (
    CatchUp,
    by_outcome,
    changes_of,
    logs_ahead,
    snapshots_ahead,
)
from statelog.state.slots.slot_table import SlotTable, Writes
from statelog.store import ObjectStore


@dataclass(frozen=True, slots=True)
class _Staged:
    """The writes of an attempt that may be committed."""

    checkpoint_id: int
    base_id: int
    state_handle_id: str
    key_group_range: KeyGroupRange
    writes: Writes


class SlotState:
    """
    The state of some key groups of one operator, in this process.

    Args:
        codec: The operator's codec.
        limits: How much memory it may take; None for no bound.
        files: Opens the host's files, if there may be some.

    Attributes: `table`: the cells.

    Raises:
        UsageError: The operator has list or map state.

    Thread: one at a time; Spark runs one task in a Python worker.
    """

    def __init__(
        self,
        codec: OperatorCodec,
        limits: MemoryLimits | None = None,
        files: Callable[[RowLayout], RunFiles | None] = lambda _layout: None,
    ) -> None:
        self.codec = codec
        self.table = SlotTable(codec, None if limits is None else limits.recent_bytes, files)
        self._versions: dict[int, int] = {}
        self._staged: list[_Staged] = []

    def stage(
        self,
        checkpoint_id: int,
        base_id: int,
        state_handle_id: str,
        key_group_range: KeyGroupRange,
    ) -> None:
        """Keep what is pending of an attempt for the next `catch_up`."""
        writes = self.table.writes()
        self._staged.append(
            _Staged(checkpoint_id, base_id, state_handle_id, key_group_range, writes)
        )

    def entry_counts(self, key_group_range: KeyGroupRange) -> list[int]:
        """Return the number of state entries of each key group, without what is pending."""
        return self.table.entry_counts(key_group_range)

    def object_count(self) -> int:
        """Return 0: no entry is an object that the garbage collector visits."""
        return 0

    def end_snapshot(self, snapshot: MaterializedHandle) -> None:
        """Do nothing: there are no local files to name after a snapshot."""

    def expire_incrementally(self, key_group_range: KeyGroupRange, now_ms: int) -> int:
        """Remove some expired cells; return how many."""
        self.table.now_ms = now_ms
        return 0 if self._staged else self.table.expire()

    def catch_up(
        self,
        key_group_range: KeyGroupRange,
        base_id: int,
        committed: Collection[str],
        load: Callable[[], tuple[ObjectStore, ChangelogStateBackendHandle]],
    ) -> CatchUp:
        """
        Bring the key groups of *key_group_range* to checkpoint *base_id*.

        Arguments, errors and `Blocks:` are those of `KeyedState.catch_up`.
        """
        done = CatchUp()
        self.table.forget_pending()
        made, earlier, self._staged = by_outcome(self._staged, base_id, committed)
        for staged in made:
            self._fold(staged, done)
        # Newer than wanted can only be a leftover of a run that was rolled back.
        self._begin([kg for kg in key_group_range if not self._is_usable(kg, base_id)])
        missing = [kg for kg in key_group_range if self._versions[kg] < base_id]
        if missing:
            try:
                store, handle = load()
                logged = {log.state_handle_id for log in handle.log}
                for staged in earlier:  # of a micro-batch before those that were missed
                    if staged.state_handle_id in logged:
                        self._fold(staged, done)
                self._restore(store, handle, key_group_range, done)
                self._replay(store, handle, key_group_range, done)
            except BaseException:
                self._begin(missing)
                raise
            self._versions.update(dict.fromkeys(missing, base_id))
        if not self._staged:
            self.table.tidy()
            done.compacted += self.table.bound()
        return done

    def _is_usable(self, key_group: int, base_id: int) -> bool:
        version = self._versions.get(key_group)
        return version is not None and version <= base_id

    def _begin(self, key_groups: Sequence[int]) -> None:
        """Empty some key groups."""
        self.table.remove([kg for kg in key_groups if kg in self._versions])
        self._versions.update(dict.fromkeys(key_groups, -1))

    def _fold(self, staged: _Staged, done: CatchUp) -> None:
        """Fold the writes of an attempt that was committed."""
        ready = [kg for kg in staged.key_group_range if self._versions.get(kg) == staged.base_id]
        every = len(ready) == len(staged.key_group_range)
        for state_id, (slots, positions) in staged.writes.items():
            if not every:
                mine = np.isin(self.table.index.key_groups(slots), ready)
                slots, positions = slots[mine], positions[mine]
            self.table.fold(state_id, slots, positions)
        self._versions.update(dict.fromkeys(ready, staged.checkpoint_id))
        done.folded += len(ready)

    def _restore(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        done: CatchUp,
    ) -> None:
        for snapshot, _, old in snapshots_ahead(
            handle, key_group_range, self._versions.__getitem__
        ):
            data = read_materialized(store, snapshot)
            done.restored += 1
            self._begin(old)
            for part in contiguous(old):
                for block, table in self._tables_of(data, part):
                    self.table.insert(block, table)
            self._versions.update(dict.fromkeys(old, snapshot.checkpoint_id))

    def _tables_of(
        self, data: memoryview, part: KeyGroupRange
    ) -> Iterator[tuple[KeyGroupRange, pa.Table]]:
        """Yield the rows of a snapshot in the columns of the present schema, by key groups."""
        if is_of_schema(self.codec, data):
            schema = self.table.layout.table_schema
            yield from snapshot_tables(data, part, schema, BLOCK)
            return
        for block in blocks(part):
            groups = {}
            for key_group, tables in read_snapshot(self.codec, data, block).items():
                groups[key_group] = KeyGroupState(self.codec.kinds)
                groups[key_group].tables = tables
            yield block, snapshot_table(self.codec, groups, {}, block, now_ms=-1)

    def _replay(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        done: CatchUp,
    ) -> None:
        logs = list(logs_ahead(handle, key_group_range, self._versions.__getitem__))
        changes = read_logs(store, [(log, wanted) for log, wanted, _ in logs])
        for (log, _, old), batches in zip(logs, changes, strict=True):
            reader = self.codec.reader()
            for batch in batches:
                done.replayed += 1
                self._take(reader, batch, old)
                if self.table.is_full:
                    self._staged = []  # a task that comes back for one of them replays the log
                    done.compacted += self.table.bound()
            self._versions.update(dict.fromkeys(old, log.checkpoint_id))

    def _take(self, reader: ChangesReader, batch: pa.RecordBatch, old: Collection[int]) -> None:
        """Apply the changes of one set to the key groups in *old*."""
        kept = changes_of(reader, batch, old)
        if not reader.is_present:
            kept = self._in_present_schema(reader, kept)
        for state_id, part in kept.items():
            if part:
                self.table.apply(state_id, part)

    def _in_present_schema(
        self, reader: ChangesReader, changes: Mapping[int, list[tuple[int, pa.RecordBatch]]]
    ) -> dict[int, list[tuple[int, pa.RecordBatch]]]:
        """Return changes that an earlier schema wrote as those of the present one."""
        converted: dict[int, list[tuple[int, pa.RecordBatch]]] = {}
        overlays = reader.overlays({at: part for at, part in changes.items() if part})
        for key_group, overlay in overlays.items():
            for state_id in self.table.columns:
                if overlay[state_id]:
                    state = self.codec.states[state_id]
                    operations = state.batch(state.operations(overlay[state_id]))
                    converted.setdefault(state_id, []).append((key_group, operations))
        return converted
