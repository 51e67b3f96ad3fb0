"""The simulated driver runs the real code: what it counts is what a driver does."""

import pytest
from bench.driver_scale import DELTA_BYTES, EVENTS_PER_TASK, Driver

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries
from statelog.model import KeyGroupRange
from statelog.options import SnapshotPolicy

pytestmark = pytest.mark.campaign

TASKS = 60


def test_a_micro_batch_is_a_real_checkpoint_of_one_request() -> None:
    driver = Driver(TASKS, SnapshotPolicy())
    facts = [driver.micro_batch() for _ in range(3)][-1]
    stored = Entries(driver.store).load(3).checkpoint
    record = BatchRecord.of(stored)
    assert 3 * TASKS == len(stored.log) == facts["log_handles"]
    assert (TASKS, TASKS * EVENTS_PER_TASK) == (record.figures.tasks, record.figures.rows)
    assert TASKS * DELTA_BYTES == record.figures.delta_bytes
    assert {"put": 1} == facts["requests"], "the commit, and nothing before or after it"
    assert facts["commit_bytes"] == facts["driver_bytes"] > 0


def test_snapshots_shorten_the_log_and_free_objects() -> None:
    driver = Driver(TASKS, SnapshotPolicy(max_log_handles=4, max_slices=4))
    facts = [driver.micro_batch() for _ in range(16)]
    assert sum(fact["snapshots"] for fact in facts) > 0
    assert facts[-1]["log_handles"] < 6 * TASKS
    driver.coordinator.clean_up()
    assert driver.store.requests["deleted objects"] > TASKS


def test_the_driver_compares_in_proportion_to_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups in lists of tasks and of snapshots took seconds with thousands of tasks."""
    compared = 0
    equal = KeyGroupRange.__eq__

    def counting(self: KeyGroupRange, other: object) -> bool:
        nonlocal compared
        compared += 1
        return bool(equal(self, other))

    monkeypatch.setattr(KeyGroupRange, "__eq__", counting)
    counts = []
    for tasks in (100, 400):
        driver = Driver(tasks, SnapshotPolicy(max_log_handles=3, max_slices=3))
        for _ in range(4):
            compared = 0
            driver.micro_batch()
        counts.append(compared)
    few, many = counts
    assert many < 8 * max(few, 1)
