"""
The writer: numbered change sets, made durable on request.

Appends are in `append_side.py`; they belong to the writer's thread and take no lock.  Everything
that concerns sets is decided by `core/change_log.py`, under the storage's lock.

Every call but `append` is one step of `runtime/interrupts.py`: a signal handler runs after it.
Source: Flink, FsStateChangelogWriter.  Deviations are listed there and at the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, assert_never

from statelog.arguments import whole_number
from statelog.changelog.api import PersistFuture
from statelog.changelog.append_side import AppendSide
from statelog.changelog.pending_persists import PendingPersists
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload.scheduler import StateChangeUploadScheduler
from statelog.changelog.upload.task import UploadTask
from statelog.core.change_log import (
    ChangeLog,
)
from statelog.core.change_log_events import (
    Action,
    ChangesCut,
    Closed,
    CompletePersist,
    Confirmed,
    Event,
    FailPersist,
    FlushRequested,
    HandOver,
    OfferFiles,
    PersistRequested,
    ReleaseSets,
    StartUpload,
    Truncated,
    UploadFailed,
    UploadSucceeded,
)
from statelog.errors import (
    WriterClosedError,
)
from statelog.metrics import Metrics
from statelog.model import (
    KeyGroupRange,
    SequenceNumber,
    StreamStateHandle,
)
from statelog.model.upload_result import UploadResult
from statelog.runtime.closing import close_after
from statelog.runtime.driver import Runtime
from statelog.runtime.forks import OwningProcess, tell_after_fork
from statelog.runtime.interrupts import uninterrupted
from statelog.runtime.pool import CallerRunsFuture


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterContext:
    """
    What all writers of a storage share.

    Args:
        scheduler: Uploads change sets.
        registry: Tracks uploaded files and their local copies.
        runtime: Clock, ids, lock and pools.
        metrics: Records the durations of persists.
        preemptive_threshold_bytes: Bytes held by one writer at which it uploads them.
        caller_runs_uploads: Run pending uploads on the thread waiting for a persist.
    """

    scheduler: StateChangeUploadScheduler
    registry: TaskChangelogRegistry
    runtime: Runtime
    metrics: Metrics
    preemptive_threshold_bytes: int
    caller_runs_uploads: bool = False


class FsStateChangelogWriter(AppendSide):
    """
    A writer whose change sets become files of an object store.

    Made by `FsStateChangelogStorage.create_writer`.
    """

    def __init__(
        self,
        log_id: int,
        operator_id: str,
        key_group_range: KeyGroupRange,
        context: WriterContext,
        on_close: Callable[[int], None],
    ) -> None:
        super().__init__(log_id, operator_id, key_group_range, context.preemptive_threshold_bytes)
        self._scheduler = context.scheduler
        self._registry = context.registry
        self._runtime = context.runtime
        self._upload_pool = context.runtime.upload_pool if context.caller_runs_uploads else None
        self._on_close = on_close
        self._log = ChangeLog(log_id)
        self._persists = PendingPersists(
            log_id,
            operator_id,
            key_group_range,
            registry=context.registry,
            runtime=context.runtime,
            metrics=context.metrics,
        )
        self._process = OwningProcess("the changelog storage")
        tell_after_fork(self)

    @property
    def log_id(self) -> int:
        """Number of this writer within its storage."""
        return self._log_id

    @property
    def operator_id(self) -> str:
        """The operator this writer was made for; for people, nothing depends on it."""
        return self._operator_id

    @property
    def key_group_range(self) -> KeyGroupRange:
        """The key groups this writer takes."""
        return self._key_group_range

    def initial_sequence_number(self) -> SequenceNumber:
        """Return the number of the first change set, which is always 0."""
        return SequenceNumber(0)

    @uninterrupted
    def next_sequence_number(self) -> SequenceNumber:
        """
        Return a number above every change appended so far and not above any that comes.

        Without appends between them, calls return the same number.

        Raises:
            WriterClosedError: The writer is closed.

        Thread: the owner.
        """
        self._check_open()
        with self._runtime.lock:
            self._cut()
            return SequenceNumber(self._log.active_sqn)

    @uninterrupted
    def persist(self, from_sqn: SequenceNumber | int, checkpoint_id: int = 0) -> PersistFuture:
        """
        Make every change at or after *from_sqn* durable.

        Sets already uploaded are reused, sets on their way are joined, and sets whose upload
        failed are sent again.

        Args:
            from_sqn: First number wanted, inclusive; not below the last `truncate`.
            checkpoint_id: The checkpoint that asks, >= 0; only a label.

        Returns:
            Future of a handle over [from_sqn, n), n being the next number at the time of the
            call.  An empty range gives a handle without entries.  It fails with
            `UploadFailedError`, or with `WriterClosedError` where the writer ends first.  It
            cannot be cancelled.  Callbacks run on the storage's callback threads, never on those
            of uploads or timers and never under a lock: one that blocks holds up other callbacks
            at most.  One added after the end runs at once, in the thread that adds it.  On local
            disk and in memory, a wait without a time-out runs uploads itself that no thread has
            taken yet, and a disk that hangs holds it.  `result(timeout=...)` never does.

        An exception of a signal handler comes after the call has done its work, or out of its
        wait for upload capacity, which fails this persist.  The future is lost with it, but no
        change is: the next persist covers the same numbers and takes up what was uploaded.

        Raises:
            ChangesTruncatedError: *from_sqn* lies below the truncation point.
            ChangesNotAppendedError: *from_sqn* lies above the next number.
            UsageError: An argument is no whole number, or negative.
            WriterClosedError: The writer is closed.
            ClosedError: The storage is closed.
            BackpressureTimeoutError: No upload capacity came in time; the changes are kept.
            StoreError: This process inherited the storage over a fork.

        Blocks: While bytes in flight are at their limit; with the direct scheduler for the time
        of the upload.   Thread: the owner.
        Source: Flink, FsStateChangelogWriter.persist; deviates: failed sets are sent again.
        """
        first = SequenceNumber.of(from_sqn).value
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        future: PersistFuture = CallerRunsFuture(self._upload_pool, self._runtime.callback_pool)
        future.set_running_or_notify_cancel()
        with self._runtime.lock:
            self._log.check_persist(first)
            self._cut()
            persist_id = self._persists.add(future, checkpoint_id)
            actions = self._step(PersistRequested(persist_id, first))
            self._measure_free_bytes(self._log.pending_bytes)
        self._perform(actions)
        return future

    @uninterrupted
    def confirm(
        self, from_sqn: SequenceNumber | int, to_sqn: SequenceNumber | int, checkpoint_id: int
    ) -> None:
        """
        Hand the files of [from_sqn, to_sqn) over to the completed checkpoint.

        From here on only the checkpoint side may delete them.  Truncated numbers in the range are
        fine; several checkpoints may be in flight and be confirmed in any order.  Local copies that
        only older checkpoints use go.

        Raises:
            UsageError: The range is reversed or ends above the next number.

        Thread: the owner.
        """
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        first, end = SequenceNumber.of(from_sqn), SequenceNumber.of(to_sqn)
        self._post(Confirmed(first.value, end.value))
        if self._registry.copies is not None:
            self._registry.copies.discard_up_to_checkpoint(checkpoint_id)

    @uninterrupted
    def reset(
        self, from_sqn: SequenceNumber | int, to_sqn: SequenceNumber | int, checkpoint_id: int
    ) -> None:
        """
        Note that a checkpoint was aborted.  Nothing happens to the changes.

        Uploaded sets stay, and the next `persist` uses them again.  Of the local copies only those
        go that neither this log nor another checkpoint needs.

        Thread: the owner.
        Source: Flink, FsStateChangelogWriter.reset, which touches local copies only, but deletes
        those of the last good checkpoint too (H9).
        """
        self._process.check()
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        for each in (from_sqn, to_sqn):
            SequenceNumber.of(each)
        if self._registry.copies is not None:
            self._registry.copies.abort(checkpoint_id)

    @uninterrupted
    def truncate(self, to_sqn: SequenceNumber | int) -> None:
        """
        Give up everything below *to_sqn*: no checkpoint and no restore needs it from the writer.

        An open persist that still waits for such a set, or would name a file that is deleted by
        this, fails with `ChangesTruncatedError`.  A lower number than before changes nothing.
        Allowed after the close, where it does nothing.

        Raises:
            ChangesNotAppendedError: *to_sqn* lies above the next number.

        Thread: the owner.
        """
        self._post(Truncated(SequenceNumber.of(to_sqn).value))
        with self._runtime.lock:
            self._measure_free_bytes(self._log.pending_bytes)

    @uninterrupted
    def truncate_and_close(self, from_sqn: SequenceNumber | int) -> None:
        """
        Give up everything at or after *from_sqn*, which no checkpoint holds, and close.

        Sets below stay for the checkpoints that name them.

        Thread: the owner, or whoever closes the storage.
        """
        self._end_writer(Closed(SequenceNumber.of(from_sqn).value))

    @uninterrupted
    def close(self) -> None:
        """
        End the writer; open persists fail with `WriterClosedError`.  May be called twice.

        Files that were handed out in a snapshot stay; files with nothing but sets that nobody was
        told of are deleted.

        Thread: the owner, or whoever closes the storage.
        Source: Flink, FsStateChangelogWriter.close; deviates: futures do not hang, a second call
        does nothing.
        """
        self._end_writer(Closed())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        close_after(error, self.close)

    # --- inside -----------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Make a change set of what was appended.  Called under the lock."""
        batches, size_bytes = self._take_batches()
        if batches:
            self._step(ChangesCut(batches, size_bytes))
        self._measure_free_bytes(self._log.pending_bytes)

    @uninterrupted
    def _flush(self) -> None:
        """Upload everything held, before a checkpoint asks for it."""
        with self._runtime.lock:
            self._cut()
            actions = self._step(FlushRequested())
            self._measure_free_bytes(self._log.pending_bytes)
        self._perform(actions)

    def _step(self, event: Event) -> list[Action]:
        return self._log.handle(event, self._runtime.clock.now_ns())

    def _post(self, event: Event) -> None:
        with self._runtime.lock:
            actions = self._step(event)
        self._perform(actions)

    def _perform(self, actions: list[Action]) -> None:
        """Do what the core asks for.  Called without the lock, in a step of the main thread."""
        for index, action in enumerate(actions):
            try:
                self._perform_one(action)
            except BaseException:
                self._perform(actions[index + 1 :])  # the core has decided: nothing is left out
                raise

    def _perform_one(self, action: Action) -> None:
        match action:
            case StartUpload(change_sets):
                self._scheduler.upload(
                    UploadTask(change_sets, self._on_success, self._on_failure, quick=True)
                )
            case CompletePersist(persist_id, results, incremental_size_bytes):
                self._persists.complete(persist_id, results, incremental_size_bytes)
            case FailPersist(persist_id, error):
                self._persists.fail(persist_id, error)
            case OfferFiles(results):
                for handle in _handles(results):
                    self._registry.offer(handle)
            case HandOver(results):
                for handle in _handles(results):
                    self._registry.stop_tracking(handle)
            case ReleaseSets(results):
                for result in results:
                    self._registry.release(result.entry.handle)
            case _:
                assert_never(action)

    def _on_success(self, results: Sequence[UploadResult]) -> None:
        self._post(UploadSucceeded(tuple(results)))

    def _on_failure(self, sqns: Sequence[SequenceNumber], error: BaseException) -> None:
        self._post(UploadFailed(tuple(sqn.value for sqn in sqns), error))

    def _end_writer(self, event: Closed) -> None:
        with self._runtime.lock:
            first = not self._log.closed
            actions = self._step(event)
        self._end_appends()
        if not first:
            return
        self._forget_appended()
        self._perform(actions)
        self._on_close(self._log_id)

    def after_fork(self) -> None:
        """Refuse every append from now on: this process is a child of the owning one."""
        self._end_appends()

    def _is_closed(self) -> bool:
        return self._log.closed

    def _check_open(self) -> None:
        self._process.check()
        if self._log.closed:
            raise WriterClosedError(
                f"writer {self._log_id} ({self._operator_id}) is closed; create a new one",
                log_id=self._log_id,
            )


def _handles(results: tuple[UploadResult, ...]) -> list[StreamStateHandle]:
    return list({result.entry.handle: None for result in results})
