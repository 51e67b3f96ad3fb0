"""A store that hangs: memory and threads stay bounded, writers are held back, and all comes back."""

from __future__ import annotations

import datetime as dt
import threading
import time

import pytest
from tests.support.changelogs import (
    ALL,
    ScriptedStore,
    appended,
    batching_storage,
    handle_of,
    persisted,
    values_of,
    wait_until,
)

from statelog import changelog as cl
from statelog.runtime.pool import SPARE_THREADS
from statelog.store import open_store

HEDGED = cl.RetryPolicy.fixed(max_attempts=3, timeout_s=0.02, delay_after_failure_s=0.0)


class HungStore(ScriptedStore):
    """Every put hangs until released; keeps the contents."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.contents: list[tuple[str, list[object]]] = []

    def put(self, path: str, data: object) -> None:
        assert isinstance(data, list)
        self.contents.append((path, data))
        if not self.released.wait(60):
            raise AssertionError("never released")
        super().put(path, data)


def storage_on(store: HungStore, *, limit: int, threads: int = 2) -> cl.FsStateChangelogStorage:
    return batching_storage(
        store,
        HEDGED,
        threads=threads,
        batch_threshold_bytes=1,
        max_in_flight_bytes=limit,
        backpressure_timeout_s=0.05,
    )


def in_flight(storage: cl.FsStateChangelogStorage) -> int:
    scheduler = storage.scheduler
    assert isinstance(scheduler, cl.BatchingStateChangeUploadScheduler)
    return scheduler.in_flight_bytes


def upload_threads() -> int:
    return sum(thread.name.startswith("statelog-upload") for thread in threading.enumerate())


def test_attempts_share_one_encoding_under_different_names():
    store = HungStore()
    with storage_on(store, limit=1000) as storage:
        with pytest.raises(cl.UploadFailedError):
            persisted(storage, bytes(600))
        paths, contents = zip(*store.contents, strict=True)
        assert 3 == len(set(paths))
        for content in contents[1:]:
            assert [id(piece) for piece in contents[0]] == [id(piece) for piece in content]
        store.released.set()


def test_a_store_that_hangs_takes_a_bounded_number_of_threads_and_bytes():
    """Many persists against a hung store; then it works again, and nothing is left."""
    store, before = HungStore(), upload_threads()
    with storage_on(store, limit=10_000) as storage:
        writers = [storage.create_writer(f"operator {number}", ALL) for number in range(10)]
        refused = failed = 0
        for _ in range(3):
            futures = []
            for writer in writers:
                writer.append(1, bytes(700))
                try:
                    futures.append(writer.persist(0))
                except cl.BackpressureTimeoutError:
                    refused += 1
                assert in_flight(storage) < 10_000 + 3 * 700
                assert upload_threads() - before <= 2 + SPARE_THREADS
            for future in futures:
                assert isinstance(future.exception(20), cl.UploadFailedError)
                failed += 1
        assert refused > 0
        assert failed > 0
        assert len(store.contents) <= 2 + SPARE_THREADS
        store.released.set()
        wait_until(lambda: in_flight(storage) == 0, "bytes stay in flight")
        wait_until(lambda: storage.registry._deleting == 0, "deletions run")
        wait_until(lambda: not store.objects, "late files stay")
        wait_until(lambda: upload_threads() - before <= 2, "spare threads stay")
        for writer in writers:
            handle = handle_of(writer.persist(0).result(20))
            assert [bytes(700)] * 3 == values_of(storage.read(handle))


def test_an_upload_that_gets_no_thread_fails_and_is_sent_later():
    store = HungStore()
    with storage_on(store, limit=10**6, threads=1) as storage:
        futures = [appended(storage, b"value").persist(0) for _ in range(1 + SPARE_THREADS)]
        late = appended(storage, b"late")
        error = late.persist(0).exception(20)
        assert isinstance(error, cl.UploadFailedError)
        assert "no thread was free" in str(error)
        store.released.set()
        assert [b"late"] == values_of(storage.read(handle_of(late.persist(0).result(20))))
        for future in futures:
            future.exception(20)


def test_encoding_does_not_count_for_the_time_out(monkeypatch):
    """It takes longer than all attempts together may, and happens once."""
    encoded: list[int] = []
    in_order = cl.UploadTask.in_order

    def slowly(task: cl.UploadTask) -> object:
        encoded.append(1)
        time.sleep(0.2)
        return in_order(task)

    monkeypatch.setattr(cl.UploadTask, "in_order", slowly)
    store = HungStore()
    store.released.set()
    store.put_errors = [OSError("once")]
    with storage_on(store, limit=1000) as storage:
        assert [b"value"] == values_of(storage.read(persisted(storage, b"value")))
    assert [1] == encoded
    assert 2 == len(store.contents)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_the_wait_for_a_result_ends_with_the_hedged_attempt(tmp_path, kind, monkeypatch):
    """No thread of a caller runs a put, which may hang: neither of a persist nor of an object."""
    released, threads = threading.Event(), []
    store = open_store(str(tmp_path) if kind == "disk" else "memory://hedged")
    put = store.put

    def first_hangs(path: str, data: object) -> None:
        threads.append(threading.current_thread())
        if len(threads) == 1:
            assert released.wait(20)
        put(path, data)

    def put_object(storage: cl.FsStateChangelogStorage) -> None:
        name = storage.objects.put(lambda: f"object-{len(threads) + 1}", b"content")
        assert "object-2" == name

    def persist(storage: cl.FsStateChangelogStorage) -> None:
        assert [b"value"] == values_of(storage.read(persisted(storage, b"value")))

    monkeypatch.setattr(store, "put", first_hangs)
    options = cl.ChangelogOptions(upload_timeout=dt.timedelta(milliseconds=20))
    try:
        for use in (persist, put_object):
            threads.clear()
            released.clear()
            with cl.FsStateChangelogStorage(store, options=options, job_id="job") as storage:
                use(storage)
                assert not released.is_set()
                assert threading.current_thread() not in threads
                released.set()
    finally:
        released.set()
