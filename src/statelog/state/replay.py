"""Replay of the log into the tables: one change after another, or many at once in columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from statelog.changelog.read_ahead import read_logs
from statelog.errors import CorruptionError
from statelog.model import ChangelogStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.state.columnar.replay import Changes, can_replay_columns, replay_columns
from statelog.state.columnar.run_set import RunSet, contiguous
from statelog.state.columnar.sorted_run import SortedRun
from statelog.state.encoding.changes import ChangesReader, OperatorCodec
from statelog.state.heap.memory import blocks
from statelog.state.heap.tables import KeyGroupState, Overlay
from statelog.state.kinds import Key
from statelog.store import ObjectStore

_COLUMNAR_REPLAY_BYTES = 16 * 1024 * 1024
_COLUMNAR_RESTORE_BYTES = 2 * 1024 * 1024
"""Sizes from which a log is replayed in columns: into state in use, into state just restored."""
_FOLDED_SHARE = 0.125
"""Bytes in the log per byte that changes folded into dicts take in memory."""


class ReplayTarget(Protocol):
    """What a replay brings forward; `KeyedState` is one."""

    groups: dict[int, KeyGroupState]
    codec: OperatorCodec
    changed: set[int]
    """Key groups whose content a replay or restore changed, since the owner emptied it."""

    @property
    def is_columnar(self) -> bool:
        """Whether some state is in columns, so that `prepare` has something to do."""

    def prepare(self, keys: Mapping[int, Iterable[Key]]) -> None:
        """Make keys, by key group, ready to be changed."""

    def reached(self, key_group: int, version: int, last_applied: str) -> None:
        """Note the checkpoint of a key group, and the handle applied last."""


@dataclass(slots=True)
class CatchUp:
    """
    Count what one `catch_up` did, for the report of a batch.

    Args:
        folded: Key groups brought forward by the overlay of their own attempt.
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


class StagedAttempt(Protocol):
    """What an attempt of a task wrote, kept until it is known whether it was committed."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that it is part of, if it was committed."""

    @property
    def state_handle_id(self) -> str:
        """Its part of the log."""


_Staged = TypeVar("_Staged", bound=StagedAttempt)


def by_outcome(
    staged: Iterable[_Staged], base_id: int, committed: Collection[str]
) -> tuple[list[_Staged], list[_Staged], list[_Staged]]:
    """
    Return the attempts that made checkpoint *base_id*, those before it, and those behind it.

    Those that were meant for it and are not in *committed* failed, and are in no list.
    """
    parts: tuple[list[_Staged], list[_Staged], list[_Staged]] = ([], [], [])
    for one in staged:
        if one.checkpoint_id != base_id:
            parts[1 if one.checkpoint_id < base_id else 2].append(one)
        elif one.state_handle_id in committed:
            parts[0].append(one)
    return parts


class Replay:
    """
    Replay the log into dict tables, or many changes at once in columns.

    Args:
        state: What is brought forward.
        runs: Its columnar part, if it has one.
        fresh: Whether the key groups were all restored just now.
        done: Counters to update.
    """

    def __init__(
        self, state: ReplayTarget, runs: RunSet | None, fresh: bool, done: CatchUp
    ) -> None:
        self._state = state
        self._runs = runs
        self._fresh = fresh
        self._done = done
        self._pending: dict[int, Changes] = {}
        self._pending_bytes = 0
        self._folded_bytes = 0
        self._reached: dict[int, tuple[int, str]] = {}
        self._rows = 0
        self._light: list[SortedRun] = []

    def run(
        self,
        store: ObjectStore,
        handle: ChangelogStateBackendHandle,
        key_group_range: KeyGroupRange,
    ) -> None:
        """Replay the log of *handle* that the state does not have."""
        groups = self._state.groups
        in_columns = self._is_long(handle.log)
        logs = list(logs_ahead(handle, key_group_range, lambda kg: groups[kg].version))
        changes = read_logs(store, [(log, wanted) for log, wanted, _ in logs])
        for (log, _, old), batches in zip(logs, changes, strict=True):
            reader = self._state.codec.reader()
            for batch in batches:
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
        """Apply pending changes within a log handle, if memory requires it."""
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
        """Apply changes of the key groups in *old*, or collect them."""
        kept = changes_of(reader, batch, old)
        if in_columns and reader.is_present:
            self._collect(kept)
        else:
            self._flush()  # changes before these in the log
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
            self._state.prepare({kg: keys_of(overlay) for kg, overlay in overlays.items()})
        self._state.changed.update(overlays)
        for key_group, overlay in overlays.items():
            self._state.groups[key_group].fold(overlay)

    def _flush(self) -> None:
        """Apply pending changes, and note the versions reached."""
        if not self._reached and not self._pending:
            return
        reached, self._reached = self._reached, {}
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        touched = sorted({kg for part in pending.values() for kg, _ in part})
        self._state.changed.update(touched)
        for key_group, (version, last_applied) in reached.items():
            self._state.reached(key_group, version, last_applied)
        if self._runs is None:
            return
        for part in (block for run in contiguous(touched) for block in blocks(run)):
            self._merge(self._runs, part, _of_block(pending, part))
        if not touched:
            self._done.compacted += self._runs.bound()

    def _merge(self, runs: RunSet, part: KeyGroupRange, changes: Mapping[int, Changes]) -> None:
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
        """Make dict tables of a small state, and files of a large one."""
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


def snapshots_ahead(
    handle: ChangelogStateBackendHandle,
    key_group_range: KeyGroupRange,
    version_of: Callable[[int], int],
) -> Iterator[tuple[MaterializedHandle, KeyGroupRange, list[int]]]:
    """
    Yield the snapshots that bring a state forward.

    Args:
        handle: A checkpoint.
        key_group_range: The key groups of the state.
        version_of: Returns the checkpoint of a key group; asked before each snapshot.

    Returns:
        Each snapshot with its key groups in *key_group_range*, and which of them are older.
    """
    lowest = _lowest(key_group_range, version_of)
    for snapshot in handle.materialized:
        if snapshot.checkpoint_id <= lowest:
            continue
        wanted = snapshot.key_group_range.intersection(key_group_range)
        old = [kg for kg in wanted if version_of(kg) < snapshot.checkpoint_id]
        if old:
            yield snapshot, wanted, old


def logs_ahead(
    handle: ChangelogStateBackendHandle,
    key_group_range: KeyGroupRange,
    version_of: Callable[[int], int],
) -> Iterator[tuple[ChangelogStateHandle, KeyGroupRange, set[int]]]:
    """
    Yield the parts of the log that bring a state forward, as `snapshots_ahead` does.

    Raises:
        CorruptionError: They are not in the order of checkpoints, as those of every checkpoint are.
    """
    last, lowest = -1, _lowest(key_group_range, version_of)
    for log in handle.log:
        if log.checkpoint_id < last:
            raise CorruptionError(
                f"damaged checkpoint {handle.checkpoint_id}: the log of checkpoint {log.checkpoint_id} "
                f"follows that of {last}",
                checkpoint_id=handle.checkpoint_id,
            )
        last = log.checkpoint_id
        if last <= lowest:
            continue
        wanted = log.key_group_range.intersection(key_group_range)
        old = {kg for kg in wanted if version_of(kg) < log.checkpoint_id}
        if old:
            yield log, wanted, old


def _lowest(key_group_range: KeyGroupRange, version_of: Callable[[int], int]) -> int:
    """Return the oldest version in the range; replay skips the log before it."""
    return min(map(version_of, key_group_range))


def changes_of(
    reader: ChangesReader, batch: pa.RecordBatch, key_groups: Collection[int]
) -> dict[int, Changes]:
    """Return the changes of some key groups in a batch of the log, by state id."""
    changes = reader.batches(batch.column(0).to_pylist(), batch.column(1).to_pylist())
    return {
        state_id: [change for change in part if change[0] in key_groups]
        for state_id, part in changes.items()
    }


def _of_block(changes: Mapping[int, Changes], part: KeyGroupRange) -> dict[int, Changes]:
    return {
        state_id: [change for change in some if change[0] in part]
        for state_id, some in changes.items()
    }


def keys_of(overlay: Overlay) -> set[Key]:
    """Return the keys that *overlay* changes, over all state variables."""
    return {key for deltas in overlay for key in deltas}
