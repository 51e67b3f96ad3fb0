"""The timers of a task: which are due, and when the next one is due."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping
from operator import itemgetter

from statelog.model import KeyGroupRange
from statelog.spark.worker.protocol import NEVER_MS
from statelog.spark.worker.retired_changes import RetiredChanges
from statelog.state.heap.tables import Key, Overlay
from statelog.state.keyed_state import KeyedState

_BY_TIME = itemgetter(0)


def due_timers(
    state: KeyedState,
    key_group_range: KeyGroupRange,
    timers_id: int,
    until: int,
    overlays: Mapping[int, Overlay],
    retired: RetiredChanges | None,
) -> list[tuple[int, int, Key]]:
    """
    Return the due timers as (time, key group, key), by time.

    Args:
        state: The state before the micro-batch.
        key_group_range: The task's key groups.
        timers_id: The position of the timers among the state variables.
        until: The time up to which timers are due, in milliseconds.
        overlays: The changes of the micro-batch, by key group.
        retired: Its changes that were dropped from memory; None for none.
    """
    state.prepare_due(key_group_range, timers_id, until)
    due = [] if retired is None else retired.due
    for key_group in key_group_range:
        overlay = overlays.get(key_group)
        changed = overlay[timers_id] if overlay is not None else {}
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
