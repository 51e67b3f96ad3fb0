"""Pools of threads, and waiters that do the work themselves."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.support.processes.no_threads import WAIT_S, NoThreads

from statelog.errors import ClosedError, UnavailableError
from statelog.runtime.pool import (
    CALLS_MAX,
    PoolFuture,
    ThreadPool,
    call_later,
    in_background,
    together,
)


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(1, "test")
    yield pool
    pool.close(WAIT_S)


class Blocker:
    """Keeps the one thread of a pool busy until it is let go."""

    def __init__(self, pool: ThreadPool) -> None:
        self._go, self._running = threading.Event(), threading.Event()
        pool.submit(self._block, lambda result, error: None)
        assert self._running.wait(WAIT_S)

    def _block(self) -> None:
        self._running.set()
        assert self._go.wait(WAIT_S)

    def __enter__(self) -> Blocker:
        return self

    def __exit__(self, *args: object) -> None:
        self._go.set()


def complete(future: PoolFuture[Any], result: Any, error: BaseException | None) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def submit(pool: ThreadPool, future: PoolFuture[Any], work: Any) -> None:
    pool.submit(work, lambda result, error: complete(future, result, error))


def test_a_future_without_a_pool_waits_as_any_future(pool):
    future: PoolFuture[str] = PoolFuture()
    submit(pool, future, lambda: threading.current_thread().name)
    assert future.result() == "test-1"


def test_an_error_does_not_keep_arguments_alive():
    class Argument:
        pass

    def fail(argument: Argument) -> None:
        raise OSError(argument.__class__.__name__)

    pool = ThreadPool(1, "test")
    ended = threading.Event()
    argument = Argument()
    reference = weakref.ref(argument)
    gc.disable()  # as in a task of Spark: only counting references frees
    try:
        pool.submit(partial(fail, argument), lambda result, error: None)
        del argument
        pool.submit(lambda: None, lambda result, error: ended.set())  # on the same thread
        assert ended.wait(WAIT_S)
        assert reference() is None
    finally:
        gc.enable()
        pool.close(WAIT_S)


def test_a_close_ends_what_waits():
    pool = ThreadPool(1, "test")
    future: PoolFuture[None] = PoolFuture()
    with Blocker(pool):
        submit(pool, future, lambda: None)
        pool.close(0.01)
    with pytest.raises(ClosedError):
        future.result()


def test_a_pool_without_a_thread_fails_its_work_and_recovers(monkeypatch):
    system, pool = NoThreads(monkeypatch), ThreadPool(1, "test")
    ends: list[BaseException | None] = []
    pool.submit(lambda: None, lambda _, error: ends.append(error))
    assert [UnavailableError] == [type(error) for error in ends]
    assert "refused to start a thread" in str(ends[0])
    system.refusing = False
    future: PoolFuture[str] = PoolFuture()
    submit(pool, future, lambda: "done")
    assert future.result(WAIT_S) == "done"
    pool.close(WAIT_S)
    assert (0, 1) == (pool._threads, pool._started)


def test_work_without_a_thread_is_done_by_the_others(monkeypatch):
    pool = ThreadPool(4, "test")
    futures: list[PoolFuture[int]] = [PoolFuture() for _ in range(8)]
    with Blocker(pool):
        system = NoThreads(monkeypatch)
        for number, future in enumerate(futures):
            submit(pool, future, lambda number=number: number)
    assert list(range(8)) == [future.result(WAIT_S) for future in futures]
    system.refusing = False
    pool.close(WAIT_S)
    assert pool._threads == 0


def test_a_refused_spare_thread_is_asked_for_again(monkeypatch):
    pool = ThreadPool(1, "test")
    future: PoolFuture[str] = PoolFuture()
    with Blocker(pool):
        system = NoThreads(monkeypatch)
        submit(pool, future, lambda: "done")
        pool.add_spare_thread()
        assert pool.starved()
        system.refusing = False
        assert not pool.starved()
        assert future.result(WAIT_S) == "done"
    pool.remove_spare_thread()
    pool.close(WAIT_S)


def test_spare_threads_are_bounded_and_go_when_the_others_return():
    pool, go = ThreadPool(1, "test", spare_threads=2), threading.Event()
    for _ in range(5):
        pool.submit(lambda: go.wait(WAIT_S), ignore)
    for _ in range(5):
        pool.add_spare_thread()
    assert (3, 3, True) == (pool._threads, pool._limit, pool.starved())
    for _ in range(5):
        pool.remove_spare_thread()
    go.set()
    pool.close(WAIT_S)
    assert (0, 3) == (pool._threads, pool._started)


def ignore(*_: object) -> None:
    pass


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_no_error_of_a_callback_ends_a_thread_or_stops_a_close(kind):
    pool, ends = ThreadPool(1, "test"), []

    def raises(result: object, error: BaseException | None) -> None:
        raise kind

    for _ in range(3):
        pool.submit(lambda: None, raises)
        future: PoolFuture[str] = PoolFuture()
        submit(pool, future, lambda: "done")
        assert future.result(WAIT_S) == "done"
    with Blocker(pool):
        pool.submit(lambda: None, raises)
        pool.submit(lambda: None, lambda _, error: ends.append(error))
        pool.close(0.01)
    pool.close(WAIT_S)
    assert [ClosedError] == [type(error) for error in ends]
    assert (0, 1) == (pool._threads, pool._started)


def test_a_callback_of_a_closed_pool_is_called_all_the_same():
    pool = ThreadPool(1, "test")
    pool.close(WAIT_S)
    called: list[str] = []
    call_later(pool, called.append, "late")
    assert ["late"] == called


def test_work_in_the_background_runs_in_a_daemon_thread_with_the_name():
    def work() -> tuple[str, bool]:
        thread = threading.current_thread()
        return thread.name, thread.daemon

    assert in_background(work, "work-1").result(10) == ("work-1", True)
    assert isinstance(in_background(lambda: sys.exit(3), "work-2").exception(10), SystemExit)


def test_results_of_calls_together_are_in_the_order_of_the_calls():
    turns = [threading.Event() for _ in range(4)]
    turns[-1].set()

    def call(number: int) -> int:
        turns[number].wait(30)  # the last one ends first
        turns[number - 1].set()
        return number

    assert together([lambda n=n: call(n) for n in range(4)]) == [0, 1, 2, 3]
    more_than_threads = range(3 * CALLS_MAX)
    assert together([lambda n=n: n for n in more_than_threads]) == list(more_than_threads)


def test_the_first_error_in_the_order_is_raised_when_all_calls_have_ended():
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
