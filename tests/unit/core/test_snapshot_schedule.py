"""The log stays bounded and no micro-batch writes much, whatever the batches are like."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.locations.checkpoints import record_of

from statelog.core.snapshot_schedule import LogDistances, SnapshotSchedule, choose_key_groups
from statelog.errors import InvalidOptionsError
from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    MaterializedHandle,
    live_log,
    live_snapshots,
    split_key_groups,
)
from statelog.options import SnapshotPolicy

GROUPS = 32


class Job:
    """A job whose checkpoints are made with the real rules, without any bytes."""

    def __init__(
        self, policy: SnapshotPolicy, sizes: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    ) -> None:
        self.policy = policy
        self.sizes = sizes
        self.number = 0
        self.log: tuple[ChangelogStateHandle, ...] = ()
        self.snapshots: tuple[MaterializedHandle, ...] = ()

    def checkpoint(self) -> CompletedCheckpoint | None:
        if not self.number:
            return None
        numbers = {"checkpoint_id": self.number, "max_parallelism": GROUPS}
        return record_of(self.log, self.snapshots, **numbers)

    def batch(self, log_bytes: int, tasks: int) -> int:
        """Run a micro-batch and return the bytes of its snapshots."""
        distances = LogDistances.of(self.checkpoint(), GROUPS)
        chosen = choose_key_groups(self.policy, distances, self.sizes)
        self.number += 1
        written = []
        for index, part in enumerate(split_key_groups(GROUPS, tasks)):
            size = log_bytes // tasks
            name = f"{self.number}-{index}"
            self.log += (ChangelogStateHandle(part, (), size, size, name, self.number),)
            for wanted in chosen:
                overlap = part.intersection(wanted)
                if len(overlap):
                    size = int(self.sizes[overlap.start : overlap.end + 1].sum())
                    file = FileStateHandle(f"s/{name}-{overlap.start}", size)
                    written.append(MaterializedHandle(overlap, self.number, file))
        if written:
            self.snapshots = live_snapshots((*self.snapshots, *written), GROUPS)
            self.log = live_log(self.log, self.snapshots, GROUPS)
        return sum(handle.handle.size_bytes for handle in written)

    def log_bytes(self) -> int:
        return sum(handle.size_bytes for handle in self.log)


POLICY = SnapshotPolicy(
    log_to_snapshot_ratio=2.0, min_log_bytes=1000, max_log_handles=40, slice_bytes=500, max_slices=8
)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=GROUPS, max_size=GROUPS),
    batches=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 6)), min_size=150, max_size=250),
)
def test_the_log_and_a_batch_are_bounded(sizes, batches):
    job = Job(POLICY, np.array(sizes, np.float64))
    state = sum(sizes)
    room = max(POLICY.slice_bytes, state / POLICY.max_slices)
    allowed = max(POLICY.min_log_bytes, POLICY.log_to_snapshot_ratio * state)
    largest = max(log_bytes for log_bytes, _ in batches)
    for log_bytes, tasks in batches:
        assert job.batch(log_bytes, tasks) <= 2 * max(room, max(sizes))
        # A sweep of k slices may be late by as many batches as it takes, two slices in each.
        assert job.log_bytes() <= allowed + (GROUPS // 2 + 2) * largest
        distances = LogDistances.of(job.checkpoint(), GROUPS)
        assert distances.behind_checkpoints.max() <= POLICY.max_log_handles + GROUPS // 2 + 2
        assert (job.log_bytes(), len(job.log)) == (distances.log_bytes, distances.log_handles)


def test_even_batches_pay_evenly_and_the_log_keeps_to_its_bound():
    job = Job(POLICY, np.full(GROUPS, 125.0))  # 4,000 bytes of state: 8 slices, 8,000 bytes of log
    written = [job.batch(100, 2) for _ in range(400)]
    assert job.log_bytes() <= 8000
    assert {0, 500} == set(written)  # never two slices at once
    settled = written[100:]
    # The chain of 40 checkpoints is the tighter bound: a sweep of 8 slices in 40 batches.
    assert 8 == pytest.approx(sum(settled) / 500 / len(settled) * 40, rel=0.1)
    gaps = np.diff(np.flatnonzero(settled))
    assert gaps.min() >= 3
    assert gaps.max() <= 7


def test_a_small_state_is_written_whole_and_only_when_its_log_is_full():
    job = Job(POLICY, np.full(GROUPS, 1.0))
    written = [job.batch(90, 2) for _ in range(13)]
    assert [0] * 12 + [32] == written  # 12 batches of 90 bytes pass 1,000
    assert 0 == job.log_bytes()


def test_nothing_is_due_without_a_log():
    job = Job(POLICY, np.full(GROUPS, 125.0))
    assert () == choose_key_groups(POLICY, LogDistances.of(None, GROUPS), job.sizes)
    assert 0 == job.batch(0, 1)


def distances(behind: int = 1000, checkpoints: int = 50) -> LogDistances:
    of_groups = [np.full(GROUPS, value) for value in (-1, behind, checkpoints)]
    return LogDistances(*of_groups, behind, checkpoints)


def schedule(entries: int = 3200) -> SnapshotSchedule:
    return SnapshotSchedule(POLICY, GROUPS, state_entries=entries, entry_bytes=10)


def test_a_failed_snapshot_is_tried_again_after_the_others():
    plan = schedule()
    (first,) = plan.choose(distances(), 0)
    assert 10_000 == plan.failed(first, 0)
    assert () == plan.choose(distances(), 9_999)
    (second,) = plan.choose(distances(), 10_000)
    assert first.start not in second
    assert 20_000 == plan.failed(second, 10_000)
    assert [40_000, 80_000] == [plan.failed(second, 0), plan.failed(second, 0)]
    for _ in range(20):
        longest = plan.failed(second, 0)
    assert 600_000 == longest
    plan.completed(second, 1)
    assert 10_000 == plan.failed(first, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_log_bytes", -1), ("max_log_handles", 0), ("slice_bytes", 0), ("max_slices", 0)],
)
def test_bounds_that_make_no_sense_are_refused(name, value):
    with pytest.raises(InvalidOptionsError, match=name):
        SnapshotPolicy(**{name: value})
