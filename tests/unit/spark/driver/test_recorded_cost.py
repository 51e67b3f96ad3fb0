"""What the record of a micro-batch says of its cost, and of the one before."""

from dataclasses import dataclass

from statelog.model import KeyGroupRange
from statelog.spark.driver.batch_reports import RecordedCosts
from statelog.spark.worker.protocol import TaskAck, TaskCosts, TaskPlace
from statelog.spark.worker.stopwatch import Stopwatch


@dataclass
class Location:
    repeated_puts: int = 0


def ack(partition: int, attempt: int, costs: TaskCosts) -> TaskAck:
    place = TaskPlace(partition, KeyGroupRange(partition, partition), attempt)
    return TaskAck(place, costs=costs)


def watch(**milliseconds: float) -> Stopwatch:
    one = Stopwatch()
    one.milliseconds = milliseconds
    return one


def test_the_slowest_task_counts_in_each_phase_and_failed_attempts_add_up() -> None:
    acks = [
        ack(0, 1, TaskCosts({"process": 7.6, "input": 0.2}, objects=2, object_bytes=100)),
        ack(
            1,
            2,
            TaskCosts(
                {"process": 3.0, "input": 9.4},
                objects=1,
                object_bytes=20,
                uploads=[("repeated_requests", 4.0)],
            ),
        ),
    ]
    cost = RecordedCosts(Location()).before_commit(watch(plan=1.4, run=40.5), acks)
    assert {"plan": 1, "run": 40} == cost.durations_ms
    assert {"process": 8, "input": 9} == cost.task_ms
    assert {"tasks": 3, "puts": 0, "requests": 4} == cost.retries
    assert (3, 120) == (cost.objects, cost.object_bytes)
    assert cost.previous_ms is None


def test_uploads_are_recorded_where_there_were_any() -> None:
    costs = RecordedCosts(Location())
    nothing = TaskCosts()
    assert costs.before_commit(watch(), [ack(0, 0, nothing), ack(1, 0, nothing)]).uploads is None
    acks = []
    for task, attempts in enumerate((1, 3)):
        uploads = [
            ("number_of_upload_requests", 1),
            *[("number_of_upload_requests", 1), ("number_of_upload_failures", 1)] * (attempts - 1),
            ("total_attempts_per_upload", attempts),
            ("upload_sizes", 1_000),
            ("upload_durations", attempts * 2_000_000),
            ("changelog_busy_time", 1_500_000),
        ]
        acks.append(ack(task, 0, TaskCosts(uploads=uploads)))
    assert costs.before_commit(watch(), acks).uploads == {
        "uploads": 2,
        "attempts": 4,
        "retries": 2,
        "bytes": 2_000,
        "slowest_ms": 6,
        "wait_ms": 3,
    }


def test_a_phase_of_no_millisecond_is_left_out_of_the_tasks() -> None:
    cost = RecordedCosts(Location()).before_commit(
        watch(run=1.0), [ack(0, 0, TaskCosts({"spill": 0.3}))]
    )
    assert {} == cost.task_ms


def test_the_phases_after_a_commit_are_in_the_next_record() -> None:
    costs = RecordedCosts(Location())
    one = watch(plan=1.0, run=2.0)
    costs.before_commit(one, [])
    one.milliseconds |= {"commit": 3.0, "deliver": 4.0, "clean_up": 5.0}
    costs.committed(one)
    after = costs.before_commit(watch(plan=6.0, run=7.0), [])
    assert {"commit": 3, "deliver": 4, "clean_up": 5} == after.previous_ms
    assert {"plan": 6, "run": 7} == after.durations_ms


def test_a_put_that_a_commit_repeats_is_in_the_next_record_and_in_no_other() -> None:
    location = Location(repeated_puts=2)  # of the claim
    costs = RecordedCosts(location)
    counted = [costs.before_commit(watch(), []).retries["puts"]]
    location.repeated_puts += 1  # of that commit
    counted += [costs.before_commit(watch(), []).retries["puts"] for _ in range(2)]
    assert [2, 1, 0] == counted
