"""When a batch starts, and who waits."""

import pytest

from statelog.core.upload_batcher import (
    BatchDone,
    BatchReleased,
    Closed,
    RejectTasks,
    SetAvailable,
    SetTimer,
    StartBatch,
    TaskAdmitted,
    TaskOffered,
    TaskWithdrawn,
    TimerFired,
    TimerLost,
    UploadBatcher,
)
from statelog.errors import InvalidOptionsError


def batcher(fixed_delay: bool = False, delay_ns: int = 10, limit: int = 100) -> UploadBatcher:
    return UploadBatcher(
        delay_ns=delay_ns, threshold_bytes=50, limit_bytes=limit, fixed_delay=fixed_delay
    )


@pytest.fixture
def core() -> UploadBatcher:
    """Return the decisions of an uploader that starts a batch when it is idle."""
    return batcher()


def test_an_idle_uploader_gets_the_first_task_at_once(core):
    assert [TaskAdmitted(1), StartBatch(0, (1,), 0)] == core.handle(TaskOffered(1, 5), 0)


def test_while_an_upload_runs_tasks_share_the_next_file(core):
    core.handle(TaskOffered(1, 5), 0)
    assert [TaskAdmitted(2), SetTimer(11)] == core.handle(TaskOffered(2, 5), 1)
    assert [TaskAdmitted(3)] == core.handle(TaskOffered(3, 5), 2)
    assert [StartBatch(1, (2, 3), 4)] == core.handle(BatchDone(0), 5)


def test_the_delay_runs_from_the_first_waiting_task():
    core = batcher(fixed_delay=True)
    assert [TaskAdmitted(1), SetTimer(10)] == core.handle(TaskOffered(1, 5), 0)
    assert [TaskAdmitted(2)] == core.handle(TaskOffered(2, 5), 9)
    assert [] == core.handle(TimerFired(), 9), "an early timer is stale"
    assert [StartBatch(0, (1, 2), 10)] == core.handle(TimerFired(), 10)
    assert [] == core.handle(TimerFired(), 11)


def test_the_size_threshold_does_not_wait():
    core = batcher(fixed_delay=True)
    core.handle(TaskOffered(1, 20), 0)
    assert [TaskAdmitted(2), StartBatch(0, (1, 2), 1)] == core.handle(TaskOffered(2, 30), 1)


def test_without_delay_each_task_goes_alone():
    core = batcher(delay_ns=0, fixed_delay=True)
    for task_id in range(3):
        actions = core.handle(TaskOffered(task_id, 1), 0)
        assert StartBatch(task_id, (task_id,), 0) in actions


def test_below_the_limit_a_task_of_any_size_is_taken_and_at_it_tasks_wait_in_order(core):
    core.handle(TaskOffered(1, 90), 0)
    assert core.available
    actions = core.handle(TaskOffered(2, 20), 0)
    assert [TaskAdmitted(2), SetTimer(10), SetAvailable(False)] == actions
    assert [] == core.handle(TaskOffered(3, 1), 0)
    assert [] == core.handle(TaskOffered(4, 0), 0), "nor does an empty one pass it"
    assert core.is_waiting(3)
    assert core.is_waiting(4)
    core.check_invariants()
    admitted, started, *others = core.handle(BatchDone(0), 5)
    assert (TaskAdmitted(3), StartBatch(1, (2, 3), 5)) == (admitted, started)
    assert [TaskAdmitted(4), SetTimer(15), SetAvailable(True)] == others


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 101, 10**12])
def test_an_available_batcher_admits_the_next_task_whatever_its_size(core, size_bytes):
    core.handle(TaskOffered(1, 99), 0)
    assert core.available
    assert TaskAdmitted(2) in core.handle(TaskOffered(2, size_bytes), 0)
    assert core.available == (size_bytes == 0)
    core.check_invariants()


def test_a_withdrawn_task_changes_nothing_for_those_behind_it(core):
    core.handle(TaskOffered(1, 100), 0)
    core.handle(TaskOffered(2, 100), 0)
    core.handle(TaskOffered(3, 10), 0)
    assert [] == core.handle(TaskWithdrawn(2), 1)
    actions = core.handle(BatchDone(0), 2)
    assert [TaskAdmitted(3), StartBatch(1, (3,), 0), SetAvailable(True)] == actions


def test_a_close_rejects_what_has_not_started(core):
    core.handle(TaskOffered(1, 90), 0)
    core.handle(TaskOffered(2, 10), 0)
    core.handle(TaskOffered(3, 90), 0)
    assert [RejectTasks((2, 3)), SetAvailable(True)] == core.handle(Closed(), 1)
    assert [RejectTasks((4,))] == core.handle(TaskOffered(4, 1), 2)
    assert [] == core.handle(BatchDone(0), 3)
    assert 0 == core.in_flight_bytes
    core.check_invariants()


def test_a_threshold_above_the_limit_is_refused():
    with pytest.raises(InvalidOptionsError, match="exceeds the limit"):
        batcher(limit=49)


def test_bytes_of_an_upload_stay_in_flight_until_its_attempts_have_returned(core):
    core.handle(TaskOffered(1, 100), 0)
    assert [] == core.handle(BatchDone(0, is_held=True), 1), "the upload was given up, and hangs"
    assert (100, 0, 1) == (core.in_flight_bytes, core.running_batches, core.held_batches)
    assert [] == core.handle(TaskOffered(2, 60), 2)
    assert core.is_waiting(2)
    actions = core.handle(BatchReleased(0), 3)
    assert [TaskAdmitted(2), StartBatch(1, (2,), 0)] == actions[:2]
    assert (60, 0) == (core.in_flight_bytes, core.held_batches)
    core.check_invariants()


def test_an_uploader_that_hangs_is_idle_for_the_next_task(core):
    core.handle(TaskOffered(1, 5), 0)
    core.handle(TaskOffered(2, 5), 0)
    assert [StartBatch(1, (2,), 1)] == core.handle(BatchDone(0, is_held=True), 1)
    core.check_invariants()


def test_a_release_may_overtake_the_end_of_its_upload(core):
    core.handle(TaskOffered(1, 5), 0)
    core.handle(BatchReleased(0), 1)
    core.handle(BatchDone(0, is_held=True), 2)
    assert (0, 0) == (core.in_flight_bytes, core.held_batches)
    core.check_invariants()


def test_a_batch_whose_timer_is_lost_does_not_wait():
    core = batcher(fixed_delay=True)
    core.handle(TaskOffered(1, 5), 0)
    assert [StartBatch(0, (1,), 1)] == core.handle(TimerLost(), 1)
    assert [] == core.handle(TimerLost(), 2)
