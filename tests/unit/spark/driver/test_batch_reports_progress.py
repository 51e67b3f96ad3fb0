"""What a micro-batch has cost, from the answers of its tasks."""

from statelog.core.task_count import BatchCost
from statelog.model import KeyGroupRange
from statelog.spark.driver.batch_reports import batch_cost
from statelog.spark.worker.protocol import TaskAck, TaskPlace


def ack(partition: int, rows: int, **milliseconds: float) -> TaskAck:
    groups = KeyGroupRange(partition, partition)
    figures = {"rows": rows, "task_milliseconds": milliseconds}
    return TaskAck(TaskPlace(partition, groups), figures=figures)


def test_the_work_of_tasks_is_added_without_waits_for_rows() -> None:
    acks = [
        ack(0, 3, input=90, wait=70, process=40, output=5, append=2, stage=1),
        ack(1, 4, input=10, wait=8, process=6),
    ]
    assert BatchCost(2, 7, 100, work_ms=68 + 8, input_ms=70) == batch_cost(acks, 100)


def test_time_for_state_is_not_work_on_rows() -> None:
    acks = [ack(0, 3, catch_up=500, snapshot=300, spill=200, process=1)]
    assert 1 == batch_cost(acks, None).work_ms


def test_a_micro_batch_without_tasks_costs_nothing() -> None:
    assert BatchCost(0, 0, None, work_ms=0, input_ms=0) == batch_cost([], None)
