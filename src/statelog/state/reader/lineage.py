"""
Whether state that is held goes on in a newer checkpoint.

A checkpoint is a list of snapshots and log handles, and every handle has a unique name.  State as of
one checkpoint can be brought forward by the log of another one if both have the same handles up to
the older one.  That is decided for each key group, so that a snapshot of some key groups, a rewind
or a lost log makes only those be read again.
"""

from __future__ import annotations

from statelog.model import CompletedCheckpoint, FileStateHandle, KeyGroupRange, StreamStateHandle


def groups_to_reload(
    held: CompletedCheckpoint, newer: CompletedCheckpoint, key_groups: KeyGroupRange
) -> tuple[int, ...]:
    """
    Return the key groups whose state in *newer* is not that of *held* with more log behind it.

    Args:
        held: The checkpoint whose state is held.
        newer: The checkpoint to come to; it may be of another history.
        key_groups: Which key groups are held.
    """
    ours = _parts(held, held.checkpoint_id, key_groups)
    theirs = _parts(newer, held.checkpoint_id, key_groups)
    return tuple(group for group in key_groups if ours[group] != theirs[group])


def _parts(
    checkpoint: CompletedCheckpoint, upto: int, key_groups: KeyGroupRange
) -> dict[int, list[str]]:
    """Return by key group what makes up its state, with the log up to a checkpoint."""
    whole = checkpoint.for_range(key_groups)
    handles: dict[int, list[str]] = {group: [] for group in key_groups}
    for snapshot in whole.materialized:
        for group in snapshot.key_group_range:
            handles[group].append(_name(snapshot.handle))
    for log in whole.log:
        if log.checkpoint_id <= upto:
            for group in log.key_group_range:
                handles[group].append(log.state_handle_id)
    return handles


def _name(handle: StreamStateHandle) -> str:
    return handle.path if isinstance(handle, FileStateHandle) else handle.name
