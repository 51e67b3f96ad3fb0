"""How schedulers hold tasks back, and what uploaders store."""

import datetime as dt
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.changelogs import (
    ALL,
    GatedStore,
    ScriptedStore,
    appended,
    handle_of,
    persisted,
    values_of,
    wait_until,
)

import statelog as sl
from statelog import changelog as cl
from statelog.errors import ClosedError, ObjectNotFoundError, StoreError, UsageError
from statelog.format.segment import parse_segment
from statelog.model import ByteStreamStateHandle, ChangeBatch, FileStateHandle
from statelog.options import load_options
from statelog.runtime.clock import RandomIds
from statelog.runtime.runtime import system_runtime
from statelog.store.paths import PATHS


def task(size: int, log_id: int = 0, sqn: int = 0) -> tuple[cl.UploadTask, list[object]]:
    batch = ChangeBatch(np.array([1], np.int32), pa.array([bytes(size)], pa.binary()))
    ended: list[object] = []
    change_set = cl.StateChangeSet(log_id, cl.SequenceNumber(sqn), (batch,), size)
    return cl.UploadTask([change_set], ended.append, lambda _, error: ended.append(error)), ended


def gated(limit: int, timeout_s=10) -> tuple[GatedStore, cl.BatchingStateChangeUploadScheduler]:
    store, runtime = GatedStore(math.inf), system_runtime()
    return store, cl.BatchingStateChangeUploadScheduler(
        cl.StateChangeFsUploader(store, paths=PATHS, ids=runtime.ids),
        runtime=runtime,
        policy=cl.RetryPolicy.none(),
        batch_threshold_bytes=1,
        max_in_flight_bytes=limit,
        backpressure_timeout_s=timeout_s,
    )


def test_waiting_ends_with_room():
    store, scheduler = gated(100)
    first, second = task(100)[0], task(80, sqn=1)[0]
    scheduler.upload(first)
    waiter = threading.Thread(target=scheduler.upload, args=[second])
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    assert not scheduler.availability.is_available
    assert not scheduler.availability.wait(0.01)
    future = scheduler.availability.future
    store.gate.set()
    waiter.join(60)
    assert not waiter.is_alive()
    assert future.result(60) is None
    assert scheduler.availability.wait(60)
    scheduler.close()


def test_a_callback_of_the_availability_may_upload_a_task_of_any_size():
    store, scheduler = gated(1000, timeout_s=0.0)
    scheduler.upload(task(1000)[0])
    late, ended = task(5000, sqn=1)
    scheduler.availability.future.add_done_callback(lambda _: scheduler.upload(late))
    store.gate.set()
    wait_until(lambda: ended)
    assert not isinstance(ended[0], BaseException)
    scheduler.close()


def test_waiting_ends_with_a_time_out():
    store, scheduler = gated(100, timeout_s=0.02)
    scheduler.upload(task(100)[0])
    late, ended = task(80)
    with pytest.raises(
        cl.BackpressureTimeoutError, match="no upload capacity became free for 80 bytes"
    ):
        scheduler.upload(late)
    assert [cl.BackpressureTimeoutError] == [type(error) for error in ended]
    store.gate.set()
    scheduler.close()


def test_waiting_ends_with_the_close():
    store, scheduler = gated(100)
    scheduler.upload(task(100)[0])
    raised: list[BaseException] = []
    late, ended = task(80)

    def wait() -> None:
        try:
            scheduler.upload(late)
        except sl.ClosedError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join(0.05)
    scheduler.close()
    waiter.join(60)
    assert (1, 1) == (len(raised), len(ended))
    assert scheduler.availability.is_available, "no thread waits at a closed scheduler"
    store.gate.set()


def test_many_threads_exceed_the_limit_by_less_than_a_task():
    store, runtime = ScriptedStore(), system_runtime()
    scheduler = cl.BatchingStateChangeUploadScheduler(
        cl.StateChangeFsUploader(store, paths=PATHS, ids=runtime.ids),
        runtime=runtime,
        batch_threshold_bytes=100,
        max_in_flight_bytes=1000,
    )
    peaks: list[int] = []
    ends: list[list[object]] = []

    def work(log_id: int) -> None:
        for sqn in range(50):
            offered, ended = task(300, log_id, sqn)
            ends.append(ended)
            scheduler.upload(offered)
            peaks.append(scheduler.in_flight_bytes)

    threads = [threading.Thread(target=work, args=[log_id]) for log_id in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # Callbacks run on threads of their own, so the last of them may end after the bytes are free.
    wait_until(lambda: all(ends))
    assert max(peaks) < 1000 + 300
    assert 0 == scheduler.in_flight_bytes
    assert {1} == {len(ended) for ended in ends}
    scheduler.close()


def test_a_task_ends_once_and_counts_all_its_sets():
    single, ended = task(3)
    both = cl.UploadTask(single.change_sets * 2, ended.append, lambda *_: None)
    assert 6 == both.size_bytes
    both.complete([])
    both.complete([])
    both.fail(OSError())
    assert [[]] == ended
    assert both.finished


def test_the_direct_scheduler_starts_no_thread_and_fails_the_task():
    store = ScriptedStore()
    before = threading.active_count()
    uploader = cl.StateChangeFsUploader(store, paths=PATHS, ids=RandomIds())
    scheduler = cl.DirectStateChangeUploadScheduler(uploader)
    with cl.FsStateChangelogStorage(store, job_id="", scheduler=scheduler) as storage:
        writer = appended(storage, b"value")
        store.put_errors = [OSError("no")]
        with pytest.raises(cl.UploadFailedError):
            writer.persist(0).result(0)
        assert [b"value"] == values_of(storage.read(handle_of(writer.persist(0).result(0))))
        assert scheduler.availability.is_available
        assert before == threading.active_count()
    with pytest.raises(sl.ClosedError):
        scheduler.upload(task(1)[0])
    assert all(path.startswith("dstl/") for path in store.objects)


@pytest.mark.parametrize(("threshold", "inline"), [(10_000, True), (60, False), (0, False)])
def test_small_batches_stay_in_their_handles(threshold, inline):
    store, ids = ScriptedStore(), RandomIds()
    uploader = cl.InlineStateChangeUploader(
        threshold, cl.StateChangeFsUploader(store, paths=PATHS, ids=ids), ids=ids
    )
    tasks = [task(10, sqn=1)[0], task(20, log_id=2)[0]]
    result = uploader.upload(tasks)
    assert inline == (not store.objects)
    assert tasks == [entry.task for entry in result.tasks]
    for handle in result.handles:
        if inline:
            assert isinstance(handle, cl.ByteStreamStateHandle)
            assert parse_segment(handle.data).trailer is not None
    uploader.discard(result)
    uploader.close()


def test_a_lone_set_of_a_plain_file_is_fetched_alone():
    store = ScriptedStore()
    with cl.FsStateChangelogStorage(store) as storage:
        writer = storage.create_writer("operator", ALL)
        for index in range(5):
            writer.append(index, b"x" * 1000)
            writer.next_sequence_number()
        writer.persist(0).result(60)
        tail = handle_of(writer.persist(4).result(60))
        assert [(4, b"x" * 1000)] == list(storage.read(tail))
    assert (1, 0) == (store.requests["get_range"], store.requests["get"])


def test_a_missing_file_is_named():
    store = ScriptedStore()
    with cl.FsStateChangelogStorage(store) as storage:
        handle = persisted(storage, b"x")
        (path,) = store.objects
        store.objects.clear()
        with pytest.raises(ObjectNotFoundError) as caught:
            list(storage.read(handle))
    for fact in (path, handle.state_handle_id, "checkpoint 1", "scripted://"):
        assert fact in str(caught.value)


ONE_ATTEMPT = cl.RetryPolicy.fixed(max_attempts=1, timeout_s=None)
SCHEDULERS: dict[str, Callable[..., cl.StateChangeUploadScheduler]] = {
    "direct": cl.DirectStateChangeUploadScheduler,
    "batching": partial(cl.BatchingStateChangeUploadScheduler, policy=ONE_ATTEMPT),
}


class Raising:
    """An uploader that raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
        raise self.error

    def discard(self, result: cl.UploadTasksResult) -> None:
        raise AssertionError("there is no result")

    def close(self) -> None:
        pass


def failure_of(scheduler: cl.StateChangeUploadScheduler) -> BaseException:
    """Upload a task with two sets, and return the error of the task."""
    errors: list[BaseException] = []
    ended = threading.Event()

    def failed(numbers: Sequence[cl.SequenceNumber], error: BaseException) -> None:
        errors.append(error)
        ended.set()

    sets = [cl.StateChangeSet.of(0, sqn, [(1, b"one")]) for sqn in (0, 1)]
    scheduler.upload(cl.UploadTask(sets, print, failed))
    assert ended.wait(60)
    (error,) = errors
    return error


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    "error", [OSError("disk"), sl.StoreError("s3"), ValueError("wrong"), sl.ClosedError("store")]
)
def test_a_failed_upload_has_one_class_and_its_cause(name, error):
    with SCHEDULERS[name](Raising(error)) as scheduler:
        failure = failure_of(scheduler)
    assert type(failure) is cl.UploadFailedError
    assert isinstance(failure, OSError)
    assert error is failure.__cause__
    text = f"upload of 2 change sets failed (attempt 1: {type(error).__name__}: {error}); "
    assert str(failure).startswith(text)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_time_out_of_the_store_is_a_time_out(name):
    error = TimeoutError("the server took too long")
    with SCHEDULERS[name](Raising(error)) as scheduler:
        failure = failure_of(scheduler)
    assert type(failure) is cl.UploadTimeoutError
    assert isinstance(failure, TimeoutError) and isinstance(failure, cl.UploadFailedError)
    assert error is failure.__cause__


class Hanging(Raising):
    """An uploader whose first attempt raises and whose later ones hang until the end."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__(error or OSError())
        self.raises = error is not None
        self.end = threading.Event()

    def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
        if self.raises:
            self.raises = False
            raise self.error
        self.end.wait(60)
        raise OSError("late")


@pytest.mark.parametrize("first", [None, OSError("reset")])
def test_an_upload_whose_last_attempt_hangs_is_a_time_out(first):
    uploader = Hanging(first)
    policy = cl.RetryPolicy.fixed(2, dt.timedelta(milliseconds=50), dt.timedelta(0))
    with cl.BatchingStateChangeUploadScheduler(
        uploader, policy=policy, upload_threads=2
    ) as scheduler:
        failure = failure_of(scheduler)
        uploader.end.set()
    assert type(failure) is cl.UploadTimeoutError
    assert type(failure.__cause__) is TimeoutError
    assert "attempt 2 did not end within 0.05 s" == str(failure.__cause__)
    assert first is failure.__cause__.__cause__


def test_closed_is_no_os_error_so_that_no_retry_repeats_it():
    for error in (sl.ClosedError, cl.WriterClosedError):
        assert not issubclass(error, OSError)
    for error in (cl.UploadFailedError, cl.BackpressureTimeoutError, sl.StoreError):
        assert issubclass(error, OSError)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_closed_scheduler_fails_the_task_and_the_call(name):
    scheduler, errors = SCHEDULERS[name](Raising(OSError())), []
    scheduler.close()
    task = cl.UploadTask([], print, lambda _, error: errors.append(error))
    with pytest.raises(sl.ClosedError, match="create a new storage"):
        scheduler.upload(task)
    assert [sl.ClosedError] == [type(error) for error in errors]


def test_a_scheduler_of_parts_has_as_many_threads_as_asked():
    """Three uploads run at once only if there are three threads."""
    together = threading.Barrier(3)

    class Meeting(Raising):
        def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
            together.wait(60)
            raise self.error

    failures: list[Any] = []
    ended = threading.Semaphore(0)

    def failed(_: object, error: BaseException) -> None:
        failures.append(error.__cause__)
        ended.release()

    error = ValueError("all three met")
    with cl.BatchingStateChangeUploadScheduler(
        Meeting(error), policy=ONE_ATTEMPT, batch_threshold_bytes=0, upload_threads=3
    ) as scheduler:
        for sqn in range(3):
            change_set = cl.StateChangeSet.of(0, sqn, [(1, b"x")])
            scheduler.upload(cl.UploadTask([change_set], print, failed))
        for _ in range(3):
            assert ended.acquire(timeout=60)
    assert [error] * 3 == failures


def test_an_uploader_without_a_discard_of_its_own_is_named():
    class Subclass(cl.StateChangeUploader):
        def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
            raise OSError("no")

    with pytest.raises(sl.UsageError, match="Subclass does not implement discard; add"):
        Subclass().discard(cl.UploadTasksResult())


SMALL, LARGE = b"s" * 10, b"l" * 5_000


def opened(store: ScriptedStore, inline_bytes: int = 1_000) -> cl.FsStateChangelogStorage:
    options = load_options({"changelog.upload.next-attempt-delay": "0 ms"}, environ={})
    return cl.FsStateChangelogStorage.from_options(
        options, store, job_id="", inline_bytes=inline_bytes
    )


def threads_of_statelog() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("statelog")}


def test_small_changes_start_no_thread_and_send_no_request():
    store, before = ScriptedStore(), threads_of_statelog()
    with opened(store) as storage:
        handle = persisted(storage, SMALL)
        (entry,) = handle.handles_and_offsets
        assert isinstance(entry.handle, ByteStreamStateHandle)
        assert values_of(storage.read(handle)) == [SMALL]
        assert threads_of_statelog() == before
        assert not store.requests
        assert storage.metrics.value("number_of_upload_requests") == 0


def test_large_changes_are_retried_as_those_of_any_storage():
    store = ScriptedStore()
    store.put_errors = [StoreError("reset", path="")]
    with opened(store) as storage:
        handle = persisted(storage, LARGE)
        (entry,) = handle.handles_and_offsets
        assert isinstance(entry.handle, FileStateHandle)
        assert values_of(storage.read(handle)) == [LARGE]
        assert storage.metrics.value("number_of_upload_requests") == 2


def test_the_threshold_may_change_between_writers():
    with opened(ScriptedStore()) as storage:
        storage.inline_bytes = 0
        (entry,) = persisted(storage, SMALL).handles_and_offsets
        assert isinstance(entry.handle, FileStateHandle)
        storage.inline_bytes = 100_000
        (entry,) = persisted(storage, LARGE).handles_and_offsets
        assert isinstance(entry.handle, ByteStreamStateHandle)
        with pytest.raises(UsageError):
            storage.inline_bytes = -1


def test_inline_handles_are_off_by_default():
    with cl.FsStateChangelogStorage(ScriptedStore()) as storage:
        assert storage.inline_bytes == 0
        with pytest.raises(UsageError, match="inline_bytes"):
            storage.inline_bytes = 5


def test_files_that_no_handle_names_are_deleted_at_the_close():
    store = ScriptedStore()
    options = load_options({"changelog.preemptive-persist-threshold": 2_000}, environ={})
    with cl.FsStateChangelogStorage.from_options(options, store, job_id="", inline_bytes=100) as it:
        writer = it.create_writer("operator", ALL)
        for _ in range(3):
            writer.append(1, LARGE)
        writer.persist(0, 1).result(timeout=20)
        for _ in range(3):
            writer.append(1, LARGE)
        writer.next_sequence_number()
    assert 1 <= len(store.objects) <= 3


def test_a_closed_storage_takes_no_small_changes_either():
    storage = opened(ScriptedStore())
    scheduler = storage.scheduler
    storage.close()
    ended: list[object] = []
    task = cl.UploadTask(
        [cl.StateChangeSet.of(0, 0, [cl.StateChange(1, SMALL)])],
        ended.append,
        lambda _, error: ended.append(error),
    )
    with pytest.raises(ClosedError):
        scheduler.upload(task)
    assert isinstance(ended[0], ClosedError)
