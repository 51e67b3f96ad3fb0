"""
The shell around `core/upload_retry.py`: attempts on pool threads, time-outs on timers.

Source: Flink, RetryingExecutor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from statelog.changelog.upload_task import UploadTask, UploadTasksResult
from statelog.changelog.uploader import StateChangeUploader
from statelog.core.upload_retry import (
    Action,
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    Cancelled,
    DiscardAttempt,
    Event,
    RetryPolicy,
    SetTimer,
    StartAttempt,
    ThreadBack,
    ThreadStuck,
    TimerFired,
    UploadGivenUp,
    UploadRequested,
    UploadRetry,
    UploadWon,
)
from statelog.errors import ClosedError, StatelogError, UploadFailedError
from statelog.metrics import Metrics
from statelog.runtime.driver import Runtime
from statelog.runtime.timers import Timer

OnEnd = Callable[[UploadTasksResult | None, BaseException | None], None]


class _Upload:
    """One upload: its core, and what its attempts have brought."""

    __slots__ = ("on_end", "results", "retry", "started_ns", "tasks", "timers")

    def __init__(
        self, policy: RetryPolicy, tasks: Sequence[UploadTask], on_end: OnEnd, started_ns: int
    ) -> None:
        self.retry = UploadRetry(policy)
        self.started_ns = started_ns
        self.tasks = tasks
        self.on_end = on_end
        self.results: dict[int, UploadTasksResult] = {}
        self.timers: list[Timer] = []


class RetryingUploads:
    """
    Runs uploads with retries, each to exactly one end.

    Args:
        uploader: Does one attempt.
        policy: When to try again.
        runtime: Clock, lock, timers and the upload pool.
        metrics: Told of attempts.
    """

    def __init__(
        self,
        uploader: StateChangeUploader,
        policy: RetryPolicy,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._uploader = uploader
        self._policy = policy
        self._runtime = runtime
        self._metrics = metrics
        self._running: dict[int, _Upload] = {}
        self._next_id = 0
        self._closed = False

    def start(self, tasks: Sequence[UploadTask], on_end: OnEnd) -> None:
        """
        Upload *tasks* as one file and call *on_end* once, with the result or the error.

        Thread: Any; *on_end* runs on any thread, without the lock, possibly within this call.
        """
        upload = _Upload(self._policy, tasks, on_end, self._runtime.clock.now_ns())
        with self._runtime.lock:
            upload_id, self._next_id = self._next_id, self._next_id + 1
            self._running[upload_id] = upload
        self._post(upload_id, upload, UploadRequested())

    def close(self) -> None:
        """End every running upload with `ClosedError`; late attempts are discarded."""
        with self._runtime.lock:
            self._closed = True
            running = list(self._running.items())
        for upload_id, upload in running:
            self._post(upload_id, upload, Cancelled())

    def _post(self, upload_id: int, upload: _Upload, event: Event) -> None:
        with self._runtime.lock:
            actions = upload.retry.handle(event, self._runtime.clock.now_ns())
            finished: list[Timer] = []
            if upload.retry.done:
                self._running.pop(upload_id, None)
                if upload.retry.attempts_out == 0:
                    finished, upload.timers = upload.timers, []
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
            case SetTimer(at_ns):
                fire = partial(self._post, upload_id, upload, TimerFired())
                timer = self._runtime.timers.schedule(at_ns, fire)
                with self._runtime.lock:
                    upload.timers.append(timer)
            case ThreadStuck():
                self._metrics.count("number_of_upload_timeouts")
                self._runtime.upload_pool.widen()
            case ThreadBack():
                self._runtime.upload_pool.narrow()
            case UploadWon(number, total):
                self._metrics.record("attempts_per_upload", number)
                self._metrics.record("total_attempts_per_upload", total)
                duration_ns = self._runtime.clock.now_ns() - upload.started_ns
                self._metrics.record("upload_durations", duration_ns)
                upload.on_end(upload.results.pop(number), None)
            case UploadGivenUp(error, story):
                upload.on_end(None, self._explain(upload, error, story))
            case DiscardAttempt(number):
                self._metrics.count("number_of_discarded_uploads")
                self._uploader.discard(upload.results.pop(number))
            case _:
                assert_never(action)

    def _attempt(
        self, upload_id: int, upload: _Upload, number: int, asked_ns: int
    ) -> UploadTasksResult | None:
        with self._runtime.lock:
            if upload.retry.done:  # decided while this attempt waited for a thread
                return None
        self._post(upload_id, upload, AttemptStarted(number))
        started_ns = self._runtime.clock.now_ns()
        self._metrics.record("upload_thread_waits", started_ns - asked_ns)
        result = self._uploader.upload(upload.tasks)
        self._metrics.record("upload_latencies", self._runtime.clock.now_ns() - started_ns)
        self._metrics.record("upload_sizes", result.payload_bytes)
        return result

    def _attempt_ended(
        self,
        upload_id: int,
        upload: _Upload,
        number: int,
        result: UploadTasksResult | None,
        error: BaseException | None,
    ) -> None:
        if error is not None:
            if not isinstance(error, ClosedError):  # the pool has closed: nothing was tried
                self._metrics.count("number_of_upload_failures")
            jitter = self._runtime.ids.fraction()
            event = AttemptFailed(number, error, _is_retryable(error), jitter)
            self._post(upload_id, upload, event)
        elif result is not None:
            upload.results[number] = result
            self._post(upload_id, upload, AttemptSucceeded(number))

    def _explain(self, upload: _Upload, error: BaseException | None, story: str) -> StatelogError:
        sets = sum(len(task.change_sets) for task in upload.tasks)
        if self._closed:
            return ClosedError(
                f"the upload scheduler was closed while {sets} change sets were on their way"
            )
        failure = UploadFailedError(
            f"upload of {sets} change sets failed ({story}); the writer still holds them and the "
            "next persist sends them again"
        )
        failure.__cause__ = error
        return failure


def _is_retryable(error: BaseException) -> bool:
    # Store and network faults are all OSErrors; anything else would only fail again.
    return isinstance(error, OSError)
