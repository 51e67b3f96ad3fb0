"""Coverage of key groups by snapshots and log, whatever the ranges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.strategies import KEY_GROUPS, checkpoints, log_handle

from statelog.errors import UsageError
from statelog.model import (
    OBJECTS_PROPERTY,
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    live_log,
    live_snapshots,
    split_key_groups,
)


def expected(checkpoint, key_group):
    """The rule itself: the newest snapshot (the later of equals), then the younger log."""
    snapshots = [one for one in checkpoint.materialized if key_group in one.key_group_range]
    best = max(reversed(snapshots), key=lambda one: one.checkpoint_id, default=None)
    since = -1 if best is None else best.checkpoint_id
    log = [
        one.state_handle_id
        for one in checkpoint.log
        if key_group in one.key_group_range and one.checkpoint_id > since
    ]
    return (None if best is None else best.handle.path), log


def as_restored(handle: ChangelogStateBackendHandle, key_group):
    snapshots = [one for one in handle.materialized if key_group in one.key_group_range]
    assert len(snapshots) <= 1, "two snapshots for one key group"
    log = [one.state_handle_id for one in handle.log if key_group in one.key_group_range]
    return (snapshots[0].handle.path if snapshots else None), log


@settings(max_examples=300, deadline=None)
@given(checkpoints(), st.integers(1, KEY_GROUPS))
def test_any_split_reads_every_change_once_and_nothing_twice(checkpoint, parallelism):
    for own in split_key_groups(KEY_GROUPS, parallelism):
        handle = checkpoint.for_range(own)
        assert handle.key_group_range == own
        for part in (*handle.materialized, *handle.log):
            assert len(part.key_group_range) > 0
            assert part.key_group_range.intersection(own) == part.key_group_range
        for key_group in own:
            assert as_restored(handle, key_group) == expected(checkpoint, key_group)


@settings(max_examples=200, deadline=None)
@given(checkpoints())
def test_pruning_changes_nothing_that_is_restored(checkpoint):
    snapshots = live_snapshots(checkpoint.materialized, KEY_GROUPS)
    log = live_log(checkpoint.log, snapshots, KEY_GROUPS)
    for key_group in range(KEY_GROUPS):
        covering = [snapshot for snapshot in snapshots if key_group in snapshot.key_group_range]
        path, ids = expected(checkpoint, key_group)
        assert path is None or covering[-1].handle.path == path
        kept = [one.state_handle_id for one in log if key_group in one.key_group_range]
        assert [one for one in kept if one in ids] == ids
    needed = {expected(checkpoint, key_group)[0] for key_group in range(KEY_GROUPS)} - {None}
    assert {snapshot.handle.path for snapshot in snapshots} == needed
    wanted = {i for key_group in range(KEY_GROUPS) for i in expected(checkpoint, key_group)[1]}
    assert {one.state_handle_id for one in log} == wanted


def test_a_range_beyond_the_job_is_refused():
    checkpoint = CompletedCheckpoint(
        checkpoint_id=0, parent_id=None, created_at_ms=0, epoch=1, owner_id="o", max_parallelism=4
    )
    with pytest.raises(UsageError, match="exceed the 4 key groups"):
        checkpoint.for_range(KeyGroupRange(0, 4))


def test_referenced_paths_name_each_object_once():
    own = KeyGroupRange(0, 3)
    checkpoint = CompletedCheckpoint(
        checkpoint_id=1,
        parent_id=0,
        created_at_ms=0,
        epoch=1,
        owner_id="o",
        max_parallelism=4,
        log=(log_handle(0, 1, own), log_handle(1, 1, own), log_handle(1, 0, own)),
        materialized=(
            MaterializedHandle(own, 0, FileStateHandle("s", 1)),
            MaterializedHandle(own, 0, ByteStreamStateHandle("inline", b"")),
        ),
        properties={OBJECTS_PROPERTY: ["output/x"]},
    )
    assert checkpoint.referenced_paths() == ("f0", "f1", "output/x", "s")


def test_a_snapshot_of_nothing_is_refused():
    with pytest.raises(UsageError):
        MaterializedHandle(KeyGroupRange.empty(), 0, FileStateHandle("s", 1))
