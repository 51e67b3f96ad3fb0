"""The driver's planner of snapshots: who writes which key groups, and what is made of the answers."""

import logging
from typing import Any

import numpy as np
import pytest

from statelog.checkpoint.coordinator import CheckpointRecorder
from statelog.core.snapshot_schedule import LogDistances, choose_key_groups
from statelog.metrics import Metrics
from statelog.model import ChangelogStateHandle, FileStateHandle, KeyGroupRange
from statelog.model.checkpoint import CompletedCheckpoint, MaterializedHandle
from statelog.options import SnapshotPolicy
from statelog.spark.driver.snapshot_planner import SnapshotPlanner
from statelog.spark.worker.protocol import TaskAck, TaskChanges, TaskPlace

GROUPS = 8
ALL = KeyGroupRange(0, 7)
LEFT, RIGHT = KeyGroupRange(0, 3), KeyGroupRange(4, 7)
POLICY = SnapshotPolicy(
    log_to_snapshot_ratio=2.0, min_log_bytes=100, max_log_handles=10, slice_bytes=40, max_slices=8
)


def log(first: int, last: int, checkpoint_id: int, size: int) -> ChangelogStateHandle:
    part = KeyGroupRange(first, last)
    return ChangelogStateHandle(part, (), size, size, f"{checkpoint_id}-{first}", checkpoint_id)


def snapshot(first: int, last: int, checkpoint_id: int, size: int) -> MaterializedHandle:
    file = FileStateHandle(f"s/{checkpoint_id}-{first}", size)
    return MaterializedHandle(KeyGroupRange(first, last), checkpoint_id, file)


def checkpoint(
    checkpoint_id: int,
    handles: list[ChangelogStateHandle],
    snapshots: tuple[MaterializedHandle, ...] = (),
) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        checkpoint_id=checkpoint_id,
        parent_id=None,
        created_at_ms=0,
        epoch=1,
        owner_id="",
        max_parallelism=GROUPS,
        materialized=snapshots,
        log=tuple(handles),
    )


FULL = checkpoint(5, [log(0, 7, 5, 10**6)])
"""A log far above the bound: two slices are due."""


class Planner:
    """A planner, its metrics, and what it counts."""

    def __init__(self, policy: SnapshotPolicy = POLICY) -> None:
        self.metrics = Metrics()
        self.snapshots = SnapshotPlanner(policy, GROUPS, CheckpointRecorder(self.metrics))

    def counts(self) -> tuple[int, int, int]:
        told = self.metrics.snapshot()
        names = ("started", "completed", "failed")
        return tuple(told.get(f"{name}_materialization", 0) for name in names)  # type: ignore[return-value]


def ack(partition: int, part: KeyGroupRange, snapshot_ms: float = 0.0, **changes: Any) -> TaskAck:
    figures = {"task_milliseconds": {"snapshot": snapshot_ms}}
    return TaskAck(TaskPlace(partition, part), TaskChanges(**changes), figures=figures)


# --- distances ------------------------------------------------------------------------------------


def test_distances_count_the_log_behind_each_key_group() -> None:
    """Bytes behind a key group are the whole job's: the log is freed by checkpoints."""
    handles = [log(0, 3, 2, 10), log(4, 7, 2, 20), log(0, 7, 3, 40), log(0, 3, 5, 80)]
    snapshots = (snapshot(0, 1, 3, 7), snapshot(2, 2, 5, 7), snapshot(4, 5, 2, 7))
    found = LogDistances.of(checkpoint(5, handles, snapshots), GROUPS)
    assert [3, 3, 5, -1, 2, 2, -1, -1] == found.covered.tolist()
    assert [80, 80, 0, 150, 120, 120, 150, 150] == found.behind_bytes.tolist()
    assert [1, 1, 0, 3, 2, 2, 3, 3] == found.behind_checkpoints.tolist()
    assert (150, 4) == (found.log_bytes, found.log_handles)


def test_distances_do_not_depend_on_the_order_of_the_log() -> None:
    handles = [log(0, 3, 3, 1), log(4, 7, 1, 2), log(0, 7, 2, 4)]
    snapshots = (snapshot(0, 7, 1, 1),)
    found = LogDistances.of(checkpoint(3, handles, snapshots), GROUPS)
    assert [5] * GROUPS == found.behind_bytes.tolist()
    assert [2] * GROUPS == found.behind_checkpoints.tolist()


def test_no_checkpoint_has_no_distances() -> None:
    found = LogDistances.of(None, GROUPS)
    assert [-1] * GROUPS == found.covered.tolist()
    assert [0] * GROUPS == found.behind_bytes.tolist() == found.behind_checkpoints.tolist()
    assert (0, 0) == (found.log_bytes, found.log_handles)


# --- the policy -----------------------------------------------------------------------------------


def test_options_become_the_bounds() -> None:
    options = SnapshotPolicy(
        log_to_snapshot_ratio=3.5, min_log_bytes=11, max_log_handles=12, slice_bytes=13
    )
    assert SnapshotPolicy(3.5, 11, 12, 13) == options


def behind(size: int, checkpoints: int, covered: list[int] | None = None) -> LogDistances:
    return LogDistances(
        np.array(covered or [-1] * GROUPS),
        np.full(GROUPS, size),
        np.full(GROUPS, checkpoints),
        size,
        checkpoints,
    )


@pytest.mark.parametrize(
    ("size", "checkpoints", "chosen"),
    [
        # 80 bytes of state: two slices of 40; a full log is 160 bytes, so one is due per 80.
        (79, 1, []),
        (80, 1, [(0, 3)]),
        (159, 1, [(0, 3)]),
        (160, 1, [(0, 7)]),
        (10**9, 1, [(0, 7)]),
        # ... and ten checkpoints are as long as a full log.
        (0, 4, []),
        (0, 5, [(0, 3)]),
        (0, 10, [(0, 7)]),
        (10**9, 0, []),  # nothing to free
    ],
)
def test_a_slice_is_due_for_its_part_of_a_full_log(
    size: int, checkpoints: int, chosen: list[tuple[int, int]]
) -> None:
    expected = tuple(KeyGroupRange(*part) for part in chosen)
    assert expected == choose_key_groups(POLICY, behind(size, checkpoints), [10.0] * GROUPS)


def test_the_oldest_snapshots_come_first_and_failed_ones_last() -> None:
    covered = [9, 9, 9, 9, 1, 1, 1, 1]
    distances = behind(80, 1, covered)
    assert (RIGHT,) == choose_key_groups(POLICY, distances, [10.0] * GROUPS)
    failures = [0, 0, 0, 0, 1, 1, 1, 1]
    assert (LEFT,) == choose_key_groups(POLICY, distances, [10.0] * GROUPS, failures)


def test_a_key_group_larger_than_a_slice_is_one_of_its_own() -> None:
    sizes = [5.0, 5.0, 500.0, 5.0, 5.0, 5.0, 5.0, 5.0]
    # 535 bytes make slices of 66.9; the log may hold 1,070.
    due = [choose_key_groups(POLICY, behind(size, 1), sizes) for size in (356, 357, 714)]
    assert [(), (KeyGroupRange(0, 1),), (KeyGroupRange(0, 2),)] == due


# --- who writes -----------------------------------------------------------------------------------


def test_nothing_is_chosen_before_there_is_a_log() -> None:
    planner = Planner()
    planner.snapshots.begin(None, 0)
    assert {} == planner.snapshots.choose([LEFT, RIGHT], 0)
    assert (0, 0, 0) == planner.counts()


def test_each_task_writes_its_part_of_a_slice() -> None:
    planner = Planner()
    planner.snapshots.begin(FULL, 0)
    ranges = [KeyGroupRange(0, 2), KeyGroupRange(3, 3), KeyGroupRange(4, 7)]
    assert {one: one for one in ranges} == planner.snapshots.choose(ranges, 0)
    assert (3, 0, 0) == planner.counts()


def test_a_task_without_a_part_of_the_slice_writes_nothing() -> None:
    planner = Planner()
    # Key groups 4 to 7 have a snapshot of the newest checkpoint already; 80 entries of 10 bytes make
    # each key group a slice.
    base = checkpoint(5, [log(0, 3, 5, 10**6)], (snapshot(4, 7, 5, 400),))
    planner.snapshots.begin(base, 80)
    assert {LEFT: KeyGroupRange(0, 1)} == planner.snapshots.choose([LEFT, RIGHT], 0)
    assert (1, 0, 0) == planner.counts()


def test_of_two_slices_a_task_writes_the_first() -> None:
    """What it leaves is due again with the next micro-batch."""
    planner = Planner()
    base = checkpoint(9, [log(0, 7, 9, 10**6)], (snapshot(3, 4, 8, 10),))
    planner.snapshots.begin(base, 0)
    assert {ALL: KeyGroupRange(0, 2)} == planner.snapshots.choose([ALL], 0)
    assert (1, 0, 0) == planner.counts()


def test_the_size_of_an_entry_is_taken_from_the_snapshots_there_are() -> None:
    """80 entries, half of them in snapshots of 400 bytes: 10 bytes each, 800 bytes in all."""
    planner = Planner()
    base = checkpoint(5, [log(0, 7, 5, 10**6)], (snapshot(0, 3, 4, 400),))
    planner.snapshots.begin(base, 80)
    # Slices of 800 / 8 = 100 bytes: one key group each; those without a snapshot come first.
    assert {ALL: KeyGroupRange(4, 5)} == planner.snapshots.choose([ALL], 0)


def test_a_snapshot_of_the_first_checkpoint_counts() -> None:
    planner = Planner()
    base = checkpoint(5, [log(0, 7, 5, 10**6)], (snapshot(0, 3, 0, 400),))
    planner.snapshots.begin(base, 80)  # 10 bytes an entry: each key group is a slice
    assert {ALL: KeyGroupRange(4, 5)} == planner.snapshots.choose([ALL], 0)
    assert 10.0 == planner.snapshots._schedule._entry_bytes


def test_a_snapshot_of_unknown_size_does_not_count_as_negative() -> None:
    planner = Planner()
    base = checkpoint(5, [log(0, 7, 5, 10**6)], (snapshot(0, 3, 4, -1),))
    planner.snapshots.begin(base, 80)
    # 80 entries of the 32 bytes that are assumed: each key group is a slice.
    assert {ALL: KeyGroupRange(4, 5)} == planner.snapshots.choose([ALL], 0)


def test_advancing_takes_the_new_log_into_account() -> None:
    planner = Planner()
    planner.snapshots.begin(FULL, 0)
    planner.snapshots.advance(checkpoint(6, [], (snapshot(0, 7, 5, 10),)))
    assert {} == planner.snapshots.choose([LEFT, RIGHT], 0)
    assert 0 == planner.snapshots.distances.log_handles


# --- what became of it ----------------------------------------------------------------------------


def test_a_snapshot_that_was_written_is_counted_with_the_longest_time() -> None:
    planner = Planner()
    planner.snapshots.begin(FULL, 0)
    wanted = planner.snapshots.choose([LEFT, RIGHT], 0)
    acks = [
        ack(0, LEFT, 3.0, snapshot=snapshot(0, 3, 5, 10)),
        ack(1, RIGHT, 7.0, snapshot=snapshot(4, 7, 5, 10)),
    ]
    planner.snapshots.committed(wanted, acks, 0)
    assert (2, 2, 0) == planner.counts()
    assert 7.0 == planner.metrics.snapshot()["last_duration_of_materialization"]


def test_a_snapshot_that_failed_waits_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    planner = Planner()
    planner.snapshots.begin(FULL, 0)
    wanted = planner.snapshots.choose([LEFT, RIGHT], 0)
    acks = [
        ack(0, LEFT, snapshot=snapshot(0, 3, 5, 10)),
        ack(1, RIGHT, snapshot_error="OSError: no space"),
    ]
    with caplog.at_level(logging.WARNING, "statelog.spark"):
        planner.snapshots.committed(wanted, acks, 1000)
    assert (2, 1, 1) == planner.counts()
    (told,) = caplog.messages
    assert "key groups [4, 7]" in told
    assert "10 s" in told
    assert "OSError: no space" in told
    assert {} == planner.snapshots.choose([LEFT, RIGHT], 10_999)
    assert planner.snapshots.choose([LEFT, RIGHT], 11_000)


def test_a_micro_batch_that_failed_takes_its_snapshots_with_it() -> None:
    planner = Planner()
    planner.snapshots.begin(FULL, 0)
    wanted = planner.snapshots.choose([LEFT, RIGHT], 0)
    planner.snapshots.aborted(wanted)
    assert (2, 0, 2) == planner.counts()
    assert wanted == planner.snapshots.choose([LEFT, RIGHT], 0), "they are due at once"


def test_the_entries_of_a_task_count_only_if_there_is_one_for_each_key_group() -> None:
    planner = Planner()
    planner.snapshots.begin(FULL, 0)
    # 40 entries of 32 bytes in one key group: it makes a slice of its own.
    acks = [ack(0, LEFT, group_entries=[0, 40, 0, 0]), ack(1, RIGHT, group_entries=[40])]
    planner.snapshots.committed({}, acks, 0)
    chosen = planner.snapshots.choose([LEFT, RIGHT], 0)
    assert {LEFT: KeyGroupRange(0, 1)} == chosen


def test_entry_sizes_are_learned_from_what_was_written() -> None:
    """400 entries of 1 byte: the estimate of 32 bytes comes down by half of the difference."""
    planner = Planner()
    planner.snapshots.begin(FULL, 0)
    acks = [
        ack(0, LEFT, group_entries=[100] * 4, snapshot=snapshot(0, 3, 5, 400)),
        ack(1, RIGHT, group_entries=[0] * 4),
    ]
    estimates = []
    for _ in range(12):
        planner.snapshots.committed({}, acks, 0)
        estimates.append(planner.snapshots._schedule._entry_bytes)
    assert [16.5, 8.75, 4.875] == estimates[:3]
    assert 1.0 == pytest.approx(estimates[-1], abs=0.01)
