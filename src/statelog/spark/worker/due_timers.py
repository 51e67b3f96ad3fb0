"""
Find the timers that are due in a task, and when its next timer is due.

A task with much input appends the changes of each part of its rows to the log and drops them from
memory.  Timers fire after all rows and need the changes of their keys again.  So the changes are
stored in the task's file on the local disk, and read back for the keys whose timers are due.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from statelog.model import ChangeBatch, KeyGroupRange
from statelog.spark.worker.protocol import NEVER_MS
from statelog.spark.worker.spill_file import Piece, SpillFile
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import KeyGroupState, Overlay
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_hash import hash_columns
from statelog.state.kinds import Key


class RetiredChanges:
    """
    The changes made by earlier parts of the input, which timers need.

    Attributes: `due`: (time, key group, key) of the timers that are due after the rows;
    `first_ms`: time of the first timer later than these.
    """

    def __init__(
        self, codec: OperatorCodec, timers_id: int, until_ms: int, file: SpillFile
    ) -> None:
        self._codec = codec
        self._timers_id = timers_id
        self._until_ms = until_ms
        self._file = file
        self._pieces: dict[int, list[Piece]] = {}
        self._superseded: dict[int, set[Key]] = {}
        self.due: list[tuple[int, int, Key]] = []
        self.first_ms = NEVER_MS

    def add(
        self,
        groups: Mapping[int, KeyGroupState],
        overlays: Mapping[int, Overlay],
        changes: ChangeBatch,
    ) -> None:
        """Store the changes made by one part."""
        for key_group, value in zip(
            changes.key_groups.tolist(), changes.values.to_pylist(), strict=True
        ):
            self._pieces.setdefault(key_group, []).append(self._file.write(value))
        until = self._until_ms
        for key_group, overlay in overlays.items():
            # The table still has the timers from before: a key that changed them must not fire the
            # old ones.
            before = groups[key_group].tables[self._timers_id]
            for key, times in overlay[self._timers_id].items():
                due_count = bisect.bisect(times, until)
                self.due += [(time, key_group, key) for time in times[:due_count]]
                if due_count < len(times):
                    self.first_ms = min(self.first_ms, times[due_count])
                old = before.get(key)
                if old and old[0] <= until:
                    self._superseded.setdefault(key_group, set()).add(key)

    def superseded(self, key_group: int) -> Collection[Key]:
        """Return the keys whose timers were already due before the micro-batch changed them."""
        return self._superseded.get(key_group, ())

    def brought_forward(
        self, key_group: int, group: KeyGroupState, keys: Collection[Key]
    ) -> KeyGroupState:
        """Return the state of some keys with the stored changes applied."""
        # A state of a few keys only: the other keys do not fire.
        forward = KeyGroupState(group.kinds, group.version)
        for state_id, table in enumerate(group.tables):
            forward.tables[state_id] = {key: table[key] for key in keys if key in table}
        # Found by hash first, so that few changes become Python objects.
        hashes = self._hashes(self._codec.key.encode(list(keys)))
        reader = self._codec.present_reader()
        for piece in self._pieces.get(key_group, ()):
            changes = reader.batches([key_group], [self._file.read(piece)])
            for state_id, batches in changes.items():
                width = len(self._codec.key.schema)
                for _, batch in batches:
                    of_keys = np.isin(self._hashes(batch.columns[:width]), hashes)
                    changed = batch.filter(pa.array(of_keys))
                    if changed.num_rows:
                        (deltas,) = self._codec.states[state_id].deltas(changed, [changed.num_rows])
                        deltas = {key: delta for key, delta in deltas.items() if key in keys}
                        table = forward.tables[state_id]
                        forward.tables[state_id] = group.kinds[state_id].rules.merge(table, deltas)
        return forward

    def _hashes(self, columns: list[pa.Array]) -> np.ndarray:
        return hash_columns(columns, self._codec.key.schema)


_BY_TIME = itemgetter(0)
Due: TypeAlias = tuple[int, int, Key]
"""A timer that is due: time, key group, key."""


def due_timers(
    state: KeyedState,
    key_group_range: KeyGroupRange,
    timers_id: int,
    until: int,
    overlays: Mapping[int, Overlay],
    retired: RetiredChanges | None,
) -> list[Due]:
    """Return the timers that are due, as (time, key group, key), sorted by time."""
    # Keys in columns with a due timer are moved into the dict tables first.
    state.prepare_due(key_group_range, timers_id, until)
    due = [] if retired is None else list(retired.due)
    for key_group in key_group_range:
        overlay = overlays.get(key_group)
        changed = overlay[timers_id] if overlay is not None else {}
        # What this micro-batch changed replaces the folded timers of the key, see `Timers`.
        superseded = changed if retired is None else retired.superseded(key_group)
        for time, key in state.groups[key_group].timers_due(timers_id, until):
            if key not in superseded:
                due.append((time, key_group, key))
        for key, times in changed.items():
            due += [(time, key_group, key) for time in times[: bisect.bisect(times, until)]]
    due.sort(key=_BY_TIME)
    return due


def first_timer_ms(
    state: KeyedState,
    key_group_range: KeyGroupRange,
    timers_id: int,
    until: int,
    overlays: Mapping[int, Overlay],
    retired: RetiredChanges | None,
) -> int:
    """Return when the earliest timer is due after a run; see `due_timers`."""
    in_columns = state.first_timer_in_columns(key_group_range, timers_id, until)
    first = NEVER_MS if in_columns is None else in_columns
    if retired is not None:  # maybe of a deleted timer: then only earlier than needed
        first = min(first, retired.first_ms)
    for key_group in key_group_range:
        overlay = overlays.get(key_group)
        changed = overlay[timers_id] if overlay is not None else {}
        superseded: Collection[Key] = changed
        if retired is not None:
            superseded = {*changed, *retired.superseded(key_group)}
        folded = state.groups[key_group].first_timer(timers_id, superseded)
        if folded is not None:
            first = min(first, folded)
        for times in changed.values():
            if times:
                first = min(first, times[0])
    return first
