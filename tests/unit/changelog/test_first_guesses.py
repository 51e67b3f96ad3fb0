"""
What a user of Flink types first: the examples of Flink's pages on the changelog, as Python.

Each was written before its author read the docs of statelog.  It runs, or its error says what to write.
"""

import json
import re
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from statelog import changelog as cl

Place = Path


# --- what comes before an example on its page


def a_set(log: int = 1) -> cl.StateChangeSet:
    return cl.StateChangeSet(log, cl.SequenceNumber.of(1), [cl.StateChange(0, b"data")])


def uploaded(place: Place, on_success: Callable[..., Any]) -> None:
    uploader = cl.StateChangeFsUploader(place)
    with cl.StateChangeUploadScheduler.direct_scheduler(uploader) as scheduler:
        scheduler.upload(cl.UploadTask([a_set()], on_success, print))


def a_handle(place: Place) -> cl.StreamStateHandle:
    results: list[cl.UploadResult] = []
    uploaded(place, results.extend)
    return results[0].entry.handle


def batching(place: Place) -> Any:
    return cl.BatchingStateChangeUploadScheduler(cl.StateChangeFsUploader(place))


def persisted(place: Place) -> Any:
    with cl.FsStateChangelogStorage(place) as storage:
        writer = storage.create_writer("op", cl.KeyGroupRange(0, 127))
        writer.append(5, b"value")
        future = writer.persist(writer.initial_sequence_number(), 1)
        future.result(60)
    return future


# --- upload scheduling


def imports(place: Place) -> None:
    exec(
        "from statelog.changelog import SequenceNumber, StateChange, StateChangeFsUploader, "
        "StateChangeSet, StateChangeUploadScheduler, UploadTask"
    )


def direct_scheduler(place: Place) -> None:
    cl.StateChangeUploadScheduler.direct_scheduler(cl.StateChangeFsUploader(place)).close()


def set_of_a_log_with_a_uuid(place: Place) -> None:
    change = cl.StateChange.of_data_change(0, b"data")
    cl.StateChangeSet(uuid.uuid4(), cl.SequenceNumber.of(1), [change])  # type: ignore[arg-type]


def set_of_a_log(place: Place) -> None:
    cl.StateChangeSet(1, cl.SequenceNumber.of(1), [cl.StateChange(0, b"data")])


def task_with_named_callbacks(place: Place) -> None:
    make: Any = cl.UploadTask
    make([a_set()], success_callback=print, failure_callback=print)


def task_upload_close(place: Place) -> None:
    scheduler = cl.StateChangeUploadScheduler.direct_scheduler(cl.StateChangeFsUploader(place))
    results: list[cl.UploadResult] = []
    scheduler.upload(cl.UploadTask([a_set()], results.extend, print))
    scheduler.close()
    assert len(results) == 1


def size_of_a_task(place: Place) -> None:
    task: Any = cl.UploadTask([a_set(1), a_set(2)], print, print)
    assert task.get_size() == 8


def success_callback(place: Place) -> None:
    results: list[Any] = []
    uploaded(place, results.extend)
    for result in results:
        print(result.stream_state_handle, result.offset, result.size)


def failure_callback(place: Place) -> None:
    failed = []
    task = cl.UploadTask([a_set()], print, lambda numbers, error: failed.append((numbers, error)))
    task.fail(OSError("no space"))
    assert failed


def configuration(place: Place) -> None:
    config = cl.Configuration()  # type: ignore[attr-defined]
    config.set(cl.FsStateChangelogOptions.NUM_UPLOAD_THREADS, 10)  # type: ignore[attr-defined]


def options(place: Place) -> None:
    make: Any = cl.ChangelogOptions
    make(num_upload_threads=10, in_flight_data_limit="200mb", retry_max_attempts=5)


def from_config_by_position(place: Place) -> None:
    make: Any = cl.StateChangeUploadScheduler.from_config
    make(uuid.uuid4(), cl.ChangelogOptions(), None, None, None)


def from_config_by_name(place: Place) -> None:
    make: Any = cl.StateChangeUploadScheduler.from_config
    make(job_id="job", config=cl.ChangelogOptions(), metric_group=None, changelog_registry=None)


def from_config_and_upload(place: Place) -> None:
    scheduler = cl.StateChangeUploadScheduler.from_config(cl.ChangelogOptions(), place)
    for log in range(3):
        scheduler.upload(cl.UploadTask([a_set(log)], lambda results: None, print))
    scheduler.close()


def custom_uploader(place: Place) -> None:
    class FullUploader(cl.StateChangeUploader):
        def upload(self, tasks: Any) -> Any:
            raise OSError("no space")

        def close(self) -> None:
            pass

    cl.StateChangeUploadScheduler.direct_scheduler(FullUploader()).close()


def result_of_a_custom_uploader(place: Place) -> None:
    make: Any = cl.UploadResult.of
    make(a_handle(place), None, a_set(), 0, 0)


def result_of_a_batch(place: Place) -> None:
    change_set = a_set()
    task = cl.UploadTask([change_set], lambda results: None, print)
    cl.UploadTasksResult({task: {change_set: (0, 0)}}, a_handle(place)).complete()


def batching_by_name(place: Place) -> None:
    make: Any = cl.BatchingStateChangeUploadScheduler
    uploader = cl.StateChangeFsUploader(place)
    make(uploader, max_batch_size=10, batch_timeout=timedelta(milliseconds=100))


def batching_by_position(place: Place) -> None:
    make: Any = cl.BatchingStateChangeUploadScheduler
    delay = timedelta(milliseconds=100)
    make(cl.StateChangeFsUploader(place), 10, delay, ThreadPoolExecutor(2))


def availability_by_getter(place: Place) -> None:
    with batching(place) as scheduler:
        assert scheduler.get_availability_provider().is_available()


def availability_by_attribute(place: Place) -> None:
    with batching(place) as scheduler:
        assert scheduler.availability.is_available


def availability_future(place: Place) -> None:
    with batching(place) as scheduler:
        scheduler.availability.future.then_run(print)


def retry_policy(place: Place) -> None:
    cl.RetryPolicy.fixed(5, timedelta(seconds=30), timedelta(seconds=2))


def custom_scheduler(place: Place) -> None:
    class FullScheduler(cl.StateChangeUploadScheduler):
        def upload(self, task: cl.UploadTask) -> None:
            task.fail(OSError("full"))

        def close(self) -> None:
            pass

    with FullScheduler() as scheduler:
        assert isinstance(scheduler, cl.StateChangeUploadScheduler)
        assert scheduler.availability.is_available


def rejected_upload(place: Place) -> None:
    scheduler = cl.StateChangeUploadScheduler.direct_scheduler(cl.StateChangeFsUploader(place))
    scheduler.close()
    try:
        scheduler.upload(cl.UploadTask([a_set()], print, lambda *_: None))
    except (OSError, cl.ClosedError):
        pass


# --- writers


def writer_by_position(place: Place) -> None:
    make: Any = cl.FsStateChangelogWriter
    make(uuid.uuid4(), cl.KeyGroupRange.of(0, 127), None, 1024, None, None, None, None)


def writer_by_name(place: Place) -> None:
    make: Any = cl.FsStateChangelogWriter
    make(log_id=uuid.uuid4(), key_group_range=cl.KeyGroupRange(0, 127), uploader=None)


def create_append_number(place: Place) -> None:
    storage = cl.FsStateChangelogStorage(place)
    writer = storage.create_writer("my-operator", cl.KeyGroupRange.of(0, 127), None)
    writer.append(5, b"value")
    writer.append_meta(b"meta")
    assert writer.next_sequence_number() == cl.SequenceNumber.of(1)
    writer.close()
    storage.close()


def persist_and_wait(place: Place) -> None:
    with (
        cl.FsStateChangelogStorage(place) as storage,
        storage.create_writer("op", cl.KeyGroupRange(0, 127)) as writer,
    ):
        writer.append(5, b"value")
        result = writer.persist(writer.initial_sequence_number(), 1).result()
        assert result.job_manager_owned is not None


def then_accept(place: Place) -> None:
    persisted(place).then_accept(print)


def getter_of_a_result(place: Place) -> None:
    persisted(place).result().get_job_manager_owned_snapshot()


def handles_of_a_result(place: Place) -> None:
    print(persisted(place).result().job_manager_owned.stream_state_handles)


def when_complete(place: Place) -> None:
    persisted(place).when_complete(lambda result, error: print(result, error))


def done_callback(place: Place) -> None:
    def check(future: Future[Any]) -> None:
        assert future.result() is not None

    persisted(place).add_done_callback(check)


def life_of_a_writer(place: Place) -> None:
    with cl.FsStateChangelogStorage(place) as storage:
        writer = storage.create_writer("op", cl.KeyGroupRange(0, 63))
        writer.append_meta(json.dumps({"name": "counts"}).encode())
        for key_group in range(64):
            writer.append(key_group, b"x")
        start, end = writer.initial_sequence_number(), writer.next_sequence_number()
        writer.persist(start, 12345).result()
        writer.confirm(start, end, 12345)
        writer.reset(start, end, 12346)
        writer.truncate(end)
        try:
            writer.append(100, b"x")
        except ValueError:
            pass
        finally:
            writer.truncate_and_close(end)


def preemptive_threshold(place: Place) -> None:
    make: Any = cl.ChangelogOptions
    make(preemptive_persist_threshold="5mb")


def local_recovery(place: Place) -> None:
    make: Any = cl.FsStateChangelogStorage
    make(place, local_recovery_config=cl.LocalRecoveryConfig(True))  # type: ignore[arg-type]


def numbers_in_order(place: Place) -> None:
    with (
        cl.FsStateChangelogStorage(place) as storage,
        storage.create_writer("op", cl.KeyGroupRange(0, 3)) as writer,
    ):
        numbers = []
        for value in (b"a", b"b", b"c"):
            writer.append(0, value)
            numbers.append(writer.next_sequence_number())
        assert [str(number) for number in numbers] == ["1", "2", "3"]
        handle: Any = writer.persist(numbers[0], 2).result().job_manager_owned
        assert [change.value for change in storage.read(handle)] == [b"b", b"c"]


# --- checkpoint streams


def factory_by_name(place: Place) -> None:
    make: Any = cl.FsCheckpointStreamFactory
    make(file_system=place, checkpoint_directory="chk-1", shared_state_directory="shared")


def stream(place: Place) -> None:
    factory = cl.FsCheckpointStreamFactory(place, "chk-1", "shared", 1024, 4096)
    stream = factory.create_checkpoint_state_output_stream(cl.CheckpointedStateScope.EXCLUSIVE)
    stream.write(b"state" * 1000)
    handle: Any = stream.close_and_get_handle()
    assert handle.size == 5000


def constants_and_text(place: Place) -> None:
    most = cl.FsCheckpointStreamFactory.MAX_FILE_STATE_THRESHOLD
    assert "chk-1" in str(cl.FsCheckpointStreamFactory(place, "chk-1", "shared", most, 1 << 20))


RUN = (
    imports,
    direct_scheduler,
    set_of_a_log,
    task_upload_close,
    failure_callback,
    from_config_and_upload,
    custom_uploader,
    result_of_a_batch,
    availability_by_attribute,
    retry_policy,
    custom_scheduler,
    rejected_upload,
    create_append_number,
    persist_and_wait,
    done_callback,
    life_of_a_writer,
    numbers_in_order,
    constants_and_text,
)

TOLD = (
    (set_of_a_log_with_a_uuid, "the number of a writer"),
    (task_with_named_callbacks, "success_callback is the argument `on_success`"),
    (size_of_a_task, "the attribute `size_bytes`"),
    (success_callback, "`entry.handle`"),
    (configuration, "ChangelogOptions.from_mapping({key: value})"),
    (options, "num_upload_threads is the argument `upload_num_threads`"),
    (from_config_by_position, "from_config(options, base_path, job_id=..., metrics=..."),
    (from_config_by_name, "config is the argument `options`"),
    (result_of_a_custom_uploader, "UploadResult.of(handle, change_set, offset"),
    (batching_by_name, "max_batch_size is the argument `batch_threshold_bytes`"),
    (batching_by_position, "BatchingStateChangeUploadScheduler(uploader, policy, batch_delay_s"),
    (availability_by_getter, "the attribute `availability`"),
    (availability_future, "`future.add_done_callback(f)`"),
    (writer_by_position, "storage.create_writer(operator_id, key_group_range, mailbox)"),
    (writer_by_name, "storage.create_writer(operator_id, key_group_range, mailbox)"),
    (then_accept, "`future.add_done_callback(f)`"),
    (getter_of_a_result, "the attribute `job_manager_owned`"),
    (handles_of_a_result, "the attribute `handles_and_offsets`"),
    (when_complete, "`future.add_done_callback(f)`"),
    (preemptive_threshold, "the argument `preemptive_persist_threshold_bytes`"),
    (local_recovery, "directories must be a sequence of paths"),
    (factory_by_name, "file_system is the argument `store`"),
    (stream, "the directory chk-1 of checkpoint streams does not exist"),
)


@pytest.mark.parametrize("guess", RUN, ids=lambda guess: guess.__name__)
def test_a_guess_runs(guess: Callable[[Place], None], tmp_path: Path) -> None:
    guess(tmp_path)


@pytest.mark.parametrize(("guess", "written"), TOLD, ids=lambda told: getattr(told, "__name__", ""))
def test_the_error_of_a_guess_says_what_to_write(
    guess: Callable[[Place], None], written: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=re.escape(written)):
        guess(tmp_path)


def test_all_guesses_are_here() -> None:
    assert 41 == len(RUN) + len(TOLD)
