"""Uploaders and callbacks that users write: what they do wrong ends at their own door."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.changelogs import ALL, ScriptedStore, handle_of, values_of
from tests.support.processes.no_threads import NoThreads

from statelog import changelog as cl
from statelog.changelog.upload.uploader import StateChangeUploader
from statelog.runtime.clock import RandomIds
from statelog.runtime.runtime import CALLBACK_THREADS, Runtime, system_runtime
from statelog.store.paths import LocationPaths

START = cl.SequenceNumber(0)
WAIT_S = 20.0
EVERY_KIND = [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit]

Answer = Callable[[cl.UploadTasksResult], Any]


class Wrapper:
    """A user's uploader: writes as ours does and spoils the answer."""

    def __init__(self, store: ScriptedStore, spoil: Answer) -> None:
        self._files = cl.StateChangeFsUploader(store, paths=LocationPaths("job"), ids=RandomIds())
        self._spoil = spoil
        self.calls = 0

    def upload(self, tasks: Sequence[cl.UploadTask]) -> Any:
        self.calls += 1
        return self._spoil(self._files.upload(tasks))

    def discard(self, result: cl.UploadTasksResult) -> None:
        self._files.discard(result)

    def close(self) -> None:
        pass


def without_tasks(result: cl.UploadTasksResult) -> Any:
    return dataclasses.replace(result, tasks=())


def without_a_set(result: cl.UploadTasksResult) -> Any:
    tasks = [dataclasses.replace(task, results=task.results[1:]) for task in result.tasks]
    return dataclasses.replace(result, tasks=tuple(tasks))


def with_a_set_twice(result: cl.UploadTasksResult) -> Any:
    tasks = [dataclasses.replace(task, results=task.results[:1] * 2) for task in result.tasks]
    return dataclasses.replace(result, tasks=tuple(tasks))


def with_other_numbers(result: cl.UploadTasksResult) -> Any:
    tasks = [
        dataclasses.replace(
            task,
            results=tuple(
                dataclasses.replace(one, sqn=cl.SequenceNumber(one.sqn.value + 7))
                for one in task.results
            ),
        )
        for task in result.tasks
    ]
    return dataclasses.replace(result, tasks=tuple(tasks))


def with_odd_tasks(result: cl.UploadTasksResult) -> Any:
    return dataclasses.replace(result, tasks=(1, 2))


def with_odd_results(result: cl.UploadTasksResult) -> Any:
    tasks = [dataclasses.replace(task, results=(None, None)) for task in result.tasks]
    return dataclasses.replace(result, tasks=tuple(tasks))


def with_none(result: cl.UploadTasksResult) -> Any:
    return None


def completed_then_raised(result: cl.UploadTasksResult) -> Any:
    result.tasks[0].task.complete(result.tasks[0].results)
    raise OSError("after the first task")


def direct(uploader: StateChangeUploader) -> cl.DirectStateChangeUploadScheduler:
    return cl.DirectStateChangeUploadScheduler(uploader)


def batching(
    uploader: StateChangeUploader, threads: int = 5, **settings: Any
) -> cl.BatchingStateChangeUploadScheduler:
    policy = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=None, delay_after_failure_s=0.001)
    runtime = system_runtime(upload_threads=threads)
    return cl.BatchingStateChangeUploadScheduler(
        uploader, runtime=runtime, policy=policy, **settings
    )


SPOILED = [
    (without_tasks, "names 0 tasks of 1"),
    (without_a_set, "2 change sets but the uploader returned 1 results"),
    (with_a_set_twice, r"missing \(writer, number\): \[\(0, 1\)\]"),
    (with_other_numbers, r"not of this task: \[\(0, 7\)"),
    (with_odd_tasks, "names 0 tasks of 1"),
    (with_odd_results, "not an UploadResult"),
    (with_none, "must return an UploadTasksResult"),
]


@pytest.mark.parametrize("scheduler_of", [direct, batching])
@pytest.mark.parametrize(("spoil", "words"), SPOILED)
def test_an_answer_that_does_not_fit_fails_the_persist_at_once(
    scheduler_of: Callable[[Wrapper], Any], spoil: Answer, words: str
) -> None:
    store = ScriptedStore()
    uploader = Wrapper(store, spoil)
    with cl.FsStateChangelogStorage(store, scheduler=scheduler_of(uploader)) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"one")
        writer.next_sequence_number()
        writer.append(1, b"two")
        with pytest.raises(cl.UploadFailedError, match=words):
            writer.persist(START).result(WAIT_S)
        uploader._spoil = lambda result: result
        handle = handle_of(writer.persist(START).result(WAIT_S))
        assert [b"one", b"two"] == values_of(storage.read(handle))


def test_a_task_that_was_answered_is_not_failed_with_the_others() -> None:
    store = ScriptedStore()
    scheduler = batching(Wrapper(store, lambda result: without_second(result)), threads=1)

    def without_second(result: cl.UploadTasksResult) -> Any:
        return dataclasses.replace(result, tasks=result.tasks[:1])

    gate = threading.Event()
    with cl.FsStateChangelogStorage(store, scheduler=scheduler) as storage:
        scheduler._runtime.upload_pool.submit(lambda: gate.wait(WAIT_S), lambda *_: None)
        writers = [storage.create_writer(f"operator {number}", ALL) for number in range(3)]
        futures = []
        for writer in writers:
            writer.append(1, b"value")
            futures.append(writer.persist(START))
        gate.set()  # the first went alone; the others share an upload
        assert [None, None] == [futures[0].exception(WAIT_S), futures[1].exception(WAIT_S)]
        with pytest.raises(cl.UploadFailedError, match="1 tasks of 2"):
            futures[2].result(WAIT_S)


@pytest.mark.parametrize("scheduler_of", [direct, batching])
def test_a_failed_uploader_leaves_no_task_open(scheduler_of: Callable[[Wrapper], Any]) -> None:
    store = ScriptedStore()
    uploader = Wrapper(store, completed_then_raised)
    with cl.FsStateChangelogStorage(store, scheduler=scheduler_of(uploader)) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        assert writer.persist(START).exception(WAIT_S) is None


def small_set(log_id: int) -> cl.StateChangeSet:
    return cl.StateChangeSet(log_id, START, (), 0)


@pytest.mark.parametrize("error", EVERY_KIND, ids=lambda error: error.__name__)
def test_a_callback_that_raises_stops_no_other_callback(error: type[BaseException]) -> None:
    store = ScriptedStore()
    files = cl.StateChangeFsUploader(store, paths=LocationPaths("job"), ids=RandomIds())
    scheduler = batching(files, threads=1)
    ended: list[int] = []
    done = threading.Event()

    def raises(*_: object) -> None:
        raise error

    def ends(number: int) -> Callable[..., None]:
        def end(*_: object) -> None:
            ended.append(number)
            if len(ended) == 10:
                done.set()

        return end

    for number in range(10):  # more than there are threads of any kind
        scheduler.upload(cl.UploadTask([small_set(0)], raises, raises))
        scheduler.upload(cl.UploadTask([small_set(1)], ends(number), raises))
    assert done.wait(WAIT_S), f"only {ended}"
    scheduler._runtime.close(1.0)


@pytest.mark.parametrize("error", EVERY_KIND, ids=lambda error: error.__name__)
def test_a_future_calls_all_callbacks_whatever_one_raises(error: type[BaseException]) -> None:
    store = ScriptedStore()
    with cl.FsStateChangelogStorage(store, runtime=one_thread()) as storage:
        writer = storage.create_writer("operator", ALL)
        for _ in range(2 * CALLBACK_THREADS):
            gate, called = threading.Event(), threading.Event()
            storage._runtime.upload_pool.submit(lambda gate=gate: gate.wait(WAIT_S), ignore)
            writer.append(1, b"value")
            future = writer.persist(START)

            def raises(_: object) -> None:
                raise error

            future.add_done_callback(raises)
            future.add_done_callback(lambda _, called=called: called.set())
            gate.set()
            assert called.wait(WAIT_S)


def ignore(*_: object) -> None:
    pass


def one_thread() -> Runtime:
    """One upload thread: who holds it holds every upload back."""
    return system_runtime(upload_threads=1)


class LateLoser(ScriptedStore):
    """The first put hangs until released."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.puts = 0

    def put(self, path: str, data: object) -> None:
        self.puts += 1
        if self.puts == 1:
            self.release.wait(WAIT_S)
        super().put(path, data)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", EVERY_KIND, ids=lambda error: error.__name__)
def test_whatever_a_discard_raises_ends_no_thread(error: type[BaseException]) -> None:
    store = LateLoser()
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
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        assert writer.persist(START).exception(WAIT_S) is None
        store.release.set()
        assert discarded.wait(WAIT_S)
        writer.append(1, b"another")
        assert writer.persist(START).exception(WAIT_S) is None
        assert 0 == scheduler.in_flight_bytes


def test_callbacks_that_block_hold_up_neither_uploads_nor_time_outs() -> None:
    """As many as there are threads for callbacks and uploads, on successes and on failures."""
    store, gate = ScriptedStore(), threading.Event()
    names: list[str] = []

    def block(_: object) -> None:
        names.append(threading.current_thread().name)
        gate.wait(WAIT_S)

    with cl.FsStateChangelogStorage(store, runtime=one_thread()) as storage:
        for number in range(12):
            writer = storage.create_writer(f"blocking {number}", ALL)
            hold = threading.Event()
            storage._runtime.upload_pool.submit(lambda hold=hold: hold.wait(WAIT_S), ignore)
            writer.append(1, b"value")
            future = writer.persist(START)
            future.add_done_callback(block)
            hold.set()
            assert future.exception(WAIT_S) is None
        other = storage.create_writer("other", ALL)
        other.append(1, b"value")
        assert other.persist(START).exception(WAIT_S) is None
        gate.set()
    assert 12 == len(names), "a close calls what is left"
    assert not [name for name in names if name.startswith(("statelog-upload", "statelog-timers"))]


def test_callbacks_of_a_failure_by_time_out_do_not_run_on_the_timers_thread() -> None:
    store = LateLoser()
    runtime = system_runtime()
    policy = cl.RetryPolicy.fixed(max_attempts=1, timeout_s=0.02, delay_after_failure_s=0.0)
    files = cl.StateChangeFsUploader(store, paths=LocationPaths("job"), ids=RandomIds())
    scheduler = cl.BatchingStateChangeUploadScheduler(files, runtime=runtime, policy=policy)
    names: list[str] = []
    called = threading.Semaphore(0)

    def note(*_: object) -> None:
        names.append(threading.current_thread().name)
        called.release()

    with cl.FsStateChangelogStorage(store, scheduler=scheduler, runtime=runtime) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        future = writer.persist(START)
        future.add_done_callback(note)
        assert isinstance(future.exception(WAIT_S), cl.UploadFailedError)
        assert called.acquire(timeout=WAIT_S)
        store.puts = 0
        scheduler.upload(cl.UploadTask([small_set(7)], note, note))
        assert called.acquire(timeout=WAIT_S)
        store.release.set()
    assert {"statelog-callback"} == {name.rsplit("-", 1)[0] for name in names}


@pytest.mark.parametrize("fixed_delay", [False, True])
def test_a_system_without_threads_fails_a_persist_and_keeps_the_changes(
    fixed_delay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = NoThreads(monkeypatch)
    options = cl.ChangelogOptions(batch_fixed_delay=fixed_delay)
    store = ScriptedStore()
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        called = threading.Event()
        future = writer.persist(START)
        future.add_done_callback(lambda _: called.set())
        assert "refused to start a thread" in str(future.exception(WAIT_S))
        assert isinstance(future.exception(), cl.UploadFailedError)
        assert called.wait(WAIT_S)
        assert 0 == storage.metrics.snapshot()["in_flight_bytes"]
        system.refusing = False
        handle = handle_of(writer.persist(START).result(WAIT_S))
        assert [b"value"] == values_of(storage.read(handle))
