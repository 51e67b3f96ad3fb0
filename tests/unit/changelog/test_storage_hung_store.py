"""A store that hangs: memory and threads stay bounded, writers are held back, and all comes back."""

from __future__ import annotations

import datetime as dt
import threading
import time
from pathlib import Path

import pytest
from tests.support.changelogs import ALL, ScriptedStore, handle_of, values_of, wait_until

from statelog import changelog as cl
from statelog.runtime.pool import SPARE_THREADS
from statelog.runtime.runtime import system_runtime
from statelog.store import open_store
from statelog.store.paths import LocationPaths

START = cl.SequenceNumber(0)
HEDGED = cl.RetryPolicy.fixed(max_attempts=3, timeout_s=0.02, delay_after_failure_s=0.0)


class HungStore(ScriptedStore):
    """Every put hangs until released; keeps what it was given to write."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.given: list[tuple[str, list[object]]] = []

    def put(self, path: str, data: object) -> None:
        assert isinstance(data, list)
        self.given.append((path, data))
        if not self.released.wait(60):
            raise AssertionError("never released")
        super().put(path, data)


def storage_on(
    store: HungStore, *, limit: int, threads: int = 2, backpressure_timeout_s: float = 0.05
) -> cl.FsStateChangelogStorage:
    runtime = system_runtime(upload_threads=threads)
    registry = cl.TaskChangelogRegistry(store, runtime=runtime)
    uploader = cl.StateChangeFsUploader(
        store, paths=LocationPaths("job"), ids=runtime.ids, registry=registry
    )
    scheduler = cl.BatchingStateChangeUploadScheduler(
        uploader,
        runtime=runtime,
        policy=HEDGED,
        batch_threshold_bytes=1,
        max_in_flight_bytes=limit,
        backpressure_timeout_s=backpressure_timeout_s,
    )
    return cl.FsStateChangelogStorage(
        store, job_id="job", scheduler=scheduler, registry=registry, runtime=runtime
    )


def in_flight(storage: cl.FsStateChangelogStorage) -> int:
    scheduler = storage.scheduler
    assert isinstance(scheduler, cl.BatchingStateChangeUploadScheduler)
    return scheduler.in_flight_bytes


def upload_threads() -> int:
    return sum(each.name.startswith("statelog-upload") for each in threading.enumerate())


def test_attempts_share_one_encoding_under_different_names() -> None:
    store = HungStore()
    with storage_on(store, limit=1000) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, bytes(600))
        with pytest.raises(cl.UploadFailedError):
            writer.persist(START).result(20)
        contents = [data for _, data in store.given]
        assert 3 == len({path for path, _ in store.given})
        for other in contents[1:]:
            assert [id(piece) for piece in contents[0]] == [id(piece) for piece in other]
        store.released.set()


def test_a_store_that_hangs_takes_a_bounded_number_of_threads_and_bytes() -> None:
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
                    futures.append(writer.persist(START))
                except cl.BackpressureTimeoutError:
                    refused += 1
                assert in_flight(storage) < 10_000 + 3 * 700
                assert upload_threads() - before <= 2 + SPARE_THREADS
            for future in futures:
                assert isinstance(future.exception(20), cl.UploadFailedError)
                failed += 1
        assert refused > 0
        assert failed > 0
        assert len(store.given) <= 2 + SPARE_THREADS
        store.released.set()
        wait_until(lambda: in_flight(storage) == 0, "bytes stay in flight")
        wait_until(lambda: storage.registry._deleting == 0, "deletions run")
        wait_until(lambda: not store.objects, "late files stay")
        wait_until(lambda: upload_threads() - before <= 2, "spare threads stay")
        for writer in writers:
            handle = handle_of(writer.persist(START).result(20))
            assert [bytes(700)] * 3 == values_of(storage.read(handle))


def test_an_upload_that_gets_no_thread_fails_and_is_sent_later() -> None:
    store = HungStore()
    with storage_on(store, limit=10**6, threads=1) as storage:
        futures = []
        for number in range(1 + SPARE_THREADS):
            writer = storage.create_writer(f"operator {number}", ALL)
            writer.append(1, b"value")
            futures.append(writer.persist(START))
        late = storage.create_writer("late", ALL)
        late.append(1, b"late")
        error = late.persist(START).exception(20)
        assert isinstance(error, cl.UploadFailedError)
        assert "no thread was free" in str(error)
        store.released.set()
        assert [b"late"] == values_of(storage.read(handle_of(late.persist(START).result(20))))
        for future in futures:
            future.exception(20)


def test_encoding_does_not_count_for_the_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
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
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        handle = handle_of(writer.persist(START).result(20))
        assert [b"value"] == values_of(storage.read(handle))
    assert [1] == encoded
    assert 2 == len(store.given)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_the_wait_for_a_result_ends_with_the_hedged_attempt(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread of a caller runs a put, which may hang: neither of a persist nor of an object."""
    released, threads = threading.Event(), []
    store = open_store(str(tmp_path) if kind == "disk" else "memory://hedged")
    put = store.put

    def first_hangs(path: str, data: object) -> None:
        threads.append(threading.current_thread())
        if len(threads) == 1:
            assert released.wait(20)
        put(path, data)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "put", first_hangs)
    options = cl.ChangelogOptions(upload_timeout=dt.timedelta(milliseconds=20))
    try:
        for use in ("persist", "object"):
            threads.clear()
            released.clear()
            with cl.FsStateChangelogStorage(store, options=options, job_id="job") as storage:
                if use == "persist":
                    writer = storage.create_writer("operator", ALL)
                    writer.append(1, b"value")
                    handle = handle_of(writer.persist(START).result())
                    assert [b"value"] == values_of(storage.read(handle))
                else:
                    assert "object-2" == storage.objects.put(
                        lambda: f"object-{len(threads) + 1}", b"content"
                    )
                assert not released.is_set()
                assert threading.current_thread() not in threads
                released.set()
    finally:
        released.set()
