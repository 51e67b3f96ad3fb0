"""
The persists of one writer that have not ended: their futures, and the snapshots they end with.

Which one ends, and how, is decided by `core/change_log.py`; each future is completed once.
Source: Flink, FsStateChangelogWriter.UploadCompletionListener and buildSnapshotResult.  Deviation:
a local copy is part of a snapshot only if it is there when the snapshot is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from statelog.changelog.api import PersistFuture
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.errors import ClosedError, StatelogError, UploadFailedError, UsageError
from statelog.metrics import Metrics
from statelog.model import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    KeyGroupRange,
    SnapshotResult,
)
from statelog.model.upload_result import UploadResult
from statelog.runtime.driver import Runtime


@dataclass(frozen=True, slots=True)
class _Pending:
    """A persist that was asked for: its future, its checkpoint, and when it was asked."""

    future: PersistFuture
    checkpoint_id: int
    asked_ns: int


class PendingPersists:
    """
    The open persists of one writer.

    Args:
        log_id: The writer's number, for messages.
        operator_id: Its operator, for messages.
        key_group_range: What its handles cover.
        registry: Knows which local copies are there.
        runtime: Clock and ids.
        metrics: Told how long persists take.
    """

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
        self._open: dict[int, _Pending] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, future: PersistFuture, checkpoint_id: int) -> int:
        """Take *future* in and return the number of its persist.  Called under the lock."""
        persist_id, self._next_id = self._next_id, self._next_id + 1
        self._open[persist_id] = _Pending(future, checkpoint_id, self._runtime.clock.now_ns())
        return persist_id

    def complete(
        self, persist_id: int, results: tuple[UploadResult, ...], incremental_size_bytes: int
    ) -> None:
        """End a persist with a snapshot of *results*.  Called without the lock."""
        persist = self._open.pop(persist_id)
        persist.future.set_result(self._snapshot(persist, results, incremental_size_bytes))

    def fail(self, persist_id: int, error: BaseException) -> None:
        """End a persist with an error that says what to do.  Called without the lock."""
        self._open.pop(persist_id).future.set_exception(self._explain(error))

    def _snapshot(
        self, persist: _Pending, results: tuple[UploadResult, ...], incremental_size_bytes: int
    ) -> SnapshotResult[ChangelogStateHandle]:
        self._metrics.record("persist_durations", self._runtime.clock.now_ns() - persist.asked_ns)
        handle = ChangelogStateHandle(
            key_group_range=self._key_group_range,
            handles_and_offsets=tuple(result.entry for result in results),
            size_bytes=sum(result.size_bytes for result in results),
            incremental_size_bytes=incremental_size_bytes,
            state_handle_id=self._runtime.ids.new_id(),
            checkpoint_id=persist.checkpoint_id,
        )
        return SnapshotResult(handle, self._local_copy(handle, results))

    def _local_copy(
        self, handle: ChangelogStateHandle, results: tuple[UploadResult, ...]
    ) -> ChangelogStateHandle | None:
        """Return the handle of the copy if every set has one; inline sets are their own copy."""
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
        # Asked now: a truncation may have taken a copy since the upload ended.
        streams = [entry.handle for entry in entries]
        if not self._registry.copies.claim(streams, handle.checkpoint_id):
            return None
        return replace(handle, handles_and_offsets=tuple(entries), incremental_size_bytes=0)

    def _explain(self, error: BaseException) -> BaseException:
        if isinstance(error, UploadFailedError | ClosedError | UsageError):
            return error
        kind = "" if isinstance(error, StatelogError) else f"{type(error).__name__}: "
        failure = UploadFailedError(
            f"writer {self._log_id} ({self._operator_id}): an upload failed ({kind}{error}); the "
            "changes are kept and the next persist sends them again",
            log_id=self._log_id,
        )
        failure.__cause__ = error
        return failure
