"""
The pending persists of one writer: their futures, and the results that complete them.

`core/change_log.py` decides which persist ends, and how; each future is completed once.
Source: Flink, FsStateChangelogWriter.UploadCompletionListener and buildSnapshotResult.  Deviation:
a local copy is part of a result only if it exists when the result is built.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from statelog.changelog.api import PersistFuture
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload.task import KEPT_CHANGES
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
    """A pending persist: its future, its checkpoint, and the time of its call."""

    future: PersistFuture
    checkpoint_id: int
    called_ns: int


class PendingPersists:
    """
    The pending persists of one writer.

    Args:
        log_id: The writer's number, for messages.
        operator_id: Its operator, for messages.
        key_group_range: The key groups of its handles.
        registry: Knows which local copies exist.
        runtime: Clock and ids.
        metrics: Records durations of persists.
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
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, future: PersistFuture, checkpoint_id: int) -> int:
        """Add a persist and return its number.  Called under the lock."""
        persist_id, self._next_id = self._next_id, self._next_id + 1
        self._pending[persist_id] = _Pending(future, checkpoint_id, self._runtime.clock.now_ns())
        return persist_id

    def complete(
        self, persist_id: int, results: tuple[UploadResult, ...], incremental_size_bytes: int
    ) -> None:
        """Complete a persist with *results*.  Called without the lock."""
        persist = self._pending.pop(persist_id)
        persist.future.set_result(self._snapshot(persist, results, incremental_size_bytes))

    def fail(self, persist_id: int, error: BaseException) -> None:
        """Fail a persist with an error that says what to do.  Called without the lock."""
        self._pending.pop(persist_id).future.set_exception(self._explain(error))

    def _snapshot(
        self, persist: _Pending, results: tuple[UploadResult, ...], incremental_size_bytes: int
    ) -> SnapshotResult[ChangelogStateHandle]:
        self._metrics.record("persist_durations", self._runtime.clock.now_ns() - persist.called_ns)
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
        """Return the handle of the local copy, if every set has one or is inline."""
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
