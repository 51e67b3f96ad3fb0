"""
The columnar state of a processor in one process.

Snapshots and changes are the same as of `KeyedState`: a processor of Rows and a columnar one can
take over each other's state, as long as it consists of values and timers.  A change replaces the
whole cell, so that a change that is applied twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa

from statelog.changelog.reader import read_logs
from statelog.extensions.columns.slots.slot_table import SlotTable, Writes
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.state.cache import ABSENT, CatchUp, Staged, StateCache, logs_ahead
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.run_set import contiguous
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import ChangesReader, OperatorCodec
from statelog.state.encoding.snapshot_file import tables_in_schema
from statelog.state.heap import MemoryLimits
from statelog.state.replay import changes_of
from statelog.store import ObjectStore


class SlotState(StateCache[Writes]):
    """
    The state of some key groups of one operator, in this process.

    Attributes: `table`: the cells.

    Thread: one at a time; Spark runs one task in a Python worker.
    """

    def __init__(
        self,
        codec: OperatorCodec,
        limits: MemoryLimits | None = None,
        files: Callable[[RowLayout], RunFiles | None] = lambda _layout: None,
    ) -> None:
        super().__init__(codec)
        self.table = SlotTable(codec, None if limits is None else limits.recent_bytes, files)
        self._versions: dict[int, int] = {}

    def stage(
        self,
        checkpoint_id: int,
        base_id: int,
        state_handle_id: str,
        key_group_range: KeyGroupRange,
    ) -> None:
        """Store an attempt's pending writes until the next `catch_up`."""
        writes = self.table.writes()
        self._staged.append(
            Staged(checkpoint_id, base_id, state_handle_id, key_group_range, writes)
        )

    def entry_counts(self, key_group_range: KeyGroupRange) -> list[int]:
        """Return the number of state entries of each key group, without pending writes."""
        return self.table.entry_counts(key_group_range)

    def end_snapshot(self, snapshot: MaterializedHandle) -> None:
        """Do nothing, because snapshots are not also written to local files."""

    def expire_incrementally(self, key_group_range: KeyGroupRange, now_ms: int) -> int:
        """Remove some expired cells; return how many were removed."""
        self.table.now_ms = now_ms
        return 0 if self._staged else self.table.expire()

    def version(self, key_group: int) -> int:
        """
        Return the checkpoint of a key group.

        -1 for the empty state, `ABSENT` if it is not held.
        """
        return self._versions.get(key_group, ABSENT)

    def reached(self, key_groups: Iterable[int], checkpoint_id: int, applied: str = "") -> None:
        """Record that key groups have reached the state of a checkpoint."""
        self._versions.update(dict.fromkeys(key_groups, checkpoint_id))

    def forget(self, key_groups: Sequence[int]) -> None:
        """Discard the state of some key groups; the next `catch_up` restores it."""
        self.table.remove([kg for kg in key_groups if kg in self._versions])
        self.reached(key_groups, -1)

    def _fold(self, staged: Staged[Writes], key_groups: Sequence[int]) -> None:
        # Some key groups may have been restored meanwhile, and have the changes already.
        every = len(key_groups) == len(staged.key_group_range)
        for state_id, (slots, positions) in staged.writes.items():
            if not every:
                is_ready = np.isin(self.table.index.key_groups(slots), key_groups)
                slots = slots[is_ready]
                positions = positions[is_ready]
            self.table.fold(state_id, slots, positions)

    def _bring_forward(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        caught_up: CatchUp,
    ) -> None:
        self._restore(store, handle, key_group_range, caught_up)
        self._replay(store, handle, key_group_range, caught_up)

    def _insert(
        self, data: memoryview, key_group_range: KeyGroupRange, key_groups: Sequence[int]
    ) -> None:
        for span in contiguous(key_groups):
            schema = self.table.layout.table_schema
            for block, table in tables_in_schema(self.codec, data, span, schema):
                self.table.insert(block, table)

    def _end_attempt(self) -> None:
        self.table.forget_pending()

    def _bound(self) -> int:
        if self._staged:
            return 0  # what is staged has positions in the table
        self.table.tidy()
        return self.table.bound()

    def _replay(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        caught_up: CatchUp,
    ) -> None:
        logs = list(logs_ahead(handle, key_group_range, self.version))
        changes = read_logs(store, [(log, replayed_groups) for log, replayed_groups, _ in logs])
        for (log, _, old), batches in zip(logs, changes, strict=True):
            reader = self.codec.reader()
            for batch in batches:
                caught_up.replayed += 1
                self._take(reader, batch, old)
                if self.table.is_full:
                    self._staged = []  # a task that comes back for one of them replays the log
                    caught_up.compacted += self.table.bound()
            self.reached(old, log.checkpoint_id)

    def _take(self, reader: ChangesReader, batch: pa.RecordBatch, old: Collection[int]) -> None:
        """Apply the changes in one set to the key groups in *old*."""
        for state_id, changes in reader.in_present_schema(changes_of(reader, batch, old)).items():
            if changes:
                self.table.apply(state_id, changes)
