"""Replay of the log into the tables: one change after another, or many at once in columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from statelog.changelog.reader import read_logs
from statelog.errors import CapacityError
from statelog.model import ChangelogStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.state.cache import CatchUp, logs_ahead
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

    def version(self, key_group: int) -> int:
        """Return the checkpoint of a key group."""

    def reached(self, key_groups: Iterable[int], checkpoint_id: int, applied: str = "") -> None:
        """Note the checkpoint of key groups, and the handle applied last."""


class Replay:
    """Replay the log into dict tables, or many changes at once in columns."""

    def __init__(self, state: ReplayTarget, runs: RunSet, fresh: bool, done: CatchUp) -> None:
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
        in_columns = self._is_long(handle.log)
        logs = list(logs_ahead(handle, key_group_range, self._state.version))
        changes = read_logs(store, [(log, part) for log, part, _ in logs])
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
        self._runs.name_files()

    def _bound(self, key_groups: Collection[int]) -> None:
        """Apply pending changes within a log handle, if memory requires it."""
        runs = self._runs
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
        return self._runs.limits.pending_bytes

    def _is_long(self, log: Sequence[ChangelogStateHandle]) -> bool:
        if not (self._runs.limits.is_bounded and can_replay_columns(self._state.codec)):
            return False
        version = self._state.version
        size = sum(
            each.size_bytes
            for each in log
            if any(version(kg) < each.checkpoint_id for kg in each.key_group_range)
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
        for key_group, (version, applied) in reached.items():
            self._state.reached([key_group], version, applied)
        for part in (block for run in contiguous(touched) for block in blocks(run)):
            self._merge(self._runs, part, _of_block(pending, part))
        if not touched:
            self._done.compacted += self._runs.bound()

    def _merge(self, runs: RunSet, part: KeyGroupRange, changes: Mapping[int, Changes]) -> None:
        try:
            run = replay_columns(runs.layout, part, runs.table(part), changes)
        except CapacityError:  # dict tables hold any number of bytes
            run = None
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
        for run in self._light:
            part = run.key_group_range
            if any(self._runs.by_group.get(kg) is not run for kg in part):
                continue
            if self._rows > self._runs.limits.dict_rows:
                if self._runs.is_whole(run):  # later changes may have been folded into dict tables
                    self._runs.place(run)
            else:
                self._runs.move_all(part)


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
