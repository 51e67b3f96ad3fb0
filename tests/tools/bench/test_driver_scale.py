"""The simulated driver runs the real code: what it counts is what a driver does."""

from collections.abc import Iterator

import pytest
from bench.driver_scale import DELTA_BYTES, EVENTS_PER_TASK, Driver

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries
from statelog.model import KeyGroupRange
from statelog.options import SnapshotPolicy

pytestmark = pytest.mark.campaign

TASKS = 60


def test_a_micro_batch_is_a_real_checkpoint() -> None:
    driver = Driver(TASKS, SnapshotPolicy())
    facts = [driver.micro_batch() for _ in range(3)]
    stored = Entries(driver.store).load(3).checkpoint
    record = BatchRecord.of(stored)
    assert 3 * TASKS == len(stored.log) == facts[-1]["log_handles"]
    assert (TASKS, TASKS * EVENTS_PER_TASK) == (record.figures.tasks, record.figures.rows)
    assert TASKS * DELTA_BYTES == record.figures.delta_bytes
    assert {log.checkpoint_id for log in stored.log} == {1, 2, 3}


def test_the_requests_are_those_of_the_commit() -> None:
    driver = Driver(TASKS, SnapshotPolicy())
    facts = [driver.micro_batch() for _ in range(6)][-1]
    assert {"put": 1} == facts["requests"], "the commit, and nothing before or after it"
    assert facts["commit_bytes"] == facts["driver_bytes"] > 0


def test_snapshots_shorten_the_log_and_free_objects() -> None:
    driver = Driver(TASKS, SnapshotPolicy(max_log_handles=4, max_slices=4))
    facts = [driver.micro_batch() for _ in range(16)]
    assert sum(fact["snapshots"] for fact in facts) > 0
    assert facts[-1]["log_handles"] < 6 * TASKS
    driver.coordinator.clean_up()
    assert driver.store.requests["deleted objects"] > TASKS


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count how often two ranges of key groups are compared."""
    counted = [0]
    equal = KeyGroupRange.__eq__

    def counting(self: KeyGroupRange, other: object) -> bool:
        counted[0] += 1
        return bool(equal(self, other))

    monkeypatch.setattr(KeyGroupRange, "__eq__", counting)
    yield counted


def test_the_driver_compares_in_proportion_to_the_tasks(comparisons: list[int]) -> None:
    """Look-ups in lists of tasks and of snapshots took seconds with thousands of tasks."""
    counts = []
    for tasks in (100, 400):
        driver = Driver(tasks, SnapshotPolicy(max_log_handles=3, max_slices=3))
        for _ in range(4):
            comparisons[0] = 0
            driver.micro_batch()
        counts.append(comparisons[0])
    few, many = counts
    assert many < 8 * max(few, 1)
