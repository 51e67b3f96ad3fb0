"""How schedulers hold tasks back, and what uploaders store."""

import math
import threading

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
from statelog.errors import ObjectNotFoundError
from statelog.format.segment import parse_segment
from statelog.model import ChangeBatch
from statelog.runtime.clock import RandomIds
from statelog.runtime.runtime import system_runtime
from statelog.store.paths import PATHS


def task(size: int, log_id: int = 0, sqn: int = 0) -> tuple[cl.UploadTask, list[object]]:
    batch = ChangeBatch(np.array([1], np.int32), pa.array([bytes(size)], pa.binary()))
    ended: list[object] = []
    change_set = cl.StateChangeSet(log_id, cl.SequenceNumber(sqn), (batch,), size)
    return cl.UploadTask([change_set], ended.append, lambda _, error: ended.append(error)), ended


def gated(
    limit: int, timeout_s: float = 10
) -> tuple[GatedStore, cl.BatchingStateChangeUploadScheduler]:
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
    with pytest.raises(cl.BackpressureTimeoutError, match="no upload capacity for 80 bytes"):
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
    scheduler = cl.DirectStateChangeUploadScheduler(
        cl.StateChangeFsUploader(store, paths=PATHS, ids=RandomIds())
    )
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
