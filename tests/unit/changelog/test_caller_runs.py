"""Whoever waits for a persist runs the upload himself, where the store is near."""

from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import pytest
from tests.unit.changelog.helpers import ALL, ScriptedStore, handle_of

from statelog import FsStateChangelogStorage, UploadFailedError
from statelog.model import StateChange
from statelog.runtime.driver import system_runtime
from statelog.store import open_store


class NearStore(ScriptedStore):
    """In memory, and says so."""

    @property
    def url(self) -> str:
        return "memory://near"


def storage_without_threads(store: ScriptedStore | str) -> FsStateChangelogStorage:
    """Nobody uploads here but who waits."""
    runtime = system_runtime(upload_threads=0)
    opened = open_store(store, fsync=False) if isinstance(store, str) else store
    return FsStateChangelogStorage(opened, runtime=runtime, job_id="job")


def test_a_wait_without_a_time_out_uploads(tmp_path: Path) -> None:
    with storage_without_threads(str(tmp_path)) as storage:
        writer = storage.create_writer("op", ALL)
        writer.append(3, b"three")
        future = writer.persist(writer.initial_sequence_number())
        assert not future.done()
        handle = handle_of(future.result())
        assert list(storage.read(handle)) == [StateChange(3, b"three")]


def test_a_wait_with_a_time_out_does_not() -> None:
    with storage_without_threads(NearStore()) as storage:
        writer = storage.create_writer("op", ALL)
        writer.append(3, b"three")
        future = writer.persist(writer.initial_sequence_number())
        with pytest.raises(FutureTimeoutError):
            future.result(timeout=0.01)
        assert not future.done()
        assert future.exception() is None


def test_nobody_helps_a_store_far_away() -> None:
    store = ScriptedStore()
    with FsStateChangelogStorage(store, job_id="job") as storage:
        writer = storage.create_writer("op", ALL)
        future = writer.persist(writer.initial_sequence_number())
        assert future._pool is None
    assert store.requests["put"] == 0


def test_ctrl_c_in_such_an_upload_reaches_the_waiter_and_loses_nothing() -> None:
    store = NearStore()
    store.put_errors.append(KeyboardInterrupt())
    with storage_without_threads(store) as storage:
        writer = storage.create_writer("op", ALL)
        writer.append(3, b"three")
        start = writer.initial_sequence_number()
        future = writer.persist(start)
        with pytest.raises(KeyboardInterrupt):
            future.result()
        assert isinstance(future.exception(), UploadFailedError)
        handle = handle_of(writer.persist(start).result())
        assert list(storage.read(handle)) == [StateChange(3, b"three")]


def test_waiting_for_one_uploads_for_all() -> None:
    store = NearStore()
    with storage_without_threads(store) as storage:
        writers = [storage.create_writer("op", ALL) for _ in range(16)]
        futures = []
        for number, writer in enumerate(writers):
            writer.append(number, b"value")
            futures.append(writer.persist(writer.initial_sequence_number()))
        for future in futures:
            future.result()
    assert store.requests["put"] == 2  # what came first, and all that came meanwhile
