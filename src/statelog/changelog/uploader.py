"""
Tasks to bytes to the store: one file for all tasks of a batch.

An uploader raises when it fails and never touches a task: whether an upload has failed is decided
by the retry core alone (H2).  Success is reported only after the put has returned (H1).
Source: Flink, StateChangeFsUploader and DuplicatingStateChangeFsUploader.  Deviations: a failed
attempt removes what it may have left behind (H7); a loser takes its registry entry and its local
copy with it (H6); a local fault fails no upload (H8); small state can stay inline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from statelog.arguments import acting, instance, switch, whole_number
from statelog.changelog.from_options import checked_job_id
from statelog.changelog.local_recovery import LocalBackup
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload_task import TaskResults, UploadTask, UploadTasksResult
from statelog.core.change_log import UploadResult
from statelog.format.segment import SegmentWriter, SetEntry
from statelog.metrics import Metrics
from statelog.model import (
    ByteStreamStateHandle,
    FileStateHandle,
    HandleAndOffset,
    StateChangeSet,
    StreamStateHandle,
)
from statelog.runtime.clock import Clock, SystemClock
from statelog.runtime.fail_points import fail_point
from statelog.runtime.ids import IdSource, RandomIds
from statelog.store.api import ObjectStore
from statelog.store.paths import LocationPaths

UPLOADER_METHODS = ("upload", "discard", "close")
_PREFIX_SIZE = 4
"""Encoded bytes of a change beyond its value, at least."""


class StateChangeUploader(Protocol):
    """Writes batches of tasks.  May be called from several threads at once."""

    def upload(self, tasks: Sequence[UploadTask]) -> UploadTasksResult:
        """
        Make all sets of *tasks* durable, or raise and leave nothing behind.

        Must not complete or fail a task, and must not return before the bytes are durable.
        Each call writes under new names.

        Blocks: For the time of the store's put.
        """
        ...

    def discard(self, result: UploadTasksResult) -> None:
        """Delete what a successful upload has written, because another one won."""
        ...

    def close(self) -> None:
        """End.  May be called more than once."""
        ...


class StateChangeFsUploader:
    """
    Writes each batch as one changelog file.

    Args:
        store: Where files go.
        job_id: Folder of the job: files go to `<job_id>/dstl/`.  "" for none.
        paths: Makes their names; None for those of the job.
        ids: Makes unique names; None for random ones.
        compress: Snappy-frame the payload.
        registry: Tracks the files; None if nobody here ever deletes one.
        backup: Writes a host-local copy of each file; None for no copies.
        metrics: Told how long encoding and putting take; None for nobody.
        clock: Measures that.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        job_id: str = "",
        paths: LocationPaths | None = None,
        ids: IdSource | None = None,
        compress: bool = False,
        registry: TaskChangelogRegistry | None = None,
        backup: LocalBackup | None = None,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        acting(store, "store", ("put", "delete"), "an ObjectStore")
        switch(compress, "compress")
        if paths is not None:
            instance(paths, "paths", LocationPaths, "a LocationPaths")
        self._metrics = metrics if metrics is not None else Metrics()
        self._clock = clock if clock is not None else SystemClock()
        self._store = store
        self._paths = paths if paths is not None else LocationPaths(checked_job_id(job_id))
        self._ids = ids if ids is not None else RandomIds()
        self._compress = compress
        self._registry = registry
        self._backup = backup

    def upload(self, tasks: Sequence[UploadTask]) -> UploadTasksResult:
        """
        Write all sets of *tasks* into one file under a new name.

        Blocks: For the time of the store's put.

        Raises:
            StoreError: The put failed; a partial object has been deleted as far as possible.
        """
        began_ns = self._clock.now_ns()
        segment = SegmentWriter(compress=self._compress)
        located = [
            (task, [(each, segment.add_encoded(encoded)) for each, encoded in task.in_order()])
            for task in tasks
        ]
        name = self._ids.new_id()
        path = self._paths.changelog(name)
        content = segment.finish()
        encoded_ns = self._clock.now_ns()
        self._metrics.record("encode_durations", encoded_ns - began_ns)
        fail_point("before-upload")
        copy = None if self._backup is None else self._backup.start(name, content)
        try:
            self._store.put(path, content)
        except BaseException:
            if copy is not None:
                copy.give_up()
            self._clean_up(path)
            raise
        self._metrics.record("put_durations", self._clock.now_ns() - encoded_ns)
        fail_point("after-upload")
        handle, local = FileStateHandle(path, segment.payload_size), None
        if copy is not None and (local_path := copy.take()) is not None:
            local = FileStateHandle(local_path, segment.payload_size)
        if self._registry is not None:
            self._registry.start_tracking(handle, sum(len(sets) for _, sets in located), local)
        return UploadTasksResult(
            tasks=tuple(
                TaskResults(
                    task, tuple(_result(change_set, handle, at, local) for change_set, at in sets)
                )
                for task, sets in located
            ),
            handles=(handle,),
            payload_bytes=segment.payload_size,
        )

    def discard(self, result: UploadTasksResult) -> None:
        """Delete the file of an upload that lost; without a registry it is left to the clean-up."""
        if self._registry is not None:
            for handle in result.handles:
                self._registry.discard(handle)

    def close(self) -> None:
        """Do nothing: the store is the caller's."""

    def _clean_up(self, path: str) -> None:
        try:
            self._store.delete([path])
        except Exception:
            return  # the put's own error says more; the next clean-up finds the object


class InlineStateChangeUploader:
    """
    Keeps small batches in their handles and passes large ones on.

    Each change set becomes a complete plain changelog file of its own inside a
    `ByteStreamStateHandle`, so that nothing is carried twice where a handle names several sets.

    Args:
        threshold_bytes: Largest summed length of these files; 0 keeps nothing inline.
        delegate: Takes what is larger.
        ids: Makes the handles' names; None for random ones.
    """

    def __init__(
        self,
        threshold_bytes: int,
        delegate: StateChangeUploader,
        *,
        ids: IdSource | None = None,
    ) -> None:
        self._threshold_bytes = whole_number(threshold_bytes, "threshold_bytes", low=0)
        self._delegate: StateChangeUploader = acting(
            delegate, "delegate", UPLOADER_METHODS, "a StateChangeUploader"
        )
        self._ids = ids if ids is not None else RandomIds()

    def upload(self, tasks: Sequence[UploadTask]) -> UploadTasksResult:
        """
        Encode *tasks* into handles, or let the delegate write them.

        Blocks: Only where the delegate does.
        """
        # What is surely too large is not encoded here in vain.
        least = sum(
            change_set.size_bytes + _PREFIX_SIZE * len(change_set)
            for task in tasks
            for change_set in task.change_sets
        )
        if least > self._threshold_bytes:
            return self._delegate.upload(tasks)
        handles: list[StreamStateHandle] = []
        entries: list[TaskResults] = []
        size = payload_bytes = 0
        for task in tasks:
            results = []
            for change_set, encoded in task.in_order():
                segment = SegmentWriter()
                at = segment.add_encoded(encoded)
                data = b"".join(segment.finish())
                size += len(data)
                payload_bytes += segment.payload_size
                if size > self._threshold_bytes:
                    return self._delegate.upload(tasks)
                handle = ByteStreamStateHandle(self._ids.new_id(), data)
                handles.append(handle)
                results.append(_result(change_set, handle, at))
            entries.append(TaskResults(task, tuple(results)))
        fail_point("before-upload")
        fail_point("after-upload")
        return UploadTasksResult(
            tasks=tuple(entries), handles=tuple(handles), payload_bytes=payload_bytes
        )

    def discard(self, result: UploadTasksResult) -> None:
        """Delete what the delegate wrote; inline bytes vanish by themselves."""
        if any(isinstance(handle, FileStateHandle) for handle in result.handles):
            self._delegate.discard(result)

    def close(self) -> None:
        """Close the delegate."""
        self._delegate.close()


def _result(
    change_set: StateChangeSet,
    handle: StreamStateHandle,
    at: SetEntry,
    copy: FileStateHandle | None = None,
) -> UploadResult:
    entry = HandleAndOffset(handle, at.offset, at.size_bytes, at.crc32c)
    return UploadResult(
        log_id=change_set.log_id,
        sqn=change_set.sqn,
        size_bytes=change_set.size_bytes,
        entry=entry,
        local=None if copy is None else replace(entry, handle=copy),
    )
