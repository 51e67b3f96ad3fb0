"""
The writer: appends on one side, durable change sets on the other.

Appending touches two columns and a counter and takes no lock; they belong to the writer's thread.
Everything that concerns sets is decided by `core/change_log.py`, under the storage's lock.

A signal handler may raise between any two calls (Ctrl-C does).  An `append` that is torn apart by
that leaves a key group without its value, at the end of the column; the next call takes it away.
Every other call is a step of `runtime/interrupts.py`: it is carried out, and then the handler runs.
Source: Flink, FsStateChangelogWriter.  Deviations are listed there and at the methods.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, assert_never

import numpy.typing as npt
import pyarrow as pa

from statelog.arguments import whole_number
from statelog.changelog.api import PersistFuture
from statelog.changelog.columns import (
    as_bytes,
    batch_of_rows,
    check_length,
    checked_batch,
)
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
    KeyGroupOutOfRangeError,
    WriterClosedError,
)
from statelog.metrics import Metrics
from statelog.model import (
    METADATA_KEY_GROUP,
    ChangeBatch,
    KeyGroupRange,
    SequenceNumber,
    StreamStateHandle,
)
from statelog.model.state_change import INT32_MAX, value_bytes
from statelog.model.upload_result import UploadResult
from statelog.runtime.closing import close_after
from statelog.runtime.driver import Runtime
from statelog.runtime.forks import OwningProcess, tell_after_fork
from statelog.runtime.interrupts import uninterrupted
from statelog.runtime.pool import CallerRunsFuture

_NOBODY = 2**62
"""Lower bound of a range without key groups: every append takes the slow way, which looks why."""
_TORN = 2**61
"""The same after an append that was torn apart: the next one repairs the columns first."""


class FsStateChangelogWriter:
    """
    A writer whose change sets become files of an object store.

    Made by `FsStateChangelogStorage.create_writer`.
    """

    def __init__(
        self,
        log_id: int,
        operator_id: str,
        key_group_range: KeyGroupRange,
        *,
        scheduler: StateChangeUploadScheduler,
        registry: TaskChangelogRegistry,
        runtime: Runtime,
        preemptive_threshold_bytes: int,
        on_close: Callable[[int], None],
        metrics: Metrics,
        caller_runs_uploads: bool = False,
    ) -> None:
        self._log_id = log_id
        self._operator_id = operator_id
        self._key_group_range = key_group_range
        self._start = key_group_range.start
        self._end = key_group_range.end
        self._scheduler = scheduler
        self._registry = registry
        self._runtime = runtime
        self._helper = runtime.upload_pool if caller_runs_uploads else None
        # Never above the longest value, so that a longer one always meets the slow way of `append`.
        self._threshold_bytes = min(preemptive_threshold_bytes, INT32_MAX)
        self._on_close = on_close
        self._log = ChangeLog(log_id)
        self._persists = PendingPersists(
            log_id,
            operator_id,
            key_group_range,
            registry=registry,
            runtime=runtime,
            metrics=metrics,
        )
        self._process = OwningProcess("the changelog storage")
        self._batches: list[ChangeBatch] = []
        self._room_bytes = self._start_room_bytes = self._threshold_bytes
        self._start_rows()
        tell_after_fork(self)

    # --- appending: the owner's thread, no lock ---------------------------------------------------

    def append(self, key_group: int, value: bytes) -> None:
        """
        Append one change.

        Reaching the pre-emptive threshold starts an upload of everything held so far; where that
        raises, the change is in the log all the same and must not be appended again.  An exception
        of a signal handler leaves the change in the log as a whole or not at all; the caller
        cannot tell which.

        Args:
            key_group: Inside the writer's range.
            value: The bytes of the change.

        Raises:
            KeyGroupOutOfRangeError: The key group belongs to another task.
            UsageError: *value* is not bytes, or longer than 2**31-1; nothing was appended.
            WriterClosedError: The writer is closed.
            BackpressureTimeoutError: At the threshold, and no room came in time.
            StoreError: This process inherited the storage over a fork.

        Blocks: At the threshold, while bytes in flight are at their limit.   Thread: the owner.
        Source: Flink, FsStateChangelogWriter.append; deviates: the range is checked, a closed
        writer raises, an old failure does not.
        """
        if not self._start <= key_group <= self._end:
            self._refuse(key_group)
        if value.__class__ is not bytes:
            value = as_bytes(value)
        room = self._room_bytes - len(value)
        if room <= 0:
            self._append_checked(key_group, value)
            return
        self._room_bytes = room
        try:
            self._add_key_group(key_group)
            self._add_value(value)
        except BaseException:
            self._start = _TORN  # first, and without a call: the repair may be interrupted too
            self._repair_rows()
            raise

    def append_meta(self, value: bytes) -> None:
        """
        Append a metadata change; every reader gets it, whatever key groups it asks for.

        Raises:
            UsageError: As for `append`.
            WriterClosedError: The writer is closed.
            BackpressureTimeoutError: As for `append`.

        Blocks: As `append`.   Thread: the owner.
        """
        self._check_open()
        if value.__class__ is not bytes:
            value = as_bytes(value)
        self._repair_rows()
        self._append_checked(METADATA_KEY_GROUP, value)

    def append_batch(self, key_groups: npt.ArrayLike, values: pa.Array | pa.ChunkedArray) -> None:
        """
        Append many changes, in order, without touching them one by one.

        Args:
            key_groups: Integers inside the writer's range; copied.
            values: Arrow `binary` or `large_binary` array of the same length, without nulls; kept
                as it is until it is uploaded.  A `ChunkedArray` is taken too; several chunks are
                copied into one.

        Raises:
            KeyGroupOutOfRangeError: A key group belongs to another task; nothing was appended.
            UsageError: Lengths differ, types do not fit, or a value is longer than 2**31-1 bytes;
                nothing was appended.
            WriterClosedError: The writer is closed.
            BackpressureTimeoutError: As for `append`.

        Blocks: As `append`.   Thread: the owner.
        """
        self._check_open()
        batch = checked_batch(key_groups, values)
        if not len(batch):
            return
        lowest, highest = int(batch.key_groups.min()), int(batch.key_groups.max())
        owned = self._key_group_range
        if lowest < owned.start or highest > owned.end:
            self._refuse(lowest if lowest < owned.start else highest)
        if self._key_groups:
            self._end_rows()
        self._room_bytes = room = self._room_bytes - value_bytes(batch.values)
        self._batches.append(batch)
        if room <= 0:
            self._flush()

    # --- sets: the owner's thread -----------------------------------------------------------------

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
        future: PersistFuture = CallerRunsFuture(self._helper, self._runtime.callback_pool)
        future.set_running_or_notify_cancel()
        with self._runtime.lock:
            self._log.check_persist(first)
            self._cut()
            persist_id = self._persists.add(future, checkpoint_id)
            actions = self._step(PersistRequested(persist_id, first))
            self._measure_room()
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
            self._measure_room()

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

    def _append_checked(self, key_group: int, value: bytes) -> None:
        """Append a change unless it is too long; upload what is held where it reaches the threshold."""
        check_length(len(value))
        self._room_bytes = room = self._room_bytes - len(value)
        try:
            self._add_key_group(key_group)
            self._add_value(value)
        except BaseException:
            self._start = _TORN
            self._repair_rows()
            raise
        if room <= 0:
            self._flush()

    def _start_rows(self) -> None:
        self._key_groups: array[int] = array("i")
        self._values: list[bytes] = []
        self._add_key_group = self._key_groups.append
        self._add_value = self._values.append

    def _repair_rows(self) -> None:
        """Take away a key group whose value was not appended, and let appends in again."""
        if self._start == _TORN:
            del self._key_groups[len(self._values) :]
            # Counted anew: the bytes of that value were noted before it was appended.
            appended_bytes = sum(batch.size_bytes for batch in self._batches)
            self._room_bytes = self._start_room_bytes - appended_bytes - sum(map(len, self._values))
            self._start = self._key_group_range.start
            if self._log.closed:  # by another thread, which may have closed the range before
                self._start = _NOBODY

    @uninterrupted
    def _end_rows(self) -> None:
        """Turn the changes appended one by one into a batch."""
        self._repair_rows()
        if not self._values:
            return
        appended_bytes = self._start_room_bytes - self._room_bytes
        self._batches.append(batch_of_rows(self._key_groups, self._values, appended_bytes))
        self._start_rows()

    def _cut(self) -> None:
        """Make a change set of what was appended.  Called under the lock."""
        self._end_rows()
        if self._batches:
            batches, self._batches = tuple(self._batches), []
            self._step(ChangesCut(batches, self._start_room_bytes - self._room_bytes))
        self._measure_room()

    def _measure_room(self) -> None:
        """Set how many bytes may be appended before a flush.  Called under the lock."""
        appended_bytes = self._start_room_bytes - self._room_bytes
        if not self._values and not self._batches:
            appended_bytes = 0
        self._start_room_bytes = self._threshold_bytes - self._log.pending_bytes
        self._room_bytes = self._start_room_bytes - appended_bytes

    @uninterrupted
    def _flush(self) -> None:
        """Upload everything held, before a checkpoint asks for it."""
        with self._runtime.lock:
            self._cut()
            actions = self._step(FlushRequested())
            self._measure_room()
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
        self._start, self._end = _NOBODY, _NOBODY - 1
        if not first:
            return
        self._batches = []
        self._start_rows()
        self._perform(actions)
        self._on_close(self._log_id)

    def after_fork(self) -> None:
        """Refuse every append from now on: this process is a child of the owning one."""
        self._start, self._end = _NOBODY, _NOBODY - 1

    def _check_open(self) -> None:
        self._process.check()
        if self._log.closed:
            raise WriterClosedError(
                f"writer {self._log_id} ({self._operator_id}) is closed; create a new one",
                log_id=self._log_id,
            )

    def _refuse(self, key_group: int) -> None:
        self._check_open()
        self._repair_rows()
        if key_group in self._key_group_range:
            return  # a torn append had closed the range
        raise KeyGroupOutOfRangeError(
            f"key group {key_group} is outside {self._key_group_range}, the range of writer "
            f"{self._log_id} ({self._operator_id}); send the change to the task that owns it",
            key_group=key_group,
        )


def _handles(results: tuple[UploadResult, ...]) -> list[StreamStateHandle]:
    return list({result.entry.handle: None for result in results})
