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
from statelog.spark.driver.state_location import SnapshotPlanner
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
        checkpoint_id=checkpoint_id, parent_id=None, created_at_ms=0, epoch=1, owner_id="",
        max_parallelism=GROUPS, materialized=snapshots, log=tuple(handles),
    )  # fmt: skip


FULL = checkpoint(5, [log(0, 7, 5, 10**6)])
"""A log far above the bound: two slices are due."""


class Planner:
    """A planner in a run that began at a checkpoint, and what it counts."""

    def __init__(self, base: CompletedCheckpoint | None = FULL, entries: int = 0) -> None:
        self.metrics = Metrics()
        self.snapshots = SnapshotPlanner(POLICY, GROUPS, CheckpointRecorder(self.metrics))
        self.snapshots.begin(base, entries)

    def choose(self, *ranges: KeyGroupRange, now_ms: int = 0) -> dict[KeyGroupRange, KeyGroupRange]:
        return self.snapshots.choose(ranges or (LEFT, RIGHT), now_ms)

    def counts(self) -> list[float]:
        metrics = self.metrics.snapshot()
        names = ("started", "completed", "failed")
        return [metrics.get(f"{name}_materialization", 0) for name in names]


def ack(partition: int, part: KeyGroupRange, snapshot_ms: float = 0.0, **changes: Any) -> TaskAck:
    figures = {"task_milliseconds": {"snapshot": snapshot_ms}}
    return TaskAck(TaskPlace(partition, part), TaskChanges(**changes), figures=figures)


# --- distances ------------------------------------------------------------------------------------


def test_distances_count_the_log_behind_each_key_group() -> None:
    """Bytes behind a key group are the whole job's: the log is freed by checkpoints."""
    handles = [log(0, 7, 3, 40), log(0, 3, 5, 80), log(0, 3, 2, 10), log(4, 7, 2, 20)]
    snapshots = (snapshot(0, 1, 3, 7), snapshot(2, 2, 5, 7), snapshot(4, 5, 2, 7))
    distances = LogDistances.of(checkpoint(5, handles, snapshots), GROUPS)
    assert [3, 3, 5, -1, 2, 2, -1, -1] == distances.covered.tolist()
    assert [80, 80, 0, 150, 120, 120, 150, 150] == distances.behind_bytes.tolist()
    assert [1, 1, 0, 3, 2, 2, 3, 3] == distances.behind_checkpoints.tolist()
    assert (150, 4) == (distances.log_bytes, distances.log_handles)


def test_without_a_checkpoint_all_distances_are_zero() -> None:
    distances = LogDistances.of(None, GROUPS)
    arrays = (distances.covered, distances.behind_bytes, distances.behind_checkpoints)
    assert [{-1}, {0}, {0}] == [set(array.tolist()) for array in arrays]


# --- the policy -----------------------------------------------------------------------------------


def behind(size: int, checkpoints: int, covered: list[int] | None = None) -> LogDistances:
    return LogDistances(
        np.array(covered or [-1] * GROUPS), np.full(GROUPS, size), np.full(GROUPS, checkpoints),
        size, checkpoints,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "checkpoints", "chosen"),
    [
        # 80 bytes of state: two slices of 40; a full log is 160 bytes, so one is due per 80.
        *[(79, 1, ()), (80, 1, (LEFT,)), (159, 1, (LEFT,)), (160, 1, (ALL,)), (10**9, 1, (ALL,))],
        # ... and ten checkpoints are as long as a full log.
        *[(0, 4, ()), (0, 5, (LEFT,)), (0, 10, (ALL,))],
        (10**9, 0, ()),  # nothing to free
    ],
)
def test_slices_are_due_by_the_log(
    size: int, checkpoints: int, chosen: tuple[KeyGroupRange, ...]
) -> None:
    assert chosen == choose_key_groups(POLICY, behind(size, checkpoints), [10.0] * GROUPS)


def test_the_oldest_snapshots_come_first_and_failed_ones_last() -> None:
    covered = [9, 9, 9, 9, 1, 1, 1, 1]
    distances = behind(80, 1, covered)
    assert (RIGHT,) == choose_key_groups(POLICY, distances, [10.0] * GROUPS)
    failures = [0, 0, 0, 0, 1, 1, 1, 1]
    assert (LEFT,) == choose_key_groups(POLICY, distances, [10.0] * GROUPS, failures)


def test_a_large_key_group_is_a_slice_by_itself() -> None:
    sizes = [5.0, 5.0, 500.0, 5.0, 5.0, 5.0, 5.0, 5.0]
    # 535 bytes make slices of 66.9; the log may hold 1,070.
    due = [choose_key_groups(POLICY, behind(size, 1), sizes) for size in (356, 357, 714)]
    assert [(), (KeyGroupRange(0, 1),), (KeyGroupRange(0, 2),)] == due


# --- who writes -----------------------------------------------------------------------------------


THIRDS = KeyGroupRange(0, 2), KeyGroupRange(3, 3), KeyGroupRange(4, 7)


def full(*snapshots: MaterializedHandle, checkpoint_id: int = 5) -> CompletedCheckpoint:
    """Return a checkpoint with snapshots, and a log far above the bound."""
    return checkpoint(checkpoint_id, [log(0, 7, checkpoint_id, 10**6)], snapshots)


# 80 entries of 10 bytes: slices of 800 / 8 = 100 bytes, so each key group is one.
@pytest.mark.parametrize(
    ("base", "entries", "ranges", "chosen"),
    [
        (None, 0, (LEFT, RIGHT), {}),
        (FULL, 0, THIRDS, {part: part for part in THIRDS}),
        (checkpoint(5, [log(0, 3, 5, 10**6)], (snapshot(4, 7, 5, 400),)), 80, (LEFT, RIGHT),
         {LEFT: KeyGroupRange(0, 1)}),
        (full(snapshot(3, 4, 8, 10), checkpoint_id=9), 0, (ALL,), {ALL: KeyGroupRange(0, 2)}),
        (full(snapshot(0, 3, 4, 400)), 80, (ALL,), {ALL: KeyGroupRange(4, 5)}),
        (full(snapshot(0, 3, 0, 400)), 80, (ALL,), {ALL: KeyGroupRange(4, 5)}),
        (full(snapshot(0, 3, 4, -1)), 80, (ALL,), {ALL: KeyGroupRange(4, 5)}),
    ],
    ids=[
        "nothing before there is a log", "each task writes its part of a slice",
        "a task without a part of the slice writes nothing",
        "of two slices a task writes the first",
        "key groups without a snapshot come first", "a snapshot of the first checkpoint counts",
        "a snapshot of unknown size does not count as negative",
    ],
)  # fmt: skip
def test_tasks_write_the_slices_that_are_due(
    base: CompletedCheckpoint | None, entries: int, ranges: tuple[KeyGroupRange, ...],
    chosen: dict[KeyGroupRange, KeyGroupRange],
) -> None:  # fmt: skip
    planner = Planner(base, entries)
    assert chosen == planner.choose(*ranges)
    assert [len(chosen), 0, 0] == planner.counts()


def test_advancing_takes_the_new_log_into_account() -> None:
    planner = Planner()
    planner.snapshots.advance(checkpoint(6, [], (snapshot(0, 7, 5, 10),)))
    assert {} == planner.choose()
    assert 0 == planner.snapshots.distances.log_handles


# --- what became of it ----------------------------------------------------------------------------


def test_a_snapshot_that_was_written_is_counted_with_the_longest_time() -> None:
    planner = Planner()
    acks = [
        ack(0, LEFT, 3.0, snapshot=snapshot(0, 3, 5, 10)),
        ack(1, RIGHT, 7.0, snapshot=snapshot(4, 7, 5, 10)),
    ]
    planner.choose()
    planner.snapshots.committed(acks, 0)
    assert [2, 2, 0] == planner.counts()
    planner.snapshots.committed([], 0)
    assert [2, 2, 0] == planner.counts(), "a no-data batch chooses none"
    assert 7.0 == planner.metrics.snapshot()["last_duration_of_materialization"]


def test_a_snapshot_that_failed_waits_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    planner = Planner()
    acks = [
        ack(0, LEFT, snapshot=snapshot(0, 3, 5, 10)),
        ack(1, RIGHT, snapshot_error="OSError: no space"),
    ]
    with caplog.at_level(logging.WARNING, "statelog.spark"):
        planner.choose()
        planner.snapshots.committed(acks, 1000)
    assert [2, 1, 1] == planner.counts()
    (warning,) = caplog.messages
    for part in ("key groups [4, 7]", "10 s", "OSError: no space"):
        assert part in warning
    assert {} == planner.choose(now_ms=10_999)
    assert planner.choose(now_ms=11_000)


def test_a_micro_batch_that_failed_takes_its_snapshots_with_it() -> None:
    planner = Planner()
    chosen = planner.choose()
    planner.snapshots.aborted()
    assert [2, 0, 2] == planner.counts()
    assert chosen == planner.choose(), "they are due at once"


def test_the_entries_of_a_task_count_only_if_there_is_one_for_each_key_group() -> None:
    planner = Planner()
    # 40 entries of 32 bytes in one key group: it makes a slice of its own.
    acks = [ack(0, LEFT, group_entries=[0, 40, 0, 0]), ack(1, RIGHT, group_entries=[40])]
    planner.snapshots.committed(acks, 0)
    assert {LEFT: KeyGroupRange(0, 1)} == planner.choose()


def test_the_size_of_entries_is_learned_from_what_was_written() -> None:
    """400 entries of 1 byte; an entry is assumed to have 32 bytes before."""
    planner = Planner()
    left = ack(0, LEFT, group_entries=[100] * 4, snapshot=snapshot(0, 3, 5, 400))
    for _ in range(12):
        planner.snapshots.committed([left, ack(1, RIGHT, group_entries=[0] * 4)], 0)
    assert 1.0 == pytest.approx(planner.snapshots._schedule._entry_bytes, abs=0.01)
