"""
Find the newest checkpoint, the checkpoints in a range, and the changes between two.

Every handle has a unique name.  State as of one checkpoint can be brought forward by the log of
another one if both have the same handles up to the older one.  That is decided for each key group,
so that after a snapshot of some key groups, a rewind or a lost log only those are read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from statelog.changelog.reader import read_logs
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import (
    Entries,
    StoredCheckpoint,
    present_ids,
    read_checkpoint,
    readable,
)
from statelog.errors import CheckpointError, ObjectNotFoundError, StatelogError, UsageError, check
from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    StreamStateHandle,
)
from statelog.model.checkpoint import ChangelogStateBackendHandle, covered_checkpoints
from statelog.store import PATHS, ObjectStore, ask_both

ATTEMPTS: Final = 5
"""How often to retry if a checkpoint is deleted while it is read."""


def newest_after(
    store: ObjectStore, last_read: CompletedCheckpoint | None
) -> CompletedCheckpoint | None:
    """
    Return the newest checkpoint, or None if it has already been read.

    Without a newer one, that costs two requests at once: a listing, and the entry of that one,
    because a location that was made again may have another checkpoint of its number.

    Args:
        store: Where the location is.
        last_read: The checkpoint read last; None for none.

    Raises:
        CheckpointError: There is no checkpoint (`reason` "not_found"), or the newest is damaged.
        IncompatibleFormatError: The newest one has a different format version.
        StoreError: The store failed.

    Blocks: On the store.
    """
    for _ in range(ATTEMPTS):
        # Both at once: usually nothing is new, and this is all that a poll costs.
        ids, is_stored = ask_both(
            store, lambda: _present(store), lambda: _is_stored(store, last_read)
        )
        if last_read is not None and is_stored and ids[-1:] == [last_read.checkpoint_id]:
            return None
        newest = Entries(store, ids).newest() if ids else None
        if newest is not None:
            is_same = last_read is not None and newest.position == last_read.position
            return None if is_same else newest
        if not ids:
            break
        # The query may have deleted every checkpoint of the listing before one could be read.
    text = "does not contain a checkpoint"
    if last_read is not None:
        text = f"no longer contains a checkpoint; the last one read was {last_read.checkpoint_id}"
    raise CheckpointError(f"{store.url} {text}", reason="not_found")


def _is_stored(store: ObjectStore, last_read: CompletedCheckpoint | None) -> bool:
    """Return whether the location still contains the checkpoint that was read last."""
    if last_read is None:
        return False
    entry = readable(store, last_read.checkpoint_id)
    return isinstance(entry, StoredCheckpoint) and entry.checkpoint.position == last_read.position


def _present(store: ObjectStore) -> list[int]:
    try:
        return present_ids(store)
    except ObjectNotFoundError:  # the directory was deleted
        return []


def chain_before(
    store: ObjectStore, last: CompletedCheckpoint, after: int
) -> list[CompletedCheckpoint]:
    """
    Return the checkpoints after *after* and before *last*, in ascending order.

    Args:
        store: Where the location is.
        last: The last checkpoint.
        after: Id of the first one; the id of *last* gives none.

    Raises:
        UsageError: *after* is newer than *last*.
        CheckpointError: One of them was deleted (`reason` "subsumed"), or *last* does not continue
            *after*, because the query was taken back (`reason` "not_newer").
        CorruptionError: One is damaged.

    Blocks: On the store, two requests for each checkpoint.
    """
    if after > last.checkpoint_id:
        raise UsageError(
            f"checkpoint {after} is newer than checkpoint {last.checkpoint_id}: a feed must go from an "
            "older to a newer checkpoint"
        )
    chain: list[CompletedCheckpoint] = []
    checkpoint = last
    # Backwards by the parents: only they tell the history from numbers that a rewind gave up.
    while checkpoint.checkpoint_id > after:
        parent = checkpoint.parent_id
        if parent is None or parent < after:
            raise CheckpointError(
                f"checkpoint {last.checkpoint_id} of {store.url} does not continue checkpoint "
                f"{after}: its history goes from {checkpoint.checkpoint_id} back to "
                f"{'the empty state' if parent is None else parent}, because the query was rewound. "
                "Start again from the full state",
                reason="not_newer",
                checkpoint_id=after,
            )
        try:
            checkpoint = read_checkpoint(store, parent).checkpoint
        except ObjectNotFoundError as error:
            raise CheckpointError(
                f"the changes from checkpoint {after} to {last.checkpoint_id} of {store.url} are "
                f"incomplete: checkpoint {parent} was deleted{_retained(store)}. Raise the query's "
                "retainedCheckpoints, compare the two states instead, or start again from the "
                "full state",
                reason="subsumed",
                checkpoint_id=parent,
                path=PATHS.metadata(parent),
            ) from error
        chain.append(checkpoint)
    return chain[::-1]


def as_of_ms(checkpoint: CompletedCheckpoint) -> int:
    """Return the processing time of a checkpoint's micro-batch, or else its creation time."""
    now_ms = BatchRecord.of(checkpoint).now_ms
    return now_ms if now_ms >= 0 else checkpoint.created_at_ms


def _retained(store: ObjectStore) -> str:
    try:
        newest = Entries(store).newest()
    except StatelogError:
        return ""
    if newest is None:
        return ""
    return f" (the query retains {', '.join(map(str, newest.retained))})"


@dataclass(frozen=True, slots=True)
class Changes:
    """
    What changed in the state of some key groups between two checkpoints; created by `of`.

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
        """Compare two checkpoints, which may have different histories."""
        handle = upto.for_range(key_groups)
        # The same parts up to *since* mean the same state, whatever the two histories are called.
        ours = _parts(since.for_range(key_groups), since.checkpoint_id)
        theirs = _parts(handle, since.checkpoint_id)
        rewritten = frozenset(group for group in key_groups if ours[group] != theirs[group])
        return cls(since.checkpoint_id, handle, rewritten)

    def log(self) -> list[ChangelogStateHandle]:
        """Return the log since the checkpoint that is already in memory, in ascending order."""
        return [log for log in self.handle.log if log.checkpoint_id > self.since_id]

    def paths(self) -> Sequence[str]:
        """Return the objects needed to update the state."""
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
        """Return the key groups whose state may differ; this reads the log from the store."""
        changed = set(self.rewritten)
        for batches in read_logs(store, [(log, log.key_group_range) for log in self.log()]):
            for batch in batches:
                changed.update(np.unique(batch.column(0).to_numpy()).tolist())
        return changed & set(self.handle.key_group_range)


def _parts(handle: ChangelogStateBackendHandle, upto: int) -> dict[int, list[str]]:
    """Return the names of the objects that contain the state of each key group."""
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
    """Return the log handles that a checkpoint itself created, for some key groups."""
    return [
        log
        for log in checkpoint.log
        if log.checkpoint_id == checkpoint.checkpoint_id
        and len(log.key_group_range.intersection(key_groups))
    ]


def is_logged(checkpoint: CompletedCheckpoint, portion: KeyGroupRange) -> bool:
    """
    Return whether a checkpoint's log contains all of the changes it made.

    A snapshot of the checkpoint itself may have taken the place of the log, see `live_log`.
    """
    # Suspicious are key groups whose snapshot is as new as the checkpoint, unless it has a log too.
    covered = covered_checkpoints(checkpoint.materialized, checkpoint.max_parallelism)
    is_covered = covered == checkpoint.checkpoint_id
    for log in own_log(checkpoint, portion):
        is_covered[log.key_group_range.start : log.key_group_range.end + 1] = False
    check(portion.end < len(is_covered), "a key group of the feed is not in the checkpoint")
    return not is_covered[portion.start : portion.end + 1].any()
