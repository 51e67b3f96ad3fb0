"""
The state that one process holds, and how it is brought forward.

It is a cache.  Any key group may be missing, or be older than the checkpoint a task starts from;
`catch_up` makes the asked range current, from the cheapest source: the task's own last overlay if
that attempt was committed, else the log, else snapshot and log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from statelog.changelog.reader import read_change_batches
from statelog.checkpoint.restore import read_materialized
from statelog.errors import check
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.state.changes import OperatorCodec
from statelog.state.expiry import ExpirySweep
from statelog.state.materialization import read_snapshot
from statelog.state.tables import KeyGroupState, Overlay
from statelog.store import ObjectStore


@dataclass(frozen=True, slots=True)
class _Staged:
    """The overlays of an attempt whose checkpoint may or may not have been committed."""

    checkpoint_id: int
    base_id: int
    state_handle_id: str
    key_group_range: KeyGroupRange
    overlays: dict[int, Overlay]


@dataclass(slots=True)
class CatchUp:
    """
    What `catch_up` did, for the report of a batch.

    Args:
        folded: Key groups brought forward from an own overlay.
        replayed: Change sets read from the log.
        restored: Snapshots read.
    """

    folded: int = 0
    replayed: int = 0
    restored: int = 0


class KeyedState:
    """
    The tables of some key groups of one operator, in this process.

    Args:
        codec: The operator's codec.

    Thread: one at a time; Spark runs one task in a Python worker.
    """

    def __init__(self, codec: OperatorCodec) -> None:
        self.codec = codec
        self.groups: dict[int, KeyGroupState] = {}
        self._staged: list[_Staged] = []
        states = codec.schema.states
        self._sweep = ExpirySweep(codec.kinds, [state.ttl_ms for state in states])

    def sweep(self, key_group_range: KeyGroupRange, now_ms: int) -> int:
        """Take some expired entries of a task's key groups out of memory; return how many."""
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
        self._staged.append(
            _Staged(checkpoint_id, base_id, state_handle_id, key_group_range, overlays)
        )

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
        self._fold_staged(base_id, committed, done)
        groups = []
        for key_group in key_group_range:
            group = self.groups.get(key_group)
            # Newer than wanted can only be a leftover of a run that was rolled back.
            if group is None or group.version > base_id:
                group = self.groups[key_group] = KeyGroupState(self.codec.kinds)
            if group.version < base_id:
                groups.append(key_group)
        if groups:
            store, handle = load()
            self._restore(store, handle, key_group_range, done)
            self._replay(store, handle, key_group_range, done)
            for key_group in key_group_range:
                self.groups[key_group].version = base_id
        return done

    def _fold_staged(self, base_id: int, committed: Collection[str], done: CatchUp) -> None:
        for staged in self._staged:
            if staged.checkpoint_id != base_id or staged.state_handle_id not in committed:
                continue
            for key_group in staged.key_group_range:
                group = self.groups.get(key_group)
                if group is None or group.version != staged.base_id:
                    continue
                if key_group in staged.overlays:
                    group.fold(staged.overlays[key_group])
                group.version = base_id
                done.folded += 1
        self._staged = [staged for staged in self._staged if staged.checkpoint_id > base_id]

    def _restore(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        done: CatchUp,
    ) -> None:
        for materialized in handle.materialized:
            wanted = materialized.key_group_range.intersection(key_group_range)
            old = [kg for kg in wanted if self.groups[kg].version < materialized.checkpoint_id]
            if not old:
                continue
            tables = read_snapshot(self.codec, read_materialized(store, materialized), wanted)
            done.restored += 1
            for key_group in old:
                group = KeyGroupState(self.codec.kinds, materialized.checkpoint_id)
                if key_group in tables:
                    group.tables = tables[key_group]
                self.groups[key_group] = group

    def _replay(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        done: CatchUp,
    ) -> None:
        last = -1
        for log in handle.log:
            check(log.checkpoint_id >= last, "log handles are not in the order of checkpoints")
            last = log.checkpoint_id
            wanted = log.key_group_range.intersection(key_group_range)
            old = {kg for kg in wanted if self.groups[kg].version < log.checkpoint_id}
            if not old:
                continue
            reader = self.codec.reader()
            for batch in read_change_batches(store, log, key_group_range=wanted):
                done.replayed += 1
                overlays = reader.decode(batch.column(0).to_pylist(), batch.column(1).to_pylist())
                for key_group, overlay in overlays.items():
                    if key_group in old:
                        self.groups[key_group].fold(overlay)
            for key_group in old:
                self.groups[key_group].version = log.checkpoint_id
