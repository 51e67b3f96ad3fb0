"""What an upload fails with, under each scheduler: one class, and the cause."""

import datetime as dt
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

import statelog as sl
from statelog import changelog as cl

ONE_ATTEMPT = cl.RetryPolicy.fixed(max_attempts=1, timeout_s=None)
SCHEDULERS: dict[str, Callable[..., cl.StateChangeUploadScheduler]] = {
    "direct": cl.DirectStateChangeUploadScheduler,
    "batching": partial(cl.BatchingStateChangeUploadScheduler, policy=ONE_ATTEMPT),
}


class Raising:
    """An uploader that raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
        raise self.error

    def discard(self, result: cl.UploadTasksResult) -> None:
        raise AssertionError("there is no result")

    def close(self) -> None:
        pass


def failure_of(scheduler: cl.StateChangeUploadScheduler) -> BaseException:
    """Upload a task with two sets, and return the error of the task."""
    errors: list[BaseException] = []
    ended = threading.Event()

    def failed(numbers: Sequence[cl.SequenceNumber], error: BaseException) -> None:
        errors.append(error)
        ended.set()

    sets = [cl.StateChangeSet.of(0, sqn, [(1, b"one")]) for sqn in (0, 1)]
    scheduler.upload(cl.UploadTask(sets, print, failed))
    assert ended.wait(60)
    (error,) = errors
    return error


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    "error", [OSError("disk"), sl.StoreError("s3"), ValueError("wrong"), sl.ClosedError("store")]
)
def test_a_failed_upload_has_one_class_and_its_cause(name, error):
    with SCHEDULERS[name](Raising(error)) as scheduler:
        failure = failure_of(scheduler)
    assert type(failure) is cl.UploadFailedError
    assert isinstance(failure, OSError)
    assert error is failure.__cause__
    text = f"upload of 2 change sets failed (attempt 1: {type(error).__name__}: {error}); "
    assert str(failure).startswith(text)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_time_out_of_the_store_is_a_time_out(name):
    error = TimeoutError("the server took too long")
    with SCHEDULERS[name](Raising(error)) as scheduler:
        failure = failure_of(scheduler)
    assert type(failure) is cl.UploadTimeoutError
    assert isinstance(failure, TimeoutError) and isinstance(failure, cl.UploadFailedError)
    assert error is failure.__cause__


class Hanging(Raising):
    """An uploader whose first attempt raises and whose later ones hang until the end."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__(error or OSError())
        self.raises = error is not None
        self.end = threading.Event()

    def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
        if self.raises:
            self.raises = False
            raise self.error
        self.end.wait(60)
        raise OSError("late")


@pytest.mark.parametrize("first", [None, OSError("reset")])
def test_an_upload_whose_last_attempt_hangs_is_a_time_out(first):
    uploader = Hanging(first)
    policy = cl.RetryPolicy.fixed(2, dt.timedelta(milliseconds=50), dt.timedelta(0))
    with cl.BatchingStateChangeUploadScheduler(
        uploader, policy=policy, upload_threads=2
    ) as scheduler:
        failure = failure_of(scheduler)
        uploader.end.set()
    assert type(failure) is cl.UploadTimeoutError
    assert type(failure.__cause__) is TimeoutError
    assert "attempt 2 did not end within 0.05 s" == str(failure.__cause__)
    assert first is failure.__cause__.__cause__


def test_closed_is_no_os_error_so_that_no_retry_repeats_it():
    for error in (sl.ClosedError, cl.WriterClosedError):
        assert not issubclass(error, OSError)
    for error in (cl.UploadFailedError, cl.BackpressureTimeoutError, sl.StoreError):
        assert issubclass(error, OSError)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_closed_scheduler_fails_the_task_and_the_call(name):
    scheduler, errors = SCHEDULERS[name](Raising(OSError())), []
    scheduler.close()
    task = cl.UploadTask([], print, lambda _, error: errors.append(error))
    with pytest.raises(sl.ClosedError, match="create a new storage"):
        scheduler.upload(task)
    assert [sl.ClosedError] == [type(error) for error in errors]


def test_a_scheduler_of_parts_has_as_many_threads_as_asked():
    """Three uploads run at once only if there are three threads."""
    together = threading.Barrier(3)

    class Meeting(Raising):
        def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
            together.wait(60)
            raise self.error

    failures: list[Any] = []
    ended = threading.Semaphore(0)

    def failed(_: object, error: BaseException) -> None:
        failures.append(error.__cause__)
        ended.release()

    error = ValueError("all three met")
    with cl.BatchingStateChangeUploadScheduler(
        Meeting(error), policy=ONE_ATTEMPT, batch_threshold_bytes=0, upload_threads=3
    ) as scheduler:
        for sqn in range(3):
            scheduler.upload(
                cl.UploadTask([cl.StateChangeSet.of(0, sqn, [(1, b"x")])], print, failed)
            )
        for _ in range(3):
            assert ended.acquire(timeout=60)
    assert [error] * 3 == failures


def test_an_uploader_without_a_discard_of_its_own_is_named():
    class Subclass(cl.StateChangeUploader):
        def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
            raise OSError("no")

    with pytest.raises(sl.UsageError, match="Subclass does not implement discard; add"):
        Subclass().discard(cl.UploadTasksResult())
