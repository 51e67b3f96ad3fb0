"""
Cache an operator's state in a process, and update it to newer checkpoints.

It is a cache.  Each key group may be missing, or be at another checkpoint than the one a task
starts from.  `StateCache.catch_up` brings a range to that checkpoint from the cheapest source: what
the task itself staged, if that attempt was committed, else the log, else files of this host or a
snapshot, then the log.

`KeyedState` holds Python objects, and columns where they are too many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from statelog.checkpoint.state_stream import read_materialized
from statelog.errors import CorruptionError
from statelog.model import ChangelogStateHandle, FileStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.state.encoding.changes import OperatorCodec
from statelog.store import ObjectStore

ABSENT: Final = -2
"""The version of a key group that is not in memory."""

WritesT = TypeVar("WritesT", covariant=True)


@dataclass(slots=True)
class CatchUp:
    """
    Counters for the work that one call of `catch_up` did, for the micro-batch's report.

    Args:
        folded: Key groups brought forward by what their own attempt staged.
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


@dataclass(frozen=True, slots=True)
class Staged(Generic[WritesT]):
    """A task attempt's writes, stored until it is known whether they were committed."""

    checkpoint_id: int
    base_id: int
    state_handle_id: str
    key_group_range: KeyGroupRange
    writes: WritesT


class StateCache(ABC, Generic[WritesT]):
    """
    The state of some key groups of one operator, in this process.

    Thread: one at a time; Spark runs one task in a Python worker.
    """

    def __init__(self, codec: OperatorCodec) -> None:
        self.codec = codec
        self._staged: list[Staged[WritesT]] = []

    def catch_up(
        self,
        key_group_range: KeyGroupRange,
        base_id: int,
        committed: Collection[str],
        load: Callable[[], tuple[ObjectStore, ChangelogStateBackendHandle]],
    ) -> CatchUp:
        """Bring the key groups in *key_group_range* up to checkpoint *base_id*."""
        caught_up = CatchUp()
        # 1. Settle the attempts of this process: those that made *base_id* are folded in.
        self._end_attempt()
        committed_now, earlier, self._staged = by_outcome(self._staged, base_id, committed)
        for staged in committed_now:
            self._fold_committed(staged, caught_up)
        # Newer than *base_id* can only be a leftover of a run that was rolled back.
        self.forget([kg for kg in key_group_range if not -1 <= self.version(kg) <= base_id])
        # 2. What other workers did for these key groups comes from the log and the snapshots.
        missing = [kg for kg in key_group_range if self.version(kg) < base_id]
        if missing:
            try:
                store, handle = load()
                logged = {log.state_handle_id for log in handle.log}
                for staged in earlier:  # of a micro-batch before those that were missed
                    if staged.state_handle_id in logged:
                        self._fold_committed(staged, caught_up)
                self._bring_forward(store, handle, key_group_range, caught_up)
                self.reached(missing, base_id)
            except BaseException:
                self.forget(missing)  # half brought forward: an append applied twice would be wrong
                raise
        # 3. Both made the tables larger.
        caught_up.compacted += self._bound()
        return caught_up

    def _fold_committed(self, staged: Staged[WritesT], caught_up: CatchUp) -> None:
        base_id = staged.base_id
        # A key group at another version was restored meanwhile, and must not get the deltas twice.
        ready = [kg for kg in staged.key_group_range if self.version(kg) == base_id]
        self._fold(staged, ready)
        self.reached(ready, staged.checkpoint_id, staged.state_handle_id)
        caught_up.folded += len(ready)

    def _restore(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        caught_up: CatchUp,
    ) -> None:
        """Restore key groups from the snapshots in *handle* that are newer than their state."""
        for snapshot, key_groups, old in snapshots_ahead(handle, key_group_range, self.version):
            data = read_materialized(store, snapshot)
            caught_up.restored += 1
            self.forget(old)
            self.reached(old, snapshot.checkpoint_id, path_of(snapshot))
            self._insert(data, key_groups, old)

    @abstractmethod
    def version(self, key_group: int) -> int:
        """
        Return the checkpoint of a key group.

        -1 for the empty state, `ABSENT` if it is not held.
        """

    @abstractmethod
    def reached(self, key_groups: Iterable[int], checkpoint_id: int, applied: str = "") -> None:
        """Record the checkpoint that key groups have reached, and the object last applied."""

    @abstractmethod
    def forget(self, key_groups: Sequence[int]) -> None:
        """Discard the state of some key groups; the next `catch_up` restores it."""

    @abstractmethod
    def expire_incrementally(self, key_group_range: KeyGroupRange, now_ms: int) -> int:
        """Remove some expired entries from memory; return how many."""

    @abstractmethod
    def entry_counts(self, key_group_range: KeyGroupRange) -> list[int]:
        """Return the number of committed state entries of each key group."""

    @abstractmethod
    def end_snapshot(self, snapshot: MaterializedHandle) -> None:
        """Record the file that a snapshot of this state was written to."""

    @abstractmethod
    def _fold(self, staged: Staged[WritesT], key_groups: Sequence[int]) -> None:
        """Apply the writes of a committed attempt to *key_groups*."""

    @abstractmethod
    def _bring_forward(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
        caught_up: CatchUp,
    ) -> None:
        """Restore snapshots and replay the log for key groups that are older than *handle*."""

    @abstractmethod
    def _insert(
        self, data: memoryview, key_group_range: KeyGroupRange, key_groups: Sequence[int]
    ) -> None:
        """Restore *key_groups*, which are in the range and still empty, from a snapshot's bytes."""

    @abstractmethod
    def _end_attempt(self) -> None:
        """Clean up after an attempt whose work was not staged."""

    @abstractmethod
    def _bound(self) -> int:
        """Enforce the memory limit; return how many blocks were moved to columns."""


AnyState: TypeAlias = "StateCache[object]"
"""The state of an operator, in whatever form a worker keeps it."""


def by_outcome(
    staged: Iterable[Staged[WritesT]], base_id: int, committed: Collection[str]
) -> tuple[list[Staged[WritesT]], list[Staged[WritesT]], list[Staged[WritesT]]]:
    """
    Split attempts into attempts of checkpoint *base_id*, earlier ones and later ones.

    Those that were meant for it and are not in *committed* failed, and are in no list.
    """
    parts: tuple[list[Staged[WritesT]], list[Staged[WritesT]], list[Staged[WritesT]]] = ([], [], [])
    for attempt in staged:
        if attempt.checkpoint_id != base_id:
            parts[1 if attempt.checkpoint_id < base_id else 2].append(attempt)
        elif attempt.state_handle_id in committed:
            parts[0].append(attempt)
    return parts


def path_of(snapshot: MaterializedHandle) -> str:
    """Return the path of a snapshot, which identifies it, or '' without a snapshot."""
    return snapshot.handle.path if isinstance(snapshot.handle, FileStateHandle) else ""


def snapshots_ahead(
    handle: ChangelogStateBackendHandle,
    key_group_range: KeyGroupRange,
    version_of: Callable[[int], int],
) -> Iterator[tuple[MaterializedHandle, KeyGroupRange, list[int]]]:
    """
    Yield the snapshots that are newer than the state of some key groups.

    Returns:
        Each snapshot with its key groups in *key_group_range*, and which of them are older.
    """
    lowest = _lowest(key_group_range, version_of)
    for snapshot in handle.materialized:
        if snapshot.checkpoint_id <= lowest:
            continue
        key_groups = snapshot.key_group_range.intersection(key_group_range)
        old = [kg for kg in key_groups if version_of(kg) < snapshot.checkpoint_id]
        if old:
            yield snapshot, key_groups, old


def logs_ahead(
    handle: ChangelogStateBackendHandle,
    key_group_range: KeyGroupRange,
    version_of: Callable[[int], int],
) -> Iterator[tuple[ChangelogStateHandle, KeyGroupRange, set[int]]]:
    """Yield the parts of the log that are newer than the state, like `snapshots_ahead`."""
    last = -1
    lowest = _lowest(key_group_range, version_of)
    for log in handle.log:
        # Appends are not idempotent, so the order of the log is the state.
        if log.checkpoint_id < last:
            raise CorruptionError(
                f"damaged checkpoint {handle.checkpoint_id}: the log of checkpoint {log.checkpoint_id} "
                f"follows the log of {last}",
                checkpoint_id=handle.checkpoint_id,
            )
        last = log.checkpoint_id
        if last <= lowest:
            continue
        key_groups = log.key_group_range.intersection(key_group_range)
        old = {kg for kg in key_groups if version_of(kg) < log.checkpoint_id}
        if old:
            yield log, key_groups, old


def _lowest(key_group_range: KeyGroupRange, version_of: Callable[[int], int]) -> int:
    """Return the oldest version in the range; a replay can skip the log up to that version."""
    return min(map(version_of, key_group_range))
