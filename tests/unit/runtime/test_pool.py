"""Pools of threads, and waiters that do the work themselves."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any

import pytest

from statelog.errors import ClosedError
from statelog.runtime.pool import HelpedFuture, ThreadPool

WAIT_S = 20.0


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


def complete(future: HelpedFuture[Any], result: Any, error: BaseException | None) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def submit(pool: ThreadPool, future: HelpedFuture[Any], work: Any) -> None:
    pool.submit(work, lambda result, error: complete(future, result, error))


def test_a_waiter_does_the_work_that_no_thread_takes(pool: ThreadPool) -> None:
    future: HelpedFuture[str] = HelpedFuture(pool)
    with Blocker(pool):
        submit(pool, future, lambda: threading.current_thread().name)
        assert future.result() == threading.current_thread().name


def test_a_waiter_does_what_waits_before_its_own_work_and_nothing_after(pool: ThreadPool) -> None:
    future: HelpedFuture[str] = HelpedFuture(pool)
    done: list[str] = []
    with Blocker(pool):
        submit(pool, HelpedFuture(pool), lambda: done.append("before"))
        submit(pool, future, lambda: done.append("mine"))
        submit(pool, HelpedFuture(pool), lambda: done.append("after"))
        assert future.exception() is None
        assert done == ["before", "mine"]


def test_a_waiter_with_a_time_out_is_never_held_up_by_work(pool: ThreadPool) -> None:
    future: HelpedFuture[str] = HelpedFuture(pool)
    done: list[str] = []
    with Blocker(pool):
        submit(pool, future, lambda: done.append("work"))
        with pytest.raises(FutureTimeoutError):
            future.result(timeout=0.01)
        assert done == []


def test_without_a_pool_it_waits_as_any_future(pool: ThreadPool) -> None:
    future: HelpedFuture[str] = HelpedFuture(None)
    submit(pool, future, lambda: threading.current_thread().name)
    assert future.result() == "test-1"


def test_an_error_reaches_the_one_who_did_the_work_as_any_other(pool: ThreadPool) -> None:
    future: HelpedFuture[None] = HelpedFuture(pool)

    def work() -> None:
        raise OSError("no disk")

    with Blocker(pool):
        submit(pool, future, work)
        with pytest.raises(OSError, match="no disk"):
            future.result()


def test_ctrl_c_in_helped_work_ends_the_work_and_reaches_the_waiter(pool: ThreadPool) -> None:
    ends: list[BaseException | None] = []

    def work() -> None:
        raise KeyboardInterrupt

    with Blocker(pool):
        pool.submit(work, lambda result, error: ends.append(error))
        with pytest.raises(KeyboardInterrupt):
            HelpedFuture[None](pool).result()
    assert [type(error) for error in ends] == [KeyboardInterrupt]


def test_many_waiters_and_threads_share_the_work_and_each_piece_is_done_once() -> None:
    pool = ThreadPool(2, "test")
    counts = [0] * 400

    def count(at: int) -> int:
        counts[at] += 1
        return at

    def wait_for_each_other_piece(first: int) -> None:
        for at in range(first, len(counts), 4):
            future: HelpedFuture[int] = HelpedFuture(pool)
            submit(pool, future, lambda at=at: count(at))
            assert future.result() == at

    threads = [threading.Thread(target=wait_for_each_other_piece, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    pool.close(WAIT_S)
    assert counts == [1] * 400


def test_what_failed_is_not_kept_alive_by_its_error() -> None:
    class Held:
        pass

    def fail(held: Held) -> None:
        raise OSError(held.__class__.__name__)

    pool = ThreadPool(0, "test")  # nobody works here but who helps
    held = Held()
    gone = weakref.ref(held)
    gc.disable()  # as in a task of Spark: only counting references frees
    try:
        pool.submit(partial(fail, held), lambda result, error: None)
        del held
        pool.help(lambda: False)
        assert gone() is None
    finally:
        gc.enable()


def test_closing_tells_what_waits_and_a_waiter_finds_it_ended() -> None:
    pool = ThreadPool(1, "test")
    future: HelpedFuture[None] = HelpedFuture(pool)
    with Blocker(pool):
        submit(pool, future, lambda: None)
        pool.close(0.01)
    with pytest.raises(ClosedError):
        future.result()
