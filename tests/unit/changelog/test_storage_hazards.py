"""One test for each known fault of Flink's changelog that statelog repairs (H1 to H14)."""

import threading

import pytest
from tests.support.changelogs import (
    ALL,
    GatedStore,
    HeldScheduler,
    ScriptedStore,
    appended,
    batching_storage,
    handle_of,
    persisted,
    values_of,
    wait_until,
)

import statelog as sl
from statelog import changelog as cl
from statelog.changelog.registry import FileOwner
from statelog.runtime.clock import RandomIds
from statelog.runtime.runtime import system_runtime
from statelog.store.paths import LocationPaths

FAST = cl.RetryPolicy.fixed(max_attempts=3, timeout_s=None, delay_after_failure_s=0.001)


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


def test_h1_a_put_that_fails_at_its_end_is_a_failure(store):
    store.torn = True
    store.put_errors = [sl.StoreError("lost while closing")] * 3
    with batching_storage(store, FAST) as storage:
        with pytest.raises(cl.UploadFailedError, match="lost while closing"):
            persisted(storage, b"value")
        assert 3 == storage.scheduler._metrics.snapshot()["number_of_upload_failures"]


def test_h2_h7_a_retry_after_an_error_helps_and_partial_files_are_deleted(store):
    store.torn = True
    store.put_errors = [sl.StoreError("once"), OSError("broken off")]
    with batching_storage(store, FAST) as storage:
        assert [b"value"] == values_of(storage.read(persisted(storage, b"value")))
        assert (1, 1) == (len(store.objects), len(storage.registry))


def held_storage() -> tuple[cl.FsStateChangelogStorage, HeldScheduler, ScriptedStore]:
    store, scheduler, runtime = ScriptedStore(), HeldScheduler(), system_runtime()
    registry = cl.TaskChangelogRegistry(store, runtime=runtime)
    storage = cl.FsStateChangelogStorage(
        store, job_id="", scheduler=scheduler, registry=registry, runtime=runtime
    )
    return storage, scheduler, store


def upload_together(storage, scheduler) -> cl.UploadTasksResult:
    uploader = cl.StateChangeFsUploader(
        storage.store, paths=LocationPaths(""), ids=RandomIds(), registry=storage.registry
    )
    tasks, scheduler.tasks = scheduler.tasks, []
    return uploader.upload(tasks)


@pytest.mark.parametrize("close", ["close", "truncate_and_close"])
def test_h3_closing_a_writer_never_harms_a_shared_file(close):
    storage, scheduler, _ = held_storage()
    closed, other = storage.create_writer("closed", ALL), storage.create_writer("other", ALL)
    closed.append(1, b"one")
    other.append(2, b"two")
    futures = [closed.persist(0), other.persist(0)]
    if close == "close":
        closed.close()
    else:
        closed.truncate_and_close(0)
    upload_together(storage, scheduler).complete()
    with pytest.raises(cl.WriterClosedError):
        futures[0].result(0)
    handle = handle_of(futures[1].result(0))
    assert [(2, b"two")] == list(storage.read(handle))
    assert FileOwner.OFFERED == storage.registry.owner(handle.handles_and_offsets[0].handle)
    storage.close()


def test_h3_an_unused_file_is_deleted_with_its_last_writer():
    storage, scheduler, store = held_storage()
    for _ in range(2):
        writer = appended(storage, b"x")
        writer.persist(0)
        writer.close()
    upload_together(storage, scheduler).complete()
    storage.close()
    assert {} == store.objects
    assert 0 == len(storage.registry)


def test_h4_a_callback_that_raises_keeps_no_other_task_from_its_end():
    storage, scheduler, _ = held_storage()
    ended: list[str] = []

    def burst(*_: object) -> None:
        raise RuntimeError("a bad callback")

    sets = [cl.StateChangeSet.of(log, 0, []) for log in range(3)]
    tasks = [
        cl.UploadTask([sets[0]], lambda _: ended.append("first"), burst),
        cl.UploadTask([sets[1]], burst, burst),
        cl.UploadTask([sets[2]], lambda _: ended.append("last"), burst),
    ]
    scheduler.tasks = tasks
    upload_together(storage, scheduler).complete()
    assert ["first", "last"] == ended
    assert all(task.finished for task in tasks)


class BurstError(Exception):
    """Not an OSError."""


@pytest.mark.parametrize(
    "error",
    [BurstError("odd"), MemoryError("full"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()],
)
def test_h5_any_kind_of_error_ends_the_upload(store, error):
    store.put_errors = [error]
    with batching_storage(store, FAST) as storage:
        writer = appended(storage, b"value")
        with pytest.raises(cl.UploadFailedError):
            writer.persist(0).result(60)
        assert 0 == storage.scheduler.in_flight_bytes
        assert [b"value"] == values_of(storage.read(handle_of(writer.persist(0).result(60))))


def test_h5_hung_threads_do_not_keep_a_rival_from_starting():
    store = GatedStore(5)
    hedging = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=0.02, delay_after_failure_s=0)
    with batching_storage(store, hedging, batch_delay_s=0) as storage:
        # As many uploads as there are upload threads.
        futures = [appended(storage, b"value").persist(0) for _ in range(5)]
        for future in futures:
            assert [b"value"] == values_of(storage.read(handle_of(future.result(60))))
        store.gate.set()


def test_h5_a_close_ends_what_hangs():
    store = GatedStore(1)
    storage = batching_storage(store, cl.RetryPolicy.none())
    future = appended(storage, b"value").persist(0)
    ended: list[BaseException | None] = []
    task = cl.UploadTask([], lambda _: None, lambda _, error: ended.append(error))
    storage.scheduler.upload(task)
    storage.close()
    with pytest.raises(cl.WriterClosedError):
        future.result(0)
    assert [sl.ClosedError] == [type(error) for error in ended]
    with pytest.raises(sl.ClosedError):
        storage.scheduler.upload(cl.UploadTask([], lambda _: None, lambda *_: None))
    store.gate.set()


def test_h6_a_late_loser_is_deleted_and_forgotten():
    store = GatedStore(1)
    hedging = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=0.1, delay_after_failure_s=0)
    with batching_storage(store, hedging) as storage:
        handle = persisted(storage, b"value")
        assert 1 == len(store.objects)
        store.gate.set()
        wait_until(lambda: store.requests["delete"] == 1)
        wait_until(lambda: len(store.objects) == 1)
        assert [b"value"] == values_of(storage.read(handle))
        assert 1 == len(storage.registry)


def test_h7_a_failing_clean_up_does_not_hide_the_error(store):
    store.put_errors, store.delete_errors = [OSError("the true reason")], [OSError("and this")]
    with (
        batching_storage(store, cl.RetryPolicy.none()) as storage,
        pytest.raises(cl.UploadFailedError, match="the true reason"),
    ):
        persisted(storage, b"value")


def test_h9_an_aborted_checkpoint_takes_nothing_away():
    storage, scheduler, _ = held_storage()
    writer = appended(storage, b"value")
    future = writer.persist(0, 1)
    upload_together(storage, scheduler).complete()
    handle = handle_of(future.result(0))
    writer.reset(0, 1, 1)
    again = handle_of(writer.persist(0, 2).result(0))
    assert handle.handles_and_offsets == again.handles_and_offsets
    assert [b"value"] == values_of(storage.read(again))
    storage.close()


def test_h10_an_old_failure_poisons_neither_append_nor_persist(store):
    store.put_errors = [OSError("bad hour")]
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=4, upload_retry_policy="none")
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writer = appended(storage, b"1234")  # uploaded at once, and fails
        wait_until(lambda: not store.put_errors)
        writer.append(1, b"5678")
        writer.append(1, b"9")
        handle = handle_of(writer.persist(0).result(60))
        assert [b"1234", b"5678", b"9"] == values_of(storage.read(handle))


def test_h11_sets_uploaded_before_the_checkpoint_count_as_new(store):
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=4)
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writer = appended(storage, b"1234")
        wait_until(lambda: len(store.objects) == 1)
        assert 4 == handle_of(writer.persist(0).result(60)).incremental_size_bytes


def test_h11_truncating_what_an_open_persist_needs_fails_it():
    storage, scheduler, store = held_storage()
    writer = appended(storage, b"x")
    future = writer.persist(0)
    writer.truncate(1)
    with pytest.raises(cl.ChangesTruncatedError):
        future.result(0)
    upload_together(storage, scheduler).complete()
    storage.close()
    assert {} == store.objects, "the late file is released"


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "snappy"])
def test_h12_a_flipped_bit_is_found(store, compress):
    values = [b"value %d" % index for index in range(100)]
    options = cl.ChangelogOptions(compression_enabled=compress)
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        handle = persisted(storage, *values)
        (path,) = store.objects
        whole = store.objects[path]
        for position in range(0, len(whole), 7):
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            store.objects[path] = bytes(damaged)
            try:
                read = values_of(storage.read(handle))
            except (sl.CorruptionError, sl.IncompatibleFormatError):
                continue
            # Bytes beside the changes, such as the mark of whose file it is, may be lost.
            assert values == read


def test_h12_threads_end_with_the_storage():
    before = set(threading.enumerate())
    with batching_storage(ScriptedStore(), FAST) as storage:
        persisted(storage, b"x")
        started = set(threading.enumerate()) - before
        assert started
    wait_until(lambda: not started & set(threading.enumerate()))


def test_h13_h14_a_file_has_the_sets_of_a_task_in_order_and_is_fetched_once():
    storage, scheduler, store = held_storage()
    writer = storage.create_writer("operator", ALL)
    values = [b"%02d" % index for index in range(12)]
    for value in values:
        writer.append(1, value)
        writer.next_sequence_number()
    future = writer.persist(0)
    scheduler.tasks = [
        cl.UploadTask(tuple(reversed(task.change_sets)), task.complete, lambda *_: None)
        for task in scheduler.tasks
    ]
    upload_together(storage, scheduler).complete()
    handle = handle_of(future.result(0))
    offsets = [entry.offset for entry in handle.handles_and_offsets]
    assert sorted(offsets) == offsets
    assert values == values_of(storage.read(handle))
    assert {"put": 1, "get": 1} == dict(store.requests)
    storage.close()
