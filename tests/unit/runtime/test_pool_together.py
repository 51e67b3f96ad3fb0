"""Calls that run at once: their results, their errors, and that all of them run."""

import threading

import pytest

from statelog.runtime.pool import CALLS_MAX, together


def test_results_are_in_the_order_of_the_calls():
    turns = [threading.Event() for _ in range(4)]
    turns[-1].set()

    def call(number: int) -> int:
        turns[number].wait(30)  # the last one ends first
        turns[number - 1].set()
        return number

    assert together([lambda n=n: call(n) for n in range(4)]) == [0, 1, 2, 3]


def test_more_calls_than_threads():
    assert together([lambda n=n: n for n in range(3 * CALLS_MAX)]) == list(range(3 * CALLS_MAX))


def test_the_first_error_in_the_order_is_raised_when_all_have_ended():
    ended = []

    def fail(number: int) -> None:
        ended.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        together([lambda n=n: fail(n) for n in range(3)], at_one_moment=True)
    assert sorted(ended) == [0, 1, 2]


def test_calls_begin_when_all_threads_have_started():
    meeting = threading.Barrier(8)
    numbers = together([lambda: meeting.wait(30)] * 8, at_one_moment=True)
    assert sorted(numbers) == list(range(8))
