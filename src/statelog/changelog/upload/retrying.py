"""
The shell around `core/upload_retry.py`: attempts on pool threads, time-outs by timers.

A snapshot, staged rows and an attachment are objects of their own.  `ObjectUploads` puts each of
them as an upload without tasks, by the policy of change sets.
Source: Flink, RetryingExecutor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import assert_never

from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload.task import (
    UploadTask,
    UploadTasksResult,
    check_answer,
    upload_failure,
)
from statelog.changelog.upload.uploader import PreparingUploader, StateChangeUploader, Write
from statelog.core.retry_policy import RetryPolicy
from statelog.core.upload_retry import (
    Action,
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    Cancelled,
    DiscardAttempt,
    Event,
    SetTimer,
    StartAttempt,
    ThreadBack,
    ThreadsHang,
    ThreadStuck,
    TimerFired,
    TimerLost,
    UploadGivenUp,
    UploadReleased,
    UploadRequested,
    UploadRetry,
    UploadWon,
)
from statelog.errors import ClosedError, StatelogError, UnavailableError, UploadFailedError
from statelog.format.buffers import Buffers, pieces_of
from statelog.metrics import Metrics
from statelog.model import FileStateHandle
from statelog.runtime.pool import PoolFuture
from statelog.runtime.runtime import Runtime, Timer
from statelog.store.api import ObjectStore

OnEnd = Callable[[UploadTasksResult | None, BaseException | None, int], None]
_log = logging.getLogger("statelog")


class _Upload:
    """One upload: its core, its encoded tasks, and the results of its attempts."""

    __slots__ = (
        "num_sets",
        "on_end",
        "on_released",
        "results",
        "retry",
        "started_ns",
        "tasks",
        "timers",
        "write",
    )

    def __init__(
        self,
        policy: RetryPolicy,
        tasks: Sequence[UploadTask],
        on_end: OnEnd,
        on_released: Callable[[], None],
        started_ns: int,
    ) -> None:
        self.retry = UploadRetry(policy)
        self.started_ns = started_ns
        self.tasks = tasks
        self.num_sets = sum(len(task.change_sets) for task in tasks)
        self.write: Write | None = None
        self.on_end = on_end
        self.on_released = on_released
        self.results: dict[int, UploadTasksResult] = {}
        self.timers: list[Timer] = []


class RetryingUploads:
    """
    Runs uploads with retries; each upload ends exactly once.

    The first attempt encodes the tasks once, before its time-out begins; all attempts write the
    same bytes, each under its own name.
    """

    def __init__(
        self,
        uploader: StateChangeUploader,
        policy: RetryPolicy,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._uploader = uploader
        self._preparing = uploader if isinstance(uploader, PreparingUploader) else None
        self._policy = policy
        self._runtime = runtime
        self._metrics = metrics
        self._running: dict[int, _Upload] = {}
        self._next_id = 0
        self._closed = False

    def start(
        self, tasks: Sequence[UploadTask], on_end: OnEnd, on_released: Callable[[], None]
    ) -> None:
        """
        Upload *tasks*, then call *on_end* once with the result or the error.

        Thread: any; both are called on any thread, without the lock, possibly within this call.
        """
        upload = _Upload(self._policy, tasks, on_end, on_released, self._runtime.clock.now_ns())
        with self._runtime.lock:
            upload_id = self._next_id
            self._next_id = self._next_id + 1
            self._running[upload_id] = upload
        self._post(upload_id, upload, UploadRequested())

    def close(self) -> None:
        """Fail every running upload with `ClosedError`; discard late attempts."""
        with self._runtime.lock:
            self._closed = True
            running = list(self._running.items())
        for upload_id, upload in running:
            self._post(upload_id, upload, Cancelled())

    def _post(self, upload_id: int, upload: _Upload, event: Event) -> None:
        with self._runtime.lock:
            actions = upload.retry.handle(event, self._runtime.clock.now_ns())
            # After the end: drop what a late attempt does not need, so that its bytes can be freed.
            finished: list[Timer] = []
            if upload.retry.done:
                self._running.pop(upload_id, None)
                upload.write = None  # running attempts have their own references
                upload.tasks = ()
                if upload.retry.attempts_out == 0:
                    finished = upload.timers
                    upload.timers = []
        for timer in finished:
            timer.cancel()
        for action in actions:
            self._perform(upload_id, upload, action)

    def _perform(self, upload_id: int, upload: _Upload, action: Action) -> None:
        match action:
            case StartAttempt(number):
                self._metrics.count("number_of_upload_requests")
                asked_ns = self._runtime.clock.now_ns()
                self._runtime.upload_pool.submit(
                    partial(self._attempt, upload_id, upload, number, asked_ns),
                    partial(self._attempt_ended, upload_id, upload, number),
                )
                # No timer would end an attempt that never gets a thread, so its wait is bounded.
                if self._runtime.upload_pool.starved():
                    self._post(upload_id, upload, ThreadsHang())
            case SetTimer(at_ns):
                self._set_timer(upload_id, upload, at_ns)
            case ThreadStuck():
                self._metrics.count("number_of_upload_timeouts")
                # The hanging put keeps its thread; without spare threads, a few of them would stop
                # all uploads.
                self._runtime.upload_pool.add_spare_thread()
                self._check_threads()
            case ThreadBack():
                self._runtime.upload_pool.remove_spare_thread()
            case UploadWon(number, total, attempts_out):
                self._metrics.record("attempts_per_upload", number)
                self._metrics.record("total_attempts_per_upload", total)
                duration_ns = self._runtime.clock.now_ns() - upload.started_ns
                self._metrics.record("upload_durations", duration_ns)
                upload.on_end(upload.results.pop(number), None, attempts_out)
            case UploadGivenUp(error, attempts, attempts_out):
                upload.on_end(None, self._explain(upload, error, attempts), attempts_out)
            case UploadReleased():
                upload.on_released()
            case DiscardAttempt(number):
                self._metrics.count("number_of_discarded_uploads")
                self._discard(upload.results.pop(number))
            case _:
                assert_never(action)

    def _set_timer(self, upload_id: int, upload: _Upload, at_ns: int) -> None:
        try:
            timer = self._runtime.timers.schedule(at_ns, partial(self._fire, upload_id, upload))
        except UnavailableError as error:
            self._post(upload_id, upload, TimerLost(at_ns, error))
            return
        with self._runtime.lock:
            upload.timers.append(timer)

    def _fire(self, upload_id: int, upload: _Upload) -> None:
        self._post(upload_id, upload, TimerFired(self._runtime.upload_pool.starved()))

    def _check_threads(self) -> None:
        """Limit how long an upload waits when no thread is free to run its attempt."""
        if not self._runtime.upload_pool.starved():
            return
        with self._runtime.lock:
            running = list(self._running.items())
        for upload_id, upload in running:
            self._post(upload_id, upload, ThreadsHang())

    def _discard(self, result: UploadTasksResult) -> None:
        try:
            self._uploader.discard(result)
        except BaseException:
            _log.exception(
                "an uploader could not discard a late upload; garbage collection deletes its files"
            )

    def _attempt(
        self, upload_id: int, upload: _Upload, number: int, asked_ns: int
    ) -> UploadTasksResult | None:
        # Encoding is not part of the time-out, which bounds the store only.
        write = self._writing(upload)
        if write is None or not self._begin(upload_id, upload, number):
            return None  # the upload ended while this attempt waited for a thread, or encoded
        started_ns = self._runtime.clock.now_ns()
        self._metrics.record("upload_thread_waits", started_ns - asked_ns)
        result = check_answer(self._uploader, write())
        self._metrics.record("upload_latencies", self._runtime.clock.now_ns() - started_ns)
        self._metrics.record("upload_sizes", result.payload_bytes)
        return result

    def _writing(self, upload: _Upload) -> Write | None:
        """Return the function that writes the encoded tasks; None after the upload has ended."""
        with self._runtime.lock:
            if upload.retry.done:
                return None
            write = upload.write
            tasks = upload.tasks
        if write is None:
            if self._preparing is None:
                # For an uploader that wrongly ends tasks itself, only the open tasks are repeated.
                return partial(self._uploader.upload, [task for task in tasks if not task.finished])
            # No other attempt starts before the time-out of this one begins.
            write = self._preparing.prepare(tasks)
            with self._runtime.lock:
                # A cancel while this thread encoded has dropped the tasks; do not keep their bytes
                # again.
                if not upload.retry.done:
                    upload.write = write
        return write

    def _begin(self, upload_id: int, upload: _Upload, number: int) -> bool:
        """Start the time-out of an attempt; return False if the upload has already ended."""
        with self._runtime.lock:
            if upload.retry.done:
                return False
            now_ns = self._runtime.clock.now_ns()
            actions = upload.retry.handle(AttemptStarted(number), now_ns)
        for action in actions:
            self._perform(upload_id, upload, action)
        return True

    def _attempt_ended(
        self,
        upload_id: int,
        upload: _Upload,
        number: int,
        result: UploadTasksResult | None,
        error: BaseException | None,
    ) -> None:
        if error is not None:
            if not isinstance(error, ClosedError):  # with a closed pool nothing was attempted
                self._metrics.count("number_of_upload_failures")
            jitter = self._runtime.ids.fraction()
            event = AttemptFailed(number, error, _is_retryable(error), jitter)
            self._post(upload_id, upload, event)
        elif result is not None:
            # Before the event: the winner's result is taken while the event is handled.
            upload.results[number] = result
            self._post(upload_id, upload, AttemptSucceeded(number))

    def _explain(
        self, upload: _Upload, error: BaseException | None, attempts: str
    ) -> StatelogError:
        if self._closed:
            return ClosedError(
                f"the upload scheduler was closed while {upload.num_sets} change sets were "
                "uploading; append them to a new storage"
            )
        return upload_failure(upload.num_sets, error, attempts)


def _is_retryable(error: BaseException) -> bool:
    # Store and network faults are all OSErrors; other errors would occur again.
    return isinstance(error, OSError)


class ObjectUploads:
    """Puts objects for a storage; the caller waits for each put."""

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy,
        runtime: Runtime,
        metrics: Metrics,
        registry: TaskChangelogRegistry,
    ) -> None:
        self._store = store
        self._policy = policy
        self._runtime = runtime
        self._metrics = metrics
        self._registry = registry
        self._running: set[RetryingUploads] = set()
        self._closed = False

    def put(self, new_path: Callable[[], str], data: Buffers) -> str:
        """
        Put an object and return its name.

        The caller owns it: `hand_over` or `give_up` ends the tracking.
        """
        uploader = _ObjectUploader(self._store, new_path, pieces_of(data), self._registry)
        attempts = _Attempts(uploader, self._policy, self._runtime, self._metrics)
        with self._runtime.lock:
            if self._closed:
                raise uploader.closed_error()
            # Under the lock with the check above, so that `close` either refuses or cancels this
            # put.
            self._running.add(attempts)
        future: PoolFuture[str] = PoolFuture(self._runtime.callback_pool)
        future.set_running_or_notify_cancel()

        def ended(result: UploadTasksResult | None, error: BaseException | None, _: int) -> None:
            if result is None:
                future.set_exception(error)
            else:
                future.set_result(uploader.path_of(result))

        try:
            # An upload without tasks: only the uploader knows what it writes.
            attempts.start([], ended, _released)
            return future.result()
        finally:
            with self._runtime.lock:
                self._running.discard(attempts)

    def hand_over(self, paths: Iterable[str]) -> None:
        """Stop tracking objects whose deletion is up to a new owner, such as a checkpoint."""
        for path in paths:
            self._registry.stop_tracking(FileStateHandle(path, 0))
            self._registry.release(FileStateHandle(path, 0))

    def give_up(self, paths: Iterable[str]) -> None:
        """Delete the objects that were not handed over."""
        for path in paths:
            self._registry.release(FileStateHandle(path, 0))

    def close(self) -> None:
        """Fail running puts with `ClosedError`; delete objects that late attempts write."""
        with self._runtime.lock:
            self._closed = True
            running = list(self._running)
        for attempts in running:
            attempts.close()


class _ObjectUploader:
    """Puts one object, using a new name in each attempt."""

    def __init__(
        self,
        store: ObjectStore,
        new_path: Callable[[], str],
        pieces: Sequence[bytes | bytearray | memoryview],
        registry: TaskChangelogRegistry,
    ) -> None:
        self._store = store
        self._new_path = new_path
        self._pieces = pieces
        self._registry = registry
        self._size_bytes = sum(len(memoryview(piece).cast("B")) for piece in pieces)

    def upload(self, tasks: Sequence[UploadTask]) -> UploadTasksResult:
        """Put the object; if that fails, raise an error and leave no object."""
        path = self._new_path()
        try:
            self._store.put(path, self._pieces)
        except BaseException:
            self._clean_up(path)
            raise
        handle = FileStateHandle(path, self._size_bytes)
        self._registry.start_tracking(handle, 1)
        return UploadTasksResult(tasks=(), handles=(handle,), payload_bytes=self._size_bytes)

    def path_of(self, result: UploadTasksResult) -> str:
        """Return the name under which `upload` put the object."""
        return next(handle.path for handle in result.handles if isinstance(handle, FileStateHandle))

    def discard(self, result: UploadTasksResult) -> None:
        """Delete the object written by a losing attempt."""
        for handle in result.handles:
            self._registry.discard(handle)

    def close(self) -> None:
        """Do nothing: the caller owns the store."""

    def failure(self, error: BaseException | None, attempts: str) -> UploadFailedError:
        """Return the error for a put if all attempts failed."""
        failure = UploadFailedError(
            f"{self._size_bytes} bytes could not be written to {self._store.url} ({attempts})"
        )
        failure.__cause__ = error
        return failure

    def closed_error(self) -> ClosedError:
        """Return the error for a put that ended because its storage was closed."""
        return ClosedError(
            f"the changelog storage was closed before {self._size_bytes} bytes were written; open "
            "a new one"
        )

    def _clean_up(self, path: str) -> None:
        try:
            self._store.delete([path])
        except Exception:
            return  # the error of the put is raised; the next clean-up deletes the object


class _Attempts(RetryingUploads):
    """The attempts to put one object, and the messages of its errors."""

    def __init__(
        self, uploader: _ObjectUploader, policy: RetryPolicy, runtime: Runtime, metrics: Metrics
    ) -> None:
        super().__init__(uploader, policy, runtime, metrics)
        self._object = uploader

    def _explain(self, upload: object, error: BaseException | None, attempts: str) -> StatelogError:
        if self._closed:
            return self._object.closed_error()
        return self._object.failure(error, attempts)


def _released() -> None:
    """Do nothing, because an object does not occupy upload capacity."""
