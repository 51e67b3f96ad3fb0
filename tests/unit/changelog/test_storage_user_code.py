"""What uploaders and callbacks of users do wrong fails their own tasks alone."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.changelogs import (
    ALL,
    GatedStore,
    ScriptedStore,
    appended,
    batching_storage,
    handle_of,
    values_of,
)
from tests.support.processes.no_threads import NoThreads

from statelog import changelog as cl
from statelog.changelog.upload.uploader import StateChangeUploader
from statelog.runtime.clock import RandomIds
from statelog.runtime.runtime import CALLBACK_THREADS, Runtime, system_runtime
from statelog.store.paths import LocationPaths

WAIT_S = 20.0
EVERY_KIND = [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit]

Answer = Callable[[cl.UploadTasksResult], Any]


class Wrapper:
    """A user's uploader: writes as ours does and spoils the answer."""

    def __init__(self, store: ScriptedStore, spoil: Answer) -> None:
        self._files = cl.StateChangeFsUploader(store, paths=LocationPaths("job"), ids=RandomIds())
        self._spoil = spoil

    def upload(self, tasks: Sequence[cl.UploadTask]) -> Any:
        return self._spoil(self._files.upload(tasks))

    def discard(self, result: cl.UploadTasksResult) -> None:
        self._files.discard(result)

    def close(self) -> None:
        pass


def with_results(change: Callable[[Any], Any]) -> Answer:
    """Spoil an answer by a change of the results of each task."""

    def spoil(result: cl.UploadTasksResult) -> cl.UploadTasksResult:
        tasks = (dataclasses.replace(task, results=change(task.results)) for task in result.tasks)
        return dataclasses.replace(result, tasks=tuple(tasks))

    return spoil


def shifted(written: cl.UploadResult) -> cl.UploadResult:
    return dataclasses.replace(written, sqn=cl.SequenceNumber(written.sqn.value + 7))


def with_tasks(tasks: tuple[Any, ...]) -> Answer:
    return lambda result: dataclasses.replace(result, tasks=tasks)


def completed_then_raised(result: cl.UploadTasksResult) -> Any:
    result.tasks[0].task.complete(result.tasks[0].results)
    raise OSError("after the first task")


def direct(uploader: StateChangeUploader) -> cl.DirectStateChangeUploadScheduler:
    return cl.DirectStateChangeUploadScheduler(uploader)


def batching(uploader: StateChangeUploader, threads=5) -> cl.BatchingStateChangeUploadScheduler:
    policy = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=None, delay_after_failure_s=0.001)
    runtime = system_runtime(upload_threads=threads)
    return cl.BatchingStateChangeUploadScheduler(uploader, runtime=runtime, policy=policy)


SPOILED: dict[str, tuple[Answer, str]] = {
    "no task": (with_tasks(()), "lists 0 of 1 tasks"),
    "odd tasks": (with_tasks((1, 2)), "lists 0 of 1 tasks"),
    "no answer": (lambda result: None, "must return an UploadTasksResult"),
    "a set is missing": (
        with_results(lambda results: results[1:]),
        "2 change sets but the uploader returned 1 results",
    ),
    "a set is there twice": (
        with_results(lambda results: results[:1] * 2),
        r"missing \(writer, number\): \[\(0, 1\)\]",
    ),
    "other numbers": (
        with_results(lambda results: tuple(map(shifted, results))),
        r"from other tasks: \[\(0, 7\)",
    ),
    "odd results": (with_results(lambda results: (None, None)), "not an UploadResult"),
}


@pytest.mark.parametrize("scheduler_of", [direct, batching])
@pytest.mark.parametrize("name", SPOILED)
def test_an_answer_that_does_not_fit_fails_the_persist_at_once(scheduler_of, name):
    spoil, words = SPOILED[name]
    store = ScriptedStore()
    uploader = Wrapper(store, spoil)
    with cl.FsStateChangelogStorage(store, scheduler=scheduler_of(uploader)) as storage:
        writer = appended(storage, b"one")
        writer.next_sequence_number()
        writer.append(1, b"two")
        with pytest.raises(cl.UploadFailedError, match=words):
            writer.persist(0).result(WAIT_S)
        uploader._spoil = lambda result: result
        handle = handle_of(writer.persist(0).result(WAIT_S))
        assert [b"one", b"two"] == values_of(storage.read(handle))


def test_a_task_that_was_answered_is_not_failed_with_the_others():
    def without_second(result: cl.UploadTasksResult) -> Any:
        return dataclasses.replace(result, tasks=result.tasks[:1])

    store = ScriptedStore()
    scheduler = batching(Wrapper(store, without_second), threads=1)
    gate = threading.Event()
    with cl.FsStateChangelogStorage(store, scheduler=scheduler) as storage:
        scheduler._runtime.upload_pool.submit(lambda: gate.wait(WAIT_S), ignore)
        futures = [appended(storage, b"value").persist(0) for _ in range(3)]
        gate.set()  # the first went alone; the others share an upload
        assert [None, None] == [futures[0].exception(WAIT_S), futures[1].exception(WAIT_S)]
        with pytest.raises(cl.UploadFailedError, match="lists 1 of 2 tasks"):
            futures[2].result(WAIT_S)


@pytest.mark.parametrize("scheduler_of", [direct, batching])
def test_a_failed_uploader_leaves_no_task_open(scheduler_of):
    store = ScriptedStore()
    uploader = Wrapper(store, completed_then_raised)
    with cl.FsStateChangelogStorage(store, scheduler=scheduler_of(uploader)) as storage:
        assert appended(storage, b"value").persist(0).exception(WAIT_S) is None


@pytest.mark.parametrize("error", EVERY_KIND, ids=lambda error: error.__name__)
def test_a_callback_that_raises_stops_no_other_callback(error):
    store = ScriptedStore()
    files = cl.StateChangeFsUploader(store, paths=LocationPaths("job"), ids=RandomIds())
    scheduler = batching(files, threads=1)
    ended = threading.Semaphore(0)

    def raises(*_: object) -> None:
        raise error

    for _ in range(10):  # more than there are threads of any kind
        scheduler.upload(cl.UploadTask([cl.StateChangeSet.of(0, 0, [])], raises, raises))
        other = cl.StateChangeSet.of(1, 0, [])
        scheduler.upload(cl.UploadTask([other], lambda _: ended.release(), raises))
    for number in range(10):
        assert ended.acquire(timeout=WAIT_S), f"only {number} callbacks"
    scheduler._runtime.close(1.0)


@pytest.mark.parametrize("error", EVERY_KIND, ids=lambda error: error.__name__)
def test_a_future_calls_all_callbacks_whatever_one_raises(error):
    def raises(_: object) -> None:
        raise error

    with cl.FsStateChangelogStorage(ScriptedStore(), runtime=one_thread()) as storage:
        writer = storage.create_writer("operator", ALL)
        for _ in range(2 * CALLBACK_THREADS):
            gate, called = threading.Event(), threading.Event()
            storage._runtime.upload_pool.submit(lambda gate=gate: gate.wait(WAIT_S), ignore)
            writer.append(1, b"value")
            future = writer.persist(0)
            future.add_done_callback(raises)
            future.add_done_callback(lambda _, called=called: called.set())
            gate.set()
            assert called.wait(WAIT_S)


def ignore(*_: object) -> None:
    pass


def one_thread() -> Runtime:
    """Return a runtime with one upload thread: work that blocks it holds every upload back."""
    return system_runtime(upload_threads=1)


@pytest.mark.parametrize("error", EVERY_KIND, ids=lambda error: error.__name__)
def test_whatever_a_discard_raises_ends_no_thread(error):
    store = GatedStore()
    discarded = threading.Event()

    class BadDiscard(Wrapper):
        def discard(self, result: cl.UploadTasksResult) -> None:
            discarded.set()
            raise error

    policy = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=0.02, delay_after_failure_s=0.0)
    runtime = system_runtime(upload_threads=1)
    scheduler = cl.BatchingStateChangeUploadScheduler(
        BadDiscard(store, lambda result: result), runtime=runtime, policy=policy
    )
    with cl.FsStateChangelogStorage(store, scheduler=scheduler, runtime=runtime) as storage:
        writer = appended(storage, b"value")
        assert writer.persist(0).exception(WAIT_S) is None
        store.gate.set()
        assert discarded.wait(WAIT_S)
        writer.append(1, b"another")
        assert writer.persist(0).exception(WAIT_S) is None
        assert 0 == scheduler.in_flight_bytes


def test_callbacks_that_block_hold_up_neither_uploads_nor_time_outs():
    """As many as there are threads for callbacks and uploads, on successes and on failures."""
    gate = threading.Event()
    names: list[str] = []

    def block(_: object) -> None:
        names.append(threading.current_thread().name)
        gate.wait(WAIT_S)

    with cl.FsStateChangelogStorage(ScriptedStore(), runtime=one_thread()) as storage:
        for _ in range(12):
            hold = threading.Event()
            storage._runtime.upload_pool.submit(lambda hold=hold: hold.wait(WAIT_S), ignore)
            future = appended(storage, b"value").persist(0)
            future.add_done_callback(block)
            hold.set()
            assert future.exception(WAIT_S) is None
        assert appended(storage, b"value").persist(0).exception(WAIT_S) is None
        gate.set()
    assert 12 == len(names), "a close calls what is left"
    assert not [name for name in names if name.startswith(("statelog-upload", "statelog-timers"))]


def test_callbacks_of_a_failure_by_time_out_do_not_run_on_the_timers_thread():
    store = GatedStore(2)
    policy = cl.RetryPolicy.fixed(max_attempts=1, timeout_s=0.02, delay_after_failure_s=0.0)
    names: list[str] = []
    called = threading.Semaphore(0)

    def note(*_: object) -> None:
        names.append(threading.current_thread().name)
        called.release()

    with batching_storage(store, policy) as storage:
        future = appended(storage, b"value").persist(0)
        future.add_done_callback(note)
        assert isinstance(future.exception(WAIT_S), cl.UploadFailedError)
        assert called.acquire(timeout=WAIT_S)
        storage.scheduler.upload(cl.UploadTask([cl.StateChangeSet.of(7, 0, [])], note, note))
        assert called.acquire(timeout=WAIT_S)
        store.gate.set()
    assert {"statelog-callback"} == {name.rsplit("-", 1)[0] for name in names}


@pytest.mark.parametrize("fixed_delay", [False, True])
def test_a_system_without_threads_fails_a_persist_and_keeps_the_changes(fixed_delay, monkeypatch):
    system = NoThreads(monkeypatch)
    options = cl.ChangelogOptions(batch_fixed_delay=fixed_delay)
    with cl.FsStateChangelogStorage(ScriptedStore(), options=options) as storage:
        writer = appended(storage, b"value")
        called = threading.Event()
        future = writer.persist(0)
        future.add_done_callback(lambda _: called.set())
        assert "refused to start a thread" in str(future.exception(WAIT_S))
        assert isinstance(future.exception(), cl.UploadFailedError)
        assert called.wait(WAIT_S)
        assert 0 == storage.metrics.snapshot()["in_flight_bytes"]
        system.refusing = False
        handle = handle_of(writer.persist(0).result(WAIT_S))
        assert [b"value"] == values_of(storage.read(handle))
