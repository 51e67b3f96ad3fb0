"""Which key groups changed between a checkpoint and a later one of its history."""

from __future__ import annotations

import numpy as np

from statelog.changelog.reader import read_logs
from statelog.model import CheckpointPosition, KeyGroupRange
from statelog.state.columnar.run_set import contiguous
from statelog.state.reader.state_reader import StateReader


def changed_groups(reader: StateReader, since: CheckpointPosition) -> list[KeyGroupRange] | None:
    """
    Return the key groups whose state may differ from an earlier checkpoint, ascending.

    A key group whose snapshot is newer than the earlier checkpoint counts as changed: the log before
    the snapshot is no longer part of the checkpoint.

    Args:
        reader: A reader of the later checkpoint.
        since: The earlier checkpoint, which the location still has.

    Returns:
        The key groups; None if the later checkpoint does not continue the earlier one.

    Raises:
        Exception: As `StateReader.batches`.

    Blocks: On the store; reads the log after the earlier checkpoint.
    """
    if not reader.checkpoint.continues(since):
        return None
    handle = reader.checkpoint.for_range(reader.key_groups)
    changed: set[int] = set()
    for snapshot in handle.materialized:
        if snapshot.checkpoint_id > since.checkpoint_id:
            changed.update(snapshot.key_group_range)
    parts = [
        (log, log.key_group_range) for log in handle.log if log.checkpoint_id > since.checkpoint_id
    ]
    with reader.explained():
        for batches in read_logs(reader.store, parts):
            for batch in batches:
                changed.update(np.unique(batch.column(0).to_numpy()).tolist())
    return contiguous(sorted(changed & set(reader.key_groups)))
