"""A signal handler raises inside a call: the storage refuses later calls, and can be closed."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changelogs import ALL, HeldScheduler, handle_of, values_of

import statelog as sl
from statelog import changelog as cl

WAIT_S = 20.0
ROUNDS = 60


class Interrupt(BaseException):
    """What the handler raises, as Ctrl-C does."""


@contextmanager
def signals(delay_s: float) -> Iterator[None]:
    """Raise `Interrupt` in this thread after *delay_s*, once."""
    armed = [True]

    def handle(number: int, frame: object) -> None:
        if armed:
            armed.pop()
            raise Interrupt

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Timer(delay_s, lambda: armed and os.kill(os.getpid(), signal.SIGUSR1))
    sender.start()
    try:
        yield
    finally:
        armed.clear()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def calls_of(writer: cl.FsStateChangelogWriter) -> list[Callable[[], Any]]:
    return [
        lambda: writer.append(1, b"late"),
        lambda: writer.append_meta(b"late"),
        lambda: writer.append_batch([1], pa.array([b"late"], pa.binary())),
        writer.next_sequence_number,
        lambda: writer.persist(0),
        lambda: writer.confirm(0, 0, 1),
        lambda: writer.reset(0, 0, 1),
        lambda: writer.truncate(0),
    ]


def check_refused(storage: cl.FsStateChangelogStorage, writer: cl.FsStateChangelogWriter) -> None:
    for call in calls_of(writer):
        with pytest.raises(cl.WriterClosedError, match=r"interrupted .*close the storage"):
            call()
    with pytest.raises(sl.ClosedError, match="close the storage and open it"):
        storage.create_writer("late", ALL)


def check_unlocked(storage: cl.FsStateChangelogStorage) -> None:
    """Another thread can take the locks of the storage."""
    runtime = storage._runtime
    for lock in (runtime.lock, runtime.upload_pool._changed, runtime.callback_pool._changed):
        taken: list[bool] = []
        thread = threading.Thread(target=_take, args=[lock, taken])
        thread.start()
        thread.join(WAIT_S)
        assert [True] == taken


def _take(lock: Any, taken: list[bool]) -> None:
    taken.append(lock.acquire(timeout=WAIT_S))
    if taken[0]:
        lock.release()


def work(
    storage: cl.FsStateChangelogStorage,
    writers: list[cl.FsStateChangelogWriter],
    futures: list[Future[Any]],
) -> None:
    """Call writers until an interrupt; code in C may drop one, so for a second at most."""
    checkpoint_id = 0
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        checkpoint_id += 1
        for writer in writers:
            start = writer.next_sequence_number()
            for number in range(20):
                writer.append(number, b"value")
            writer.append_meta(b"meta")
            writer.append_batch([1, 2], pa.array([b"a", b"b"], pa.binary()))
            futures.append(writer.persist(start, checkpoint_id))
            end = writer.next_sequence_number()
            writer.confirm(start, end, checkpoint_id)
            if checkpoint_id % 3 == 0:
                futures[-1].exception()
            writer.truncate(end)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("scheduler", ["batching", "direct", "inline"])
def test_a_signal_into_any_call_leaves_no_lock_and_no_future(scheduler):
    rng = random.Random(scheduler)
    refused = number = 0
    # Where a signal arrives depends on the machine: on a fast one, most arrive in waits.
    while number < ROUNDS or (refused <= ROUNDS // 4 and number < 4 * ROUNDS):
        number += 1
        location = f"memory://interrupts-{scheduler}-{number}"
        storage = storage_of(scheduler, location)
        writers = [storage.create_writer("operator", ALL) for _ in range(2)]
        futures: list[Future[Any]] = []
        with suppress(Interrupt), signals(10 ** rng.uniform(-4, -1.5)):
            work(storage, writers, futures)
        check_unlocked(storage)
        if storage.interrupted:  # else between two calls, or in a wait
            refused += 1
            for writer in writers:
                check_refused(storage, writer)
            for future in futures:
                assert future.done()
        storage.close()
        storage.close()
        for future in futures:
            future.exception(WAIT_S)
        with cl.FsStateChangelogStorage(location) as again:
            writer = again.create_writer("operator", ALL)
            writer.append(1, b"value")
            handle = handle_of(writer.persist(0).result(WAIT_S))
            assert [b"value"] == values_of(again.read(handle))
    assert refused > ROUNDS // 4


def storage_of(scheduler: str, location: str) -> cl.FsStateChangelogStorage:
    if scheduler == "direct":
        direct = cl.StateChangeUploadScheduler.direct_scheduler(cl.StateChangeFsUploader(location))
        return cl.FsStateChangelogStorage(location, scheduler=direct)
    inline_bytes = 10_000 if scheduler == "inline" else None
    return cl.FsStateChangelogStorage(location, inline_bytes=inline_bytes)


def test_an_interrupt_fails_the_open_persists_of_all_writers_and_keeps_what_is_durable():
    class Raises:
        def upload(self, task: cl.UploadTask) -> None:
            if task.change_sets[0].log_id == 1:
                raise KeyboardInterrupt

        def close(self) -> None:
            pass

    storage = cl.FsStateChangelogStorage("memory://interrupt-of-one", scheduler=Raises())
    waiting, interrupted = (storage.create_writer("operator", ALL) for _ in range(2))
    waiting.append(1, b"value")
    future = waiting.persist(0)
    interrupted.append(1, b"value")
    with pytest.raises(KeyboardInterrupt):
        interrupted.persist(0)
    with pytest.raises(cl.WriterClosedError, match="a KeyboardInterrupt interrupted a call"):
        future.result(WAIT_S)
    for writer in (waiting, interrupted):
        check_refused(storage, writer)
    interrupted.truncate_and_close(0)
    storage.close()
    for writer in (waiting, interrupted):
        with pytest.raises(cl.WriterClosedError, match="is closed; create a new one"):
            writer.append(1, b"late")


def test_an_interrupt_of_a_wait_for_a_result_ends_the_wait_alone():
    scheduler = HeldScheduler()
    with cl.FsStateChangelogStorage("memory://wait", scheduler=scheduler) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        future = writer.persist(0)
        with pytest.raises(Interrupt), signals(0.05):
            future.result()
        assert not future.done()
        writer.append(1, b"another")
        scheduler.tasks[0].fail(OSError("full"))
        assert isinstance(future.exception(WAIT_S), cl.UploadFailedError)


def test_an_interrupt_of_a_wait_for_capacity_ends_it():
    gate = threading.Event()

    class Slow:
        def upload(self, tasks: Any) -> cl.UploadTasksResult:
            gate.wait(WAIT_S)
            raise OSError("late")

        def discard(self, result: cl.UploadTasksResult) -> None:
            pass

        def close(self) -> None:
            pass

    scheduler = cl.BatchingStateChangeUploadScheduler(
        Slow(), max_in_flight_bytes=1, batch_threshold_bytes=1
    )
    storage = cl.FsStateChangelogStorage("memory://capacity", scheduler=scheduler)
    writer = storage.create_writer("operator", ALL)
    writer.append(1, b"value")
    writer.persist(0)
    writer.append(1, b"value")
    began_s = time.monotonic()
    with pytest.raises(Interrupt), signals(0.05):
        writer.persist(0)
    assert time.monotonic() - began_s < WAIT_S / 2
    check_refused(storage, writer)
    gate.set()
    storage.close()
