"""One test for each known fault of Flink's changelog that statelog repairs (H1 to H14)."""

import threading

import pytest
from tests.support.changelogs import (
    ALL,
    GatedStore,
    HeldScheduler,
    ScriptedStore,
    handle_of,
    values_of,
    wait_until,
)

import statelog as sl
from statelog import changelog as cl
from statelog.changelog.registry import FileOwner
from statelog.model import ChangeBatch
from statelog.runtime.clock import RandomIds
from statelog.runtime.runtime import system_runtime
from statelog.store.paths import LocationPaths

FAST = cl.RetryPolicy.fixed(max_attempts=3, timeout_s=None, delay_after_failure_s=0.001)


def sqn(value: int) -> cl.SequenceNumber:
    return cl.SequenceNumber(value)


def batching(
    store: ScriptedStore, policy: cl.RetryPolicy = FAST, **settings: object
) -> cl.FsStateChangelogStorage:
    """A storage with its own retry policy, whose uploader tracks files in the storage's registry."""
    runtime = system_runtime()
    registry = cl.TaskChangelogRegistry(store, runtime=runtime)
    uploader = cl.StateChangeFsUploader(
        store, paths=LocationPaths("job"), ids=runtime.ids, registry=registry
    )
    scheduler = cl.BatchingStateChangeUploadScheduler(
        uploader,
        runtime=runtime,
        policy=policy,
        **settings,  # type: ignore[arg-type]
    )
    return cl.FsStateChangelogStorage(
        store, job_id="job", scheduler=scheduler, registry=registry, runtime=runtime
    )


def test_h1_a_put_that_fails_at_its_end_is_a_failure() -> None:
    store = ScriptedStore()
    store.torn = True
    store.put_errors = [sl.StoreError("lost while closing")] * 3
    with batching(store) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        with pytest.raises(cl.UploadFailedError, match="lost while closing"):
            writer.persist(sqn(0)).result(60)
        assert 3 == storage.scheduler._metrics.snapshot()["number_of_upload_failures"]  # type: ignore[attr-defined]


def test_h2_a_retry_after_an_error_helps() -> None:
    store = ScriptedStore()
    store.put_errors = [sl.StoreError("once"), OSError("twice")]
    with batching(store) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        handle = handle_of(writer.persist(sqn(0)).result(60))
        assert [b"value"] == values_of(storage.read(handle))
        assert (1, 1) == (len(store.objects), len(storage.registry))


def held_storage() -> tuple[cl.FsStateChangelogStorage, HeldScheduler, ScriptedStore]:
    store, scheduler, runtime = ScriptedStore(), HeldScheduler(), system_runtime()
    registry = cl.TaskChangelogRegistry(store, runtime=runtime)
    storage = cl.FsStateChangelogStorage(
        store,
        job_id="",
        scheduler=scheduler,  # type: ignore[arg-type]
        registry=registry,
        runtime=runtime,
    )
    return storage, scheduler, store


def upload_together(
    storage: cl.FsStateChangelogStorage, scheduler: HeldScheduler
) -> cl.UploadTasksResult:
    uploader = cl.StateChangeFsUploader(
        storage.store, paths=LocationPaths(""), ids=RandomIds(), registry=storage.registry
    )
    tasks, scheduler.tasks = scheduler.tasks, []
    return uploader.upload(tasks)


@pytest.mark.parametrize("close", ["close", "truncate_and_close"])
def test_h3_closing_a_writer_never_harms_a_shared_file(close: str) -> None:
    storage, scheduler, _ = held_storage()
    one, two = storage.create_writer("one", ALL), storage.create_writer("two", ALL)
    one.append(1, b"one")
    two.append(2, b"two")
    futures = [one.persist(sqn(0)), two.persist(sqn(0))]
    if close == "close":
        one.close()
    else:
        one.truncate_and_close(sqn(0))
    upload_together(storage, scheduler).complete()
    with pytest.raises(cl.WriterClosedError):
        futures[0].result(0)
    handle = handle_of(futures[1].result(0))
    assert [(2, b"two")] == list(storage.read(handle))
    assert FileOwner.OFFERED == storage.registry.owner(handle.handles_and_offsets[0].handle)
    storage.close()


def test_h3_the_last_closed_writer_takes_an_unused_file_with_it() -> None:
    storage, scheduler, store = held_storage()
    writers = [storage.create_writer(name, ALL) for name in ("one", "two")]
    for writer in writers:
        writer.append(1, b"x")
        writer.persist(sqn(0))
        writer.close()
    upload_together(storage, scheduler).complete()
    storage.close()
    assert {} == store.objects
    assert 0 == len(storage.registry)


def test_h4_a_callback_that_raises_keeps_no_other_task_from_its_end() -> None:
    storage, scheduler, _ = held_storage()
    ended: list[str] = []

    def burst(*_: object) -> None:
        raise RuntimeError("a bad callback")

    batches: tuple[ChangeBatch, ...] = ()
    sets = [cl.StateChangeSet(log, sqn(0), batches, 0) for log in range(3)]
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
def test_h5_any_kind_of_error_ends_the_upload(error: BaseException) -> None:
    store = ScriptedStore()
    store.put_errors = [error]
    with batching(store) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        with pytest.raises(cl.UploadFailedError):
            writer.persist(sqn(0)).result(60)
        assert 0 == storage.scheduler.in_flight_bytes  # type: ignore[attr-defined]
        again = handle_of(writer.persist(sqn(0)).result(60))
        assert [b"value"] == values_of(storage.read(again))


def test_h5_hung_threads_do_not_keep_a_rival_from_starting() -> None:
    store = GatedStore(5)
    hedging = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=0.02, delay_after_failure_s=0)
    with batching(store, hedging, batch_delay_s=0) as storage:
        futures = []
        for index in range(5):  # as many as there are upload threads
            writer = storage.create_writer(f"operator {index}", ALL)
            writer.append(1, b"value")
            futures.append(writer.persist(sqn(0)))
        for future in futures:
            assert [b"value"] == values_of(storage.read(handle_of(future.result(60))))
        store.gate.set()


def test_h5_a_close_ends_what_hangs() -> None:
    store = GatedStore(1)
    storage = batching(store, cl.RetryPolicy.none())
    writer = storage.create_writer("operator", ALL)
    writer.append(1, b"value")
    future = writer.persist(sqn(0))
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


def test_h6_a_late_loser_is_deleted_and_forgotten() -> None:
    store = GatedStore(1)
    hedging = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=0.1, delay_after_failure_s=0)
    with batching(store, hedging) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        handle = handle_of(writer.persist(sqn(0)).result(60))
        assert 1 == len(store.objects)
        store.gate.set()
        wait_until(lambda: store.requests["delete"] == 1)
        wait_until(lambda: len(store.objects) == 1)
        assert [b"value"] == values_of(storage.read(handle))
        assert 1 == len(storage.registry)


def test_h7_a_partial_file_is_removed() -> None:
    store = ScriptedStore()
    store.torn = True
    store.put_errors = [OSError("broken off")]
    with batching(store) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        writer.persist(sqn(0)).result(60)
        assert 1 == len(store.objects)


def test_h7_a_failing_clean_up_does_not_hide_the_error() -> None:
    store = ScriptedStore()
    store.put_errors, store.delete_errors = [OSError("the true reason")], [OSError("and this")]
    with batching(store, cl.RetryPolicy.none()) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        with pytest.raises(cl.UploadFailedError, match="the true reason"):
            writer.persist(sqn(0)).result(60)


def test_h9_an_aborted_checkpoint_takes_nothing_away() -> None:
    storage, scheduler, _ = held_storage()
    writer = storage.create_writer("operator", ALL)
    writer.append(1, b"value")
    future = writer.persist(sqn(0), 1)
    upload_together(storage, scheduler).complete()
    handle = handle_of(future.result(0))
    writer.reset(sqn(0), sqn(1), 1)
    again = handle_of(writer.persist(sqn(0), 2).result(0))
    assert handle.handles_and_offsets == again.handles_and_offsets
    assert [b"value"] == values_of(storage.read(again))
    storage.close()


def test_h10_an_old_failure_poisons_neither_append_nor_persist() -> None:
    store = ScriptedStore()
    store.put_errors = [OSError("bad hour")]
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=4, upload_retry_policy="none")
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"1234")  # uploaded at once, and fails
        wait_until(lambda: not store.put_errors)
        writer.append(1, b"5678")
        writer.append(1, b"9")
        handle = handle_of(writer.persist(sqn(0)).result(60))
        assert [b"1234", b"5678", b"9"] == values_of(storage.read(handle))


def test_h11_sets_uploaded_before_the_checkpoint_count_as_new() -> None:
    store = ScriptedStore()
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=4)
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"1234")
        wait_until(lambda: len(store.objects) == 1)
        assert 4 == handle_of(writer.persist(sqn(0)).result(60)).incremental_size_bytes


def test_h11_truncating_what_an_open_persist_needs_fails_it() -> None:
    storage, scheduler, store = held_storage()
    writer = storage.create_writer("operator", ALL)
    writer.append(1, b"x")
    future = writer.persist(sqn(0))
    writer.truncate(sqn(1))
    with pytest.raises(cl.ChangesTruncatedError):
        future.result(0)
    upload_together(storage, scheduler).complete()
    storage.close()
    assert {} == store.objects, "the late file is released"


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "snappy"])
def test_h12_a_flipped_bit_is_found(compress: bool) -> None:
    store = ScriptedStore()
    options = cl.ChangelogOptions(compression_enabled=compress)
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        for index in range(100):
            writer.append(1, b"value %d" % index)
        handle = handle_of(writer.persist(sqn(0)).result(60))
        (path,) = store.objects
        whole = store.objects[path]
        for position in range(0, len(whole), 7):
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            store.objects[path] = bytes(damaged)
            try:
                values = values_of(storage.read(handle))
            except (sl.CorruptionError, sl.IncompatibleFormatError):
                continue
            # Bytes beside the changes, such as the mark of whose file it is, may be lost.
            assert [b"value %d" % index for index in range(100)] == values


def test_h12_threads_end_with_the_storage() -> None:
    before = set(threading.enumerate())
    with batching(ScriptedStore()) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"x")
        writer.persist(sqn(0)).result(60)
        own = set(threading.enumerate()) - before
        assert own
    wait_until(lambda: not own & set(threading.enumerate()))


def test_h13_a_file_holds_the_sets_of_a_task_in_order() -> None:
    storage, scheduler, _ = held_storage()
    writer = storage.create_writer("operator", ALL)
    for index in range(12):
        writer.append(1, b"%02d" % index)
        writer.next_sequence_number()
    future = writer.persist(sqn(0))
    scheduler.tasks = [
        cl.UploadTask(tuple(reversed(task.change_sets)), task.complete, lambda *_: None)
        for task in scheduler.tasks
    ]
    upload_together(storage, scheduler).complete()
    handle = handle_of(future.result(0))
    offsets = [entry.offset for entry in handle.handles_and_offsets]
    assert sorted(offsets) == offsets
    assert [b"%02d" % index for index in range(12)] == values_of(storage.read(handle))
    storage.close()


def test_h14_a_file_with_many_sets_is_fetched_once() -> None:
    storage, scheduler, store = held_storage()
    writer = storage.create_writer("operator", ALL)
    for _ in range(20):
        writer.append(1, b"x")
        writer.next_sequence_number()
    future = writer.persist(sqn(0))
    upload_together(storage, scheduler).complete()
    assert 20 == len(values_of(storage.read(handle_of(future.result(0)))))
    assert {"put": 1, "get": 1} == dict(store.requests)
    storage.close()
