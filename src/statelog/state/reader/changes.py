"""
What leads from the state of one checkpoint to the state of another.

Every handle has a unique name.  State as of one checkpoint can be brought forward by the log of
another one if both have the same handles up to the older one.  That is decided for each key group, so
that after a snapshot of some key groups, a rewind or a lost log only those are read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from statelog.changelog.reader import read_logs
from statelog.errors import check
from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    StreamStateHandle,
)
from statelog.model.checkpoint import ChangelogStateBackendHandle, covered_checkpoints
from statelog.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Changes:
    """
    How the state of some key groups comes from one checkpoint to another; `of` makes it.

    Args:
        since_id: The checkpoint whose state is there.
        handle: What a task restores the other checkpoint from.
        rewritten: The key groups whose state is not the one of *since_id* with more log behind it.
    """

    since_id: int
    handle: ChangelogStateBackendHandle
    rewritten: frozenset[int]

    @classmethod
    def of(
        cls, since: CompletedCheckpoint, upto: CompletedCheckpoint, key_groups: KeyGroupRange
    ) -> Changes:
        """Compare two checkpoints, which may be of different histories."""
        handle = upto.for_range(key_groups)
        ours = _parts(since.for_range(key_groups), since.checkpoint_id)
        theirs = _parts(handle, since.checkpoint_id)
        rewritten = frozenset(group for group in key_groups if ours[group] != theirs[group])
        return cls(since.checkpoint_id, handle, rewritten)

    def log(self) -> list[ChangelogStateHandle]:
        """Return the log after the checkpoint whose state is there, ascending."""
        return [log for log in self.handle.log if log.checkpoint_id > self.since_id]

    def paths(self) -> Sequence[str]:
        """Return the objects that bring the state forward."""
        handles: list[StreamStateHandle] = [
            snapshot.handle
            for snapshot in self.handle.materialized
            if self._needs(snapshot.key_group_range, snapshot.checkpoint_id)
        ]
        handles += [
            entry.handle
            for log in self.handle.log
            if self._needs(log.key_group_range, log.checkpoint_id)
            for entry in log.handles_and_offsets
        ]
        files = (handle.path for handle in handles if isinstance(handle, FileStateHandle))
        return list(dict.fromkeys(files))

    def _needs(self, key_groups: KeyGroupRange, checkpoint_id: int) -> bool:
        return checkpoint_id > self.since_id or not self.rewritten.isdisjoint(key_groups)

    def key_groups(self, store: ObjectStore) -> set[int]:
        """Return the key groups whose state may differ; blocks on the store, which has the log."""
        changed = set(self.rewritten)
        for batches in read_logs(store, [(log, log.key_group_range) for log in self.log()]):
            for batch in batches:
                changed.update(np.unique(batch.column(0).to_numpy()).tolist())
        return changed & set(self.handle.key_group_range)


def _parts(handle: ChangelogStateBackendHandle, upto: int) -> dict[int, list[str]]:
    """Return by key group the names of what makes up its state, with the log up to a checkpoint."""
    names: dict[int, list[str]] = {group: [] for group in handle.key_group_range}
    for snapshot in handle.materialized:
        for group in snapshot.key_group_range:
            names[group].append(snapshot.handle.name)
    for log in handle.log:
        if log.checkpoint_id <= upto:
            for group in log.key_group_range:
                names[group].append(log.state_handle_id)
    return names


def own_log(
    checkpoint: CompletedCheckpoint, key_groups: KeyGroupRange
) -> list[ChangelogStateHandle]:
    """Return the log handles that a checkpoint itself made, for some key groups."""
    return [
        each
        for each in checkpoint.log
        if each.checkpoint_id == checkpoint.checkpoint_id
        and len(each.key_group_range.intersection(key_groups))
    ]


def is_logged(checkpoint: CompletedCheckpoint, portion: KeyGroupRange) -> bool:
    """
    Return whether the log of a checkpoint has all that it changed.

    A snapshot of the checkpoint itself may have taken the place of the log, see `live_log`.
    """
    covered = covered_checkpoints(checkpoint.materialized, checkpoint.max_parallelism)
    is_covered = covered == checkpoint.checkpoint_id
    for each in own_log(checkpoint, portion):
        is_covered[each.key_group_range.start : each.key_group_range.end + 1] = False
    check(portion.end < len(is_covered), "a key group of the feed is not one of the checkpoint")
    return not is_covered[portion.start : portion.end + 1].any()
