"""Small changes stay in their handles, without a thread; large ones go to the batching scheduler."""

import threading

import pytest
from tests.support.changelogs import ALL, ScriptedStore, handle_of, values_of

from statelog import changelog as cl
from statelog.errors import ClosedError, StoreError, UsageError
from statelog.model import ByteStreamStateHandle, FileStateHandle
from statelog.options import load_options

SMALL, LARGE = b"s" * 10, b"l" * 5_000


def opened(store: ScriptedStore, inline_bytes: int = 1_000) -> cl.FsStateChangelogStorage:
    options = load_options({"changelog.upload.next-attempt-delay": "0 ms"}, environ={})
    return cl.FsStateChangelogStorage.from_options(
        options, store, job_id="", inline_bytes=inline_bytes
    )


def persisted(storage: cl.FsStateChangelogStorage, value: bytes) -> cl.ChangelogStateHandle:
    with storage.create_writer("operator", ALL) as writer:
        writer.append(1, value)
        return handle_of(writer.persist(0, 1).result(timeout=20))


def threads_of_statelog() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("statelog")}


def test_small_changes_start_no_thread_and_send_no_request():
    store, before = ScriptedStore(), threads_of_statelog()
    with opened(store) as storage:
        handle = persisted(storage, SMALL)
        assert {type(entry.handle) for entry in handle.handles_and_offsets} == {
            ByteStreamStateHandle
        }
        assert values_of(storage.read(handle)) == [SMALL]
        assert threads_of_statelog() == before
        assert not store.requests
        assert storage.metrics.value("number_of_upload_requests") == 0


def test_large_changes_are_retried_as_those_of_any_storage():
    store = ScriptedStore()
    store.put_errors = [StoreError("reset", path="")]
    with opened(store) as storage:
        handle = persisted(storage, LARGE)
        assert {type(entry.handle) for entry in handle.handles_and_offsets} == {FileStateHandle}
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
