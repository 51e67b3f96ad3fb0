"""
The shell around `core/upload_batcher.py`: few files for many writers, with back-pressure.

Cores and bookkeeping run under the storage's lock; uploads, callbacks and futures run after its
release.  Capacity is freed before the callbacks of a batch, because a callback may upload again.
Source: Flink, BatchingStateChangeUploadScheduler.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Self, assert_never

from statelog import arguments
from statelog.arguments import Seconds
from statelog.changelog.api import AvailabilityProvider
from statelog.changelog.local_recovery import LocalBackup, LocalRecoveryConfig
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload.retrying import RetryingUploads
from statelog.changelog.upload.task import (
    UploadTask,
    UploadTasksResult,
    end_tasks,
    ends_of,
    fail_tasks,
)
from statelog.changelog.upload.uploader import (
    UPLOADER_METHODS,
    StateChangeFsUploader,
    StateChangeUploader,
    checked_job_id,
    checked_options,
    retry_policy,
    store_of,
)
from statelog.core.retry_policy import NS_PER_S, RetryPolicy
from statelog.core.upload_batcher import (
    Action,
    BatchDone,
    BatchReleased,
    Closed,
    Event,
    RejectTasks,
    SetAvailable,
    SetTimer,
    StartBatch,
    TaskAdmitted,
    TaskOffered,
    TaskWithdrawn,
    TimerFired,
    TimerLost,
    UploadBatcher,
)
from statelog.errors import (
    BackpressureTimeoutError,
    ClosedError,
    InvalidOptionsError,
    UnavailableError,
)
from statelog.metrics import Metrics
from statelog.options import ChangelogOptions
from statelog.runtime.closing import ClosesAtExit, close_all
from statelog.runtime.runtime import Runtime, system_runtime
from statelog.store.api import ObjectStore

# The uploader of changelog files that options describe, and its local copies.


def open_uploader(
    options: ChangelogOptions,
    base_path: str | os.PathLike[str] | ObjectStore | None,
    *,
    job_id: str,
    metrics: Metrics | None,
    registry: TaskChangelogRegistry | None,
    local_recovery: LocalRecoveryConfig | None,
    runtime: Runtime,
) -> tuple[StateChangeFsUploader, LocalBackup | None]:
    """Return an uploader and the writer of its local copies, which the caller closes."""
    backup = None
    if local_recovery is not None and local_recovery.backup:
        backup = LocalBackup(
            local_recovery.folder_of(checked_job_id(job_id)),
            num_threads=options.upload_num_threads,
            metrics=metrics,
            runtime=runtime,
        )
    uploader = StateChangeFsUploader(
        store_of(base_path, options),
        job_id=job_id,
        ids=runtime.ids,
        compress=options.compression_enabled,
        registry=registry,
        backup=backup,
        metrics=metrics,
        clock=runtime.clock,
    )
    return uploader, backup


_CLOSE_TIMEOUT_S = 1.0


def _check_number(value: object, name: str, low: int) -> None:
    arguments.whole_number(value, name, low=low, error=InvalidOptionsError)


def _checked_seconds(value: object, name: str) -> float:
    return arguments.seconds(value, name, low=0, error=InvalidOptionsError)


class _Offer:
    """A task that was offered, and whether it was admitted."""

    __slots__ = ("admitted", "task")

    def __init__(self, task: UploadTask) -> None:
        self.task = task
        self.admitted = False


class BatchingStateChangeUploadScheduler(ClosesAtExit):
    """
    Uploads the tasks of all writers in few files, with retries and back-pressure.

    Durations are seconds or a `timedelta`.

    Args:
        uploader: Writes a batch; closed with the scheduler.
        policy: When to retry an upload; None for `RetryPolicy.fixed()`.
        batch_delay_s: Longest wait for others to share the file, >= 0; 0 for none.
        batch_threshold_bytes: Waiting bytes that are uploaded at once, >= 0.
        max_in_flight_bytes: Bound on waiting and uploading bytes, >= 1.
        fixed_delay: Wait for the delay even if no upload is running.
        backpressure_timeout_s: Longest wait for upload capacity, >= 0.
        upload_threads: Concurrent uploads, >= 1; ignored with a *runtime*, which has a pool.
        metrics: Records batches and attempts.
        runtime: Clock, lock, timers and the upload pool; None for real ones, which `close` stops.

    Raises:
        InvalidOptionsError: The threshold exceeds the bound, or an argument is out of range.
    """

    def __init__(
        self,
        uploader: StateChangeUploader,
        *,
        policy: RetryPolicy | None = None,
        batch_delay_s: Seconds = 0.01,
        batch_threshold_bytes: int = 10 * 1024 * 1024,
        max_in_flight_bytes: int = 100 * 1024 * 1024,
        fixed_delay: bool = False,
        backpressure_timeout_s: Seconds = 600.0,
        upload_threads: int = 5,
        metrics: Metrics | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        arguments.acting(uploader, "uploader", UPLOADER_METHODS, "a StateChangeUploader")
        policy = RetryPolicy.fixed() if policy is None else policy
        _check_number(batch_threshold_bytes, "batch_threshold_bytes", 0)
        _check_number(max_in_flight_bytes, "max_in_flight_bytes", 1)
        _check_number(upload_threads, "upload_threads", 1)
        delay_s = _checked_seconds(batch_delay_s, "batch_delay_s")
        self._backpressure_timeout_s = _checked_seconds(
            backpressure_timeout_s, "backpressure_timeout_s"
        )
        arguments.switch(fixed_delay, "fixed_delay", error=InvalidOptionsError)
        arguments.instance(
            policy, "policy", RetryPolicy, "a RetryPolicy", error=InvalidOptionsError
        )
        self._closes: list[Callable[[], object]] = []
        if runtime is None:
            runtime = system_runtime(upload_threads=upload_threads)
            self._closes.append(partial(runtime.close, _CLOSE_TIMEOUT_S))
        self._batcher = UploadBatcher(
            delay_ns=round(delay_s * NS_PER_S),
            threshold_bytes=batch_threshold_bytes,
            limit_bytes=max_in_flight_bytes,
            fixed_delay=fixed_delay,
        )
        self._uploader = uploader
        self._runtime = runtime
        self._metrics = Metrics() if metrics is None else metrics
        arguments.instance(self._metrics, "metrics", Metrics, "a Metrics")
        self._uploads = RetryingUploads(uploader, policy, runtime, self._metrics)
        self._offers: dict[int, _Offer] = {}
        self._batches: dict[int, list[UploadTask]] = {}
        self._next_task_id = 0
        self._closed = False
        self._availability = AvailabilityProvider(
            lambda: self._batcher.available or self._closed,
            lock=runtime.lock,
            callbacks=runtime.callback_pool,
        )
        self._publish_gauges()

    def _publish_gauges(self) -> None:
        """Let the metrics read the queue; each read acquires the lock."""
        batcher = self._batcher
        clock = self._runtime.clock
        for name, read in (
            ("upload_queue_size", lambda: batcher.queue_size),
            ("upload_queue_age", lambda: batcher.queue_age_ns(clock.now_ns())),
            ("in_flight_bytes", lambda: batcher.in_flight_bytes),
            ("backpressured_tasks", lambda: batcher.waiting_tasks),
        ):
            self._metrics.gauge(name, partial(self._locked, read))

    @classmethod
    def from_config(
        cls,
        options: ChangelogOptions | None = None,
        base_path: str | os.PathLike[str] | ObjectStore | None = None,
        *,
        job_id: str = "",
        metrics: Metrics | None = None,
        registry: TaskChangelogRegistry | None = None,
        local_recovery: LocalRecoveryConfig | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """
        Return the scheduler that *options* describes, with an uploader of changelog files.

        Args:
            options: Batching, retries and back-pressure; None for the defaults.
            base_path: Path, URL or store; None to take `options.base_path`.
            job_id: Folder of the job below it: files are stored in `<job_id>/dstl/`.  "" for none.
            metrics: Records batches, attempts and sizes.
            registry: Tracks the files; give the same one to the storage.  None if the clean-up
                alone deletes files.
            local_recovery: Where to write host-local copies; None for none.
            runtime: Clock, threads and ids; None for real ones, which `close` stops.

        Raises:
            InvalidOptionsError: No location, or an argument of the wrong type.

        Source: Flink, StateChangeUploadScheduler.fromConfig.
        """
        options = checked_options(options)
        closes: list[Callable[[], object]] = []
        if runtime is None:
            runtime = system_runtime(
                upload_threads=options.upload_num_threads,
                discard_threads=options.discard_num_threads,
            )
            closes.append(partial(runtime.close, _CLOSE_TIMEOUT_S))
        uploader, backup = open_uploader(
            options,
            base_path,
            job_id=job_id,
            metrics=metrics,
            registry=registry,
            local_recovery=local_recovery,
            runtime=runtime,
        )
        if backup is not None:
            closes.insert(0, backup.close)
        scheduler = cls(
            uploader,
            policy=retry_policy(options),
            batch_delay_s=options.batch_persist_delay,
            batch_threshold_bytes=options.batch_persist_size_threshold_bytes,
            max_in_flight_bytes=options.upload_max_in_flight_bytes,
            fixed_delay=options.batch_fixed_delay,
            backpressure_timeout_s=options.backpressure_timeout,
            metrics=metrics,
            runtime=runtime,
        )
        scheduler._closes = closes
        return scheduler

    @property
    def availability(self) -> AvailabilityProvider:
        """Reports whether `upload` would block."""
        return self._availability

    @property
    def in_flight_bytes(self) -> int:
        """Bytes queued or uploading, plus bytes held by attempts that have not returned."""
        with self._runtime.lock:
            return self._batcher.in_flight_bytes

    @property
    def uploads_in_flight(self) -> int:
        """Running uploads, plus ended uploads whose attempts have not returned."""
        with self._runtime.lock:
            return self._batcher.running_batches + self._batcher.held_batches

    def upload(self, task: UploadTask) -> None:
        """
        Upload *task*, or fail it.

        It ends on a thread of the storage, or here if it is refused.  Callbacks of a task that is
        not `quick` run on the storage's callback threads.

        Blocks: Without upload capacity, at most for the back-pressure time-out.   Thread: any.

        Raises:
            ClosedError: The scheduler is closed, or was closed while waiting.
            BackpressureTimeoutError: No capacity was free in time; the task has been failed with
                it.
        """
        # 1. Offer the task to the core, which admits it now, later or never.
        offer = _Offer(task)
        with self._runtime.lock:
            task_id = self._next_task_id
            self._next_task_id = self._next_task_id + 1
            self._offers[task_id] = offer
            actions = self._step(TaskOffered(task_id, task.size_bytes))
            waiting = self._batcher.is_waiting(task_id)
        # 2. Without the lock: this may upload the batch, or reject the task, within this call.
        self._perform(actions)
        # 3. Without capacity the writer waits here, which is the back-pressure on its caller.
        if waiting:
            self._wait_for_capacity(task_id, offer)
        # 4. Neither admitted nor withdrawn: the scheduler was closed meanwhile.
        if not offer.admitted:
            raise _closed_error()

    def close(self) -> None:
        """
        Fail every open task with `ClosedError`, and close the uploader.

        Every part is closed, even if one of them fails; the first error is raised at the end.

        Thread: any.
        """
        with self._runtime.lock:
            first = not self._closed
            self._closed = True
            actions = self._step(Closed()) if first else []
        if first:
            close_all(
                lambda: self._perform(actions),
                self._uploads.close,
                self._availability.refresh,
                self._uploader.close,
                *self._closes,
            )

    def _wait_for_capacity(self, task_id: int, offer: _Offer) -> None:
        lock = self._runtime.lock
        started_ns = self._runtime.clock.now_ns()
        actions: list[Action] = []
        with lock:
            # The wait releases the lock; the end of an upload, or the close, notifies.
            lock.wait_for(
                lambda: not self._batcher.is_waiting(task_id), self._backpressure_timeout_s
            )
            # Still under the lock, so the core cannot admit the task between the check and the
            # withdrawal.
            withdrawn = self._batcher.is_waiting(task_id)
            if withdrawn:
                self._offers.pop(task_id)
                actions = self._step(TaskWithdrawn(task_id))
        self._metrics.count("changelog_busy_time", self._runtime.clock.now_ns() - started_ns)
        self._perform(actions)
        if withdrawn:
            error = BackpressureTimeoutError(
                f"no upload capacity became free for {offer.task.size_bytes} bytes within "
                f"{self._backpressure_timeout_s} s: the store is slower than the writers; append "
                "more slowly, or raise changelog.upload.max-in-flight",
                size_bytes=offer.task.size_bytes,
            )
            fail_tasks([offer.task], error)
            raise error

    def _step(self, event: Event) -> list[Action]:
        """Advance the core and update the bookkeeping. Called under the lock."""
        actions = self._batcher.handle(event, self._runtime.clock.now_ns())
        wake = False
        # What other threads may see at once is changed here; what takes time, in `_perform`.
        for action in actions:
            match action:
                case TaskAdmitted(task_id):
                    self._offers[task_id].admitted = True
                    wake = True
                case StartBatch(batch_id, task_ids):
                    # The tasks move from the offers to the batch in the step that starts it.
                    self._batches[batch_id] = [
                        self._offers.pop(admitted_id).task for admitted_id in task_ids
                    ]
                case RejectTasks():
                    wake = True
                case _:
                    pass
        if wake:
            self._runtime.lock.notify_all()
        return actions

    def _post(self, event: Event) -> None:
        with self._runtime.lock:
            actions = self._step(event)
        self._perform(actions)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartBatch(batch_id, task_ids, waited_ns):
                    self._metrics.record("upload_batch_sizes", len(task_ids))
                    self._metrics.record("upload_queue_waits", waited_ns)
                    with self._runtime.lock:
                        tasks = self._batches.pop(batch_id)
                    self._uploads.start(
                        tasks,
                        partial(self._batch_ended, batch_id, tasks),
                        partial(self._post, BatchReleased(batch_id)),
                    )
                case SetTimer(at_ns):
                    self._set_timer(at_ns)
                case SetAvailable():
                    self._availability.refresh()
                case RejectTasks(task_ids):
                    with self._runtime.lock:
                        rejected = [self._offers.pop(rejected_id).task for rejected_id in task_ids]
                    fail_tasks(rejected, _closed_error())  # before `upload` raises, so here
                case TaskAdmitted():
                    pass  # recorded under the lock
                case _:
                    assert_never(action)

    def _set_timer(self, at_ns: int) -> None:
        try:
            self._runtime.timers.schedule(at_ns, partial(self._post, TimerFired()))
        except UnavailableError:  # the system refuses a thread: the batch does not wait
            self._post(TimerLost())

    def _batch_ended(
        self,
        batch_id: int,
        tasks: list[UploadTask],
        result: UploadTasksResult | None,
        error: BaseException | None,
        attempts_out: int,
    ) -> None:
        self._post(BatchDone(batch_id, attempts_out > 0))  # frees capacity first
        # Each task is completed, or failed if the uploader's answer does not fit it.
        if result is not None:
            ends = ends_of(self._uploader, tasks, result)
        else:
            failure = error if error is not None else _closed_error()
            ends = [(task, partial(task.fail, failure)) for task in tasks]
        end_tasks(ends, self._runtime.callback_pool)

    def _locked(self, read: Callable[[], int]) -> int:
        with self._runtime.lock:
            return read()


def _closed_error() -> ClosedError:
    return ClosedError("the upload scheduler is closed; create a new storage")
