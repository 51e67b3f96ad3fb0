"""
The writer: numbers change sets, and makes them durable on request.

Appends are in `append_side.py`; they take no lock.  Everything that concerns sets is decided by
`core/change_log.py`, under the storage's lock.  So any thread may call a writer: each call is one
step, and steps of several threads are in the log in the order of their calls.

An exception of a signal handler may leave a call half done.  It then ends every open persist of the
storage, and each later call but the close raises an error.  The future of each `persist` is
completed once.
Source: Flink, FsStateChangelogWriter, its UploadCompletionListener and buildSnapshotResult.
Deviations are listed there and at the methods; a local copy is part of a result only if it exists
when the result is built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import InvalidStateError
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from statelog.arguments import whole_number
from statelog.changelog.api import PersistFuture
from statelog.changelog.append_side import AppendSide, noting_interrupts
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload.scheduler import StateChangeUploadScheduler
from statelog.changelog.upload.task import KEPT_CHANGES, UploadTask
from statelog.core.change_log import (
    Action,
    ChangeLog,
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
    ClosedError,
    StatelogError,
    UploadFailedError,
    UsageError,
    WriterClosedError,
)
from statelog.metrics import Metrics
from statelog.model import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    KeyGroupRange,
    SequenceNumber,
    SnapshotResult,
    StreamStateHandle,
)
from statelog.model.handles import UploadResult
from statelog.runtime.closing import ClosesAtExit
from statelog.runtime.lock import OwningProcess, notify_after_fork
from statelog.runtime.pool import PoolFuture
from statelog.runtime.runtime import Runtime

if TYPE_CHECKING:
    from statelog.runtime.mailbox import MailboxExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterContext:
    """
    The parts that all writers of a storage have in common.

    Args:
        scheduler: Uploads change sets.
        registry: Tracks uploaded files and their local copies.
        runtime: Clock, ids, lock and pools.
        metrics: Records the durations of persists.
        preemptive_threshold_bytes: Bytes held by one writer at which it uploads them.
        on_interrupt: Called with the exception that interrupted a call of a writer.
    """

    scheduler: StateChangeUploadScheduler
    registry: TaskChangelogRegistry
    runtime: Runtime
    metrics: Metrics
    preemptive_threshold_bytes: int
    on_interrupt: Callable[[BaseException], None]


class FsStateChangelogWriter(AppendSide, ClosesAtExit):
    """
    Writes change sets to files in an object store.

    `FsStateChangelogStorage.create_writer` returns one; do not construct it.

    Args:
        mailbox: Runs the callbacks of persists; None for the storage's callback threads.
    """

    def __init__(
        self,
        log_id: int,
        operator_id: str,
        key_group_range: KeyGroupRange,
        context: WriterContext,
        on_close: Callable[[int], None],
        mailbox: MailboxExecutor | None = None,
    ) -> None:
        super().__init__(log_id, operator_id, key_group_range, context.preemptive_threshold_bytes)
        self._scheduler = context.scheduler
        self._registry = context.registry
        self._runtime = context.runtime
        self._on_interrupt = context.on_interrupt
        self._interrupt: BaseException | None = None
        self._on_close = on_close
        self._mailbox = mailbox
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
        notify_after_fork(self)

    @property
    def log_id(self) -> int:
        """Number of this writer within its storage."""
        return self._log_id

    @property
    def operator_id(self) -> str:
        """Name of the operator, used in messages only."""
        return self._operator_id

    @property
    def key_group_range(self) -> KeyGroupRange:
        """The key groups that this writer accepts."""
        return self._key_group_range

    def initial_sequence_number(self) -> SequenceNumber:
        """Return the sequence number of the first change set, which is always 0."""
        return SequenceNumber(0)

    @noting_interrupts
    def next_sequence_number(self) -> SequenceNumber:
        """
        Return a sequence number above the numbers of all changes appended so far.

        No later change has a lower number.  Without appends between them, calls return the same
        number.

        Raises:
            WriterClosedError: The writer is closed.

        Thread: any.
        """
        self._check_open()
        with self._runtime.lock:
            self._cut()
            return SequenceNumber(self._log.active_sqn)

    @noting_interrupts
    def persist(self, from_sqn: SequenceNumber | int, checkpoint_id: int = 0) -> PersistFuture:
        """
        Make every change at or after *from_sqn* durable.

        Uploaded sets are reused, running uploads are joined, and sets of failed uploads are sent
        again.

        Args:
            from_sqn: First number of the range, inclusive; not below the last `truncate`.
            checkpoint_id: The checkpoint of this persist, >= 0; only a label.

        Returns:
            A future of the handle of [from_sqn, n): n is the next number at the time of the call.
            The handle of an empty range is without entries.  It fails with `UploadFailedError`, or
            with `WriterClosedError` if the writer is closed first.  It cannot be cancelled.
            Callbacks run in the writer's mailbox, or without one on the storage's callback threads;
            never on threads of uploads or timers and never under a lock, so a blocking callback
            delays only other callbacks.  All of them may call the writer.  A callback that is added
            after the end runs at once, in the thread that adds it.

        Raises:
            ChangesTruncatedError: *from_sqn* is below the truncation point.
            ChangesNotAppendedError: *from_sqn* is above the next number.
            UsageError: An argument is not a whole number, or negative.
            WriterClosedError: The writer is closed, or an earlier call was interrupted.
            ClosedError: The storage is closed.
            BackpressureTimeoutError: No upload capacity is free in time; the changes are kept.
            StoreError: This process inherited the storage over a fork.

        Blocks: While bytes in flight are at their limit; with the direct scheduler for the time
        of the upload.   Thread: any.
        Source: Flink, FsStateChangelogWriter.persist; deviates: failed sets are sent again.
        """
        self._check_interrupt()
        first = SequenceNumber.of(from_sqn).value
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        future = PoolFuture[SnapshotResult[ChangelogStateHandle]](
            self._runtime.callback_pool, self._mailbox
        )
        future.set_running_or_notify_cancel()
        with self._runtime.lock:
            # Check before the cut: a refused persist must leave the writer as it was.
            self._log.check_persist(first)
            self._cut()
            # The future is known before the step, because a direct scheduler may complete it at
            # once.
            persist_id = self._persists.add(future, checkpoint_id)
            actions = self._step(PersistRequested(persist_id, first))
            self._measure_free_bytes(self._log.pending_bytes)
        # Without the lock: this uploads, and may wait for capacity.
        self._perform(actions)
        return future

    @noting_interrupts
    def confirm(
        self, from_sqn: SequenceNumber | int, to_sqn: SequenceNumber | int, checkpoint_id: int
    ) -> None:
        """
        Transfer ownership of the files of [from_sqn, to_sqn) to the completed checkpoint.

        From here on only the checkpoint side may delete them.  For a set that is uploading this
        holds when its upload ends; a failed upload ends the confirmation.  Truncated numbers in the
        range, and changes that were never persisted, are ignored; several checkpoints may be in
        flight and be confirmed in any order.  Local copies that only older checkpoints use are
        deleted.

        Raises:
            UsageError: The range is reversed or ends above the next number.

        Thread: any.
        """
        self._check_interrupt()
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        first = SequenceNumber.of(from_sqn)
        end = SequenceNumber.of(to_sqn)
        # The remote files first: a local copy is only an optimization.
        self._post(Confirmed(first.value, end.value))
        if self._registry.copies is not None:
            self._registry.copies.discard_up_to_checkpoint(checkpoint_id)

    @noting_interrupts
    def reset(
        self, from_sqn: SequenceNumber | int, to_sqn: SequenceNumber | int, checkpoint_id: int
    ) -> None:
        """
        Record that a checkpoint was aborted; the changes are kept.

        The next `persist` reuses uploaded sets.  Local copies that neither this log nor another
        checkpoint needs are deleted.

        Thread: any.
        Source: Flink, FsStateChangelogWriter.reset, which also deletes the local copies of the
        last confirmed checkpoint (H9).
        """
        self._process.check()
        self._check_interrupt()
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        for bound in (from_sqn, to_sqn):
            SequenceNumber.of(bound)
        if self._registry.copies is not None:
            self._registry.copies.abort(checkpoint_id)

    @noting_interrupts
    def truncate(self, to_sqn: SequenceNumber | int) -> None:
        """
        Truncate all changes below *to_sqn*, which no checkpoint needs from this writer.

        A pending persist that waits for such a set, or would name a file that this call deletes,
        fails with `ChangesTruncatedError`.  A lower number than before has no effect, and neither
        has a call after the close.

        Raises:
            ChangesNotAppendedError: *to_sqn* is above the next number.

        Thread: any.
        """
        self._check_interrupt()
        self._post(Truncated(SequenceNumber.of(to_sqn).value))
        with self._runtime.lock:
            self._measure_free_bytes(self._log.pending_bytes)

    @noting_interrupts
    def truncate_and_close(self, from_sqn: SequenceNumber | int) -> None:
        """
        Discard all changes at or after *from_sqn*, which no checkpoint contains, and close.

        Sets below are kept for the checkpoints that name them.

        Thread: any.
        """
        self._end_writer(Closed(SequenceNumber.of(from_sqn).value))

    @noting_interrupts
    def close(self) -> None:
        """
        Close the writer; pending persists fail with `WriterClosedError`.

        Files that a returned handle names are kept.  Deletes files whose change sets never appeared
        in a returned handle.  A second call does nothing.

        Thread: any.
        Source: Flink, FsStateChangelogWriter.close; deviates: futures do not hang, a second call
        does nothing.
        """
        self._end_writer(Closed())

    # --- inside -----------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Turn the appended changes into a change set. Called under the lock."""
        batches, size_bytes = self._take_batches()
        if batches:
            self._step(ChangesCut(batches, size_bytes))
        self._measure_free_bytes(self._log.pending_bytes)

    def _flush(self) -> None:
        """Upload all pending changes before a checkpoint asks for them."""
        with self._runtime.lock:
            self._cut()
            actions = self._step(FlushRequested())
            self._measure_free_bytes(self._log.pending_bytes)
        self._perform(actions)

    def _step(self, event: Event) -> list[Action]:
        """Record an event, under the lock; the caller performs the actions without it."""
        actions = self._log.handle(event, self._runtime.clock.now_ns())
        for action in actions:
            if isinstance(action, CompletePersist):
                self._persists.decide(action)
        return actions

    def _post(self, event: Event) -> None:
        with self._runtime.lock:
            actions = self._step(event)
        self._perform(actions)

    def _perform(self, actions: list[Action]) -> None:
        """Perform the actions returned by the core. Called without the lock, within a step."""
        for index, action in enumerate(actions):
            try:
                self._perform_one(action)
            except BaseException:
                self._perform(actions[index + 1 :])  # the core's state requires all of them
                raise

    def _perform_one(self, action: Action) -> None:
        match action:
            case StartUpload(change_sets):
                self._scheduler.upload(
                    UploadTask(change_sets, self._on_success, self._on_failure, quick=True)
                )
            case CompletePersist(persist_id):
                self._persists.complete(persist_id)
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
            # Under the lock: of two concurrent closes, only one performs the actions.
            first = not self._log.closed
            actions = self._step(event)
        # An append that is under way may still be added: `_forget_appended` drops it.
        self._end_appends()
        if not first:
            return
        self._forget_appended()
        self._perform(actions)
        self._persists.end_all(self._closed_error())
        self._on_close(self._log_id)

    def after_fork(self) -> None:
        """Reject all later appends in a forked child process."""
        self._end_appends()

    def _interrupted(self, error: BaseException) -> None:
        self._on_interrupt(error)

    def refuse_calls(self, interrupt: BaseException) -> None:
        """
        After an interrupt, reject all later calls except close, and fail pending persists.

        Args:
            interrupt: What interrupted a call of a writer of the storage.

        Thread: any.
        """
        self._interrupt = interrupt
        self._end_appends()
        self._persists.end_all(self._interrupt_error(interrupt))

    def _check_open(self) -> None:
        self._process.check()
        if self._log.closed:
            raise self._closed_error()
        self._check_interrupt()

    def _check_interrupt(self) -> None:
        if self._interrupt is not None and not self._log.closed:
            raise self._interrupt_error(self._interrupt)

    def _closed_error(self) -> WriterClosedError:
        return WriterClosedError(
            f"writer {self._log_id} ({self._operator_id}) is closed; create a new one",
            log_id=self._log_id,
        )

    def _interrupt_error(self, interrupt: BaseException) -> WriterClosedError:
        text = interrupted_text(f"writer {self._log_id} ({self._operator_id})", interrupt)
        return WriterClosedError(text, log_id=self._log_id)


def interrupted_text(what: str, interrupt: BaseException) -> str:
    """Return the error message for calls made after an interrupt."""
    return (
        f"{what} cannot be used: a {type(interrupt).__name__} interrupted a call to a writer of this "
        "storage, so the outcome of the call is unknown; close the storage and open it again"
    )


def _handles(results: tuple[UploadResult, ...]) -> list[StreamStateHandle]:
    return list({result.entry.handle: None for result in results})


@dataclass(slots=True)
class _Pending:
    """A pending persist: its future, its checkpoint, the time of the call, and how it ends."""

    future: PoolFuture[SnapshotResult[ChangelogStateHandle]]
    checkpoint_id: int
    called_ns: int
    completion: CompletePersist | None = None


class PendingPersists:
    """The pending persists of one writer."""

    def __init__(
        self,
        log_id: int,
        operator_id: str,
        key_group_range: KeyGroupRange,
        *,
        registry: TaskChangelogRegistry,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._log_id = log_id
        self._operator_id = operator_id
        self._key_group_range = key_group_range
        self._registry = registry
        self._runtime = runtime
        self._metrics = metrics
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(
        self, future: PoolFuture[SnapshotResult[ChangelogStateHandle]], checkpoint_id: int
    ) -> int:
        """Add a persist and return its number.  Called under the lock."""
        persist_id = self._next_id
        self._next_id = self._next_id + 1
        self._pending[persist_id] = _Pending(future, checkpoint_id, self._runtime.clock.now_ns())
        return persist_id

    def decide(self, completion: CompletePersist) -> None:
        """
        Record that the log has completed a persist.  Called under the lock.

        Its files are kept from now on, so the future must end with their handle, even if another
        thread closes the writer before this one ends the future.
        """
        persist = self._pending.get(completion.persist_id)
        if persist is not None:  # else an interrupt has ended it
            persist.completion = completion

    def complete(self, persist_id: int) -> None:
        """Complete a persist as decided, unless another thread or an interrupt has ended it."""
        persist = self._pending.get(persist_id)
        if persist is None or persist.completion is None:
            return
        snapshot = self._snapshot(persist, persist.completion)
        with contextlib.suppress(InvalidStateError):
            persist.future.set_result(snapshot)
        self._pending.pop(persist_id, None)  # last: if this is interrupted, `end_all` ends it

    def fail(self, persist_id: int, error: BaseException) -> None:
        """Fail a persist with an error that includes advice. Called without the lock."""
        persist = self._pending.get(persist_id)
        if persist is not None:
            persist.future.fail(self._explain(error))
            self._pending.pop(persist_id, None)

    def end_all(self, error: BaseException) -> None:
        """
        Complete the persists that the log has completed, and fail the others.

        The first are left by a thread between its decision and its action; an interrupt leaves both
        kinds.  Called without the lock.
        """
        for persist_id in list(self._pending):
            self.complete(persist_id)
            self.fail(persist_id, error)

    def _snapshot(
        self, persist: _Pending, completion: CompletePersist
    ) -> SnapshotResult[ChangelogStateHandle]:
        results = completion.results
        self._metrics.record("persist_durations", self._runtime.clock.now_ns() - persist.called_ns)
        handle = ChangelogStateHandle(
            key_group_range=self._key_group_range,
            handles_and_offsets=tuple(result.entry for result in results),
            size_bytes=sum(result.size_bytes for result in results),
            incremental_size_bytes=completion.incremental_size_bytes,
            state_handle_id=self._runtime.ids.new_id(),
            checkpoint_id=persist.checkpoint_id,
        )
        return SnapshotResult(handle, self._local_copy(handle, results))

    def _local_copy(
        self, handle: ChangelogStateHandle, results: tuple[UploadResult, ...]
    ) -> ChangelogStateHandle | None:
        """Return the handle of the local copy if every set has a copy or is inline."""
        if self._registry.copies is None or all(result.local is None for result in results):
            return None
        entries = []
        for result in results:
            entry = result.local
            if entry is None and isinstance(result.entry.handle, ByteStreamStateHandle):
                entry = result.entry
            if entry is None:
                return None
            entries.append(entry)
        # Checked now: a truncation may have deleted a copy since the upload ended.
        streams = [entry.handle for entry in entries]
        if not self._registry.copies.claim(streams, handle.checkpoint_id):
            return None
        return replace(handle, handles_and_offsets=tuple(entries), incremental_size_bytes=0)

    def _explain(self, error: BaseException) -> BaseException:
        if isinstance(error, UploadFailedError | ClosedError | UsageError):
            return error
        kind = "" if isinstance(error, StatelogError) else f"{type(error).__name__}: "
        failure = UploadFailedError(
            f"writer {self._log_id} ({self._operator_id}): an upload failed ({kind}{error}); "
            f"{KEPT_CHANGES}",
            log_id=self._log_id,
        )
        failure.__cause__ = error
        return failure
