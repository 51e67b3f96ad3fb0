"""How many tasks a micro-batch gets."""

import pytest

from statelog.core.task_count import TASK_WORK_MS, BatchCost, TaskBounds, TaskCount
from statelog.errors import UsageError
from statelog.extensions.columns.aggregation.pre_aggregation import PARTIAL_WORK_MS

ROW_MS = 0.01
SMALL, LARGE = 50, int(20 * TASK_WORK_MS / ROW_MS)
BYTES_PER_ROW = 8


@pytest.fixture
def count() -> TaskCount:
    return TaskCount(TaskBounds(1, 8))


def cost(tasks: int, rows: int, *, sized: bool = True, input_ms: float = 5.0) -> BatchCost:
    return BatchCost(tasks, rows, rows * BYTES_PER_ROW if sized else None, rows * ROW_MS, input_ms)


def run(count: TaskCount, batches: list[int], *, sized: bool) -> list[int]:
    """Run micro-batches of so many rows and return their numbers of tasks."""
    chosen = []
    for rows in batches:
        chosen.append(count.choose(rows * BYTES_PER_ROW if sized else None))
        count.ran(cost(chosen[-1], rows, sized=sized))
    return chosen


def test_small_batches_get_one_task_and_large_ones_all(count):
    assert 1 == count.choose(SMALL * BYTES_PER_ROW)
    assert [5, 8, 1, 8, 1] == run(count, [LARGE, LARGE, SMALL, LARGE, SMALL], sized=True)


def test_between_them_tasks_are_as_many_as_the_work_pays_for(count):
    for _ in range(3):  # a row is known to cost so much
        count.ran(cost(1, 10_000))
    rows = int(3.5 * TASK_WORK_MS / ROW_MS)
    assert 4 == count.choose(rows * BYTES_PER_ROW)


def test_less_work_pays_for_a_task_where_there_is_a_shuffle_already():
    rows = int(1.5 * TASK_WORK_MS / ROW_MS)
    for work_ms, tasks in ((TASK_WORK_MS, 2), (PARTIAL_WORK_MS, 12)):
        count = TaskCount(TaskBounds(1, 16), work_ms)
        count.ran(cost(1, 10_000))
        assert tasks == count.choose(rows * BYTES_PER_ROW)


def test_without_a_known_size_one_batch_at_most_has_too_few_tasks(count):
    assert [8, 1, 1, 1, 8, 8, 8, 8, 1] == run(
        count, [SMALL, SMALL, SMALL, LARGE, LARGE, SMALL, SMALL, SMALL, SMALL], sized=False
    )


@pytest.mark.parametrize("boundary", [1, 3])
def test_noise_does_not_change_the_number_of_tasks_to_and_fro(count, boundary):
    around = [int(boundary * part * TASK_WORK_MS / ROW_MS) for part in (0.9, 1.1, 0.8, 1.05)]
    count.ran(cost(boundary, 10_000))
    assert set(run(count, around * 5, sized=True)[1:]) == {boundary + 1}
    less = int(boundary * 0.7 * TASK_WORK_MS / ROW_MS)
    assert boundary + 1 > run(count, [less] * 4, sized=True)[-1]


def test_a_slow_processor_gets_more_tasks_for_the_same_rows(count):
    count.ran(BatchCost(1, 2000, None, 2000 * 1.0, 5.0))
    assert 8 == count.choose(None)


def test_a_few_rows_do_not_set_the_cost_of_a_row(count):
    count.ran(BatchCost(1, 3, None, 6.0, 5.0))  # the fixed cost of a task
    assert 1 == count.choose(None)


def test_slow_reading_before_the_task_is_spread_again(count):
    slow = cost(1, SMALL, sized=False, input_ms=2000.0)
    for _ in range(2):  # as while everything starts
        count.ran(slow)
    count.ran(cost(1, SMALL, sized=False))
    assert 1 == count.choose(None)
    for _ in range(3):
        count.ran(slow)
    assert [2] * 20 == run(count, [SMALL] * 20, sized=False)
    run(count, [SMALL] * 100, sized=False)
    assert 1 == count.choose(None)  # it is tried again now and then


@pytest.mark.parametrize(("least", "most"), [(3, 3), (2, 4)])
def test_the_bounds_hold(least, most):
    count = TaskCount(TaskBounds(least, most))
    assert [most, least] == [count.choose(1 << 40), count.choose(1)]


@pytest.mark.parametrize(("least", "most"), [(0, 1), (3, 2), (-1, -1)])
def test_bounds_that_contradict_each_other_are_refused(least, most):
    with pytest.raises(UsageError, match="tasks must be a range"):
        TaskBounds(least, most)
