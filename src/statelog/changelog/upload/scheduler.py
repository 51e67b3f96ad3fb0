"""
The interface between writers and uploads, with two simple implementations.

Direct, and in the handle.

Source: Flink, StateChangeUploadScheduler and its `directScheduler`.  Deviation: a failed upload
fails its task; it is not raised to the caller of an append (H10).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from statelog.arguments import acting, whole_number
from statelog.changelog.api import AvailabilityProvider
from statelog.changelog.upload.task import (
    TaskResults,
    UploadTask,
    UploadTasksResult,
    check_answer,
    end_tasks,
    ends_of,
    fail_tasks,
    upload_failure,
)
from statelog.changelog.upload.uploader import (
    PREFIX_SIZE,
    UPLOADER_METHODS,
    PreparingUploader,
    StateChangeUploader,
    Write,
    _pass_on,
    upload_result,
)
from statelog.errors import ClosedError
from statelog.format.segment import SegmentWriter
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.options import ChangelogOptions
from statelog.runtime.clock import IdSource, RandomIds
from statelog.runtime.closing import ClosesAtExit
from statelog.store.api import ObjectStore

if TYPE_CHECKING:
    from abc import ABCMeta as _ProtocolMeta

    from statelog.changelog.upload.batching import BatchingStateChangeUploadScheduler
else:
    _ProtocolMeta = type(Protocol)


class _Factories(_ProtocolMeta):
    """
    The static methods that Flink's interface has.

    Methods of the class of a protocol are not part of the protocol, so that a scheduler needs none
    of them.
    """

    def direct_scheduler(self, uploader: StateChangeUploader) -> DirectStateChangeUploadScheduler:
        """Return `DirectStateChangeUploadScheduler(uploader)`."""
        return DirectStateChangeUploadScheduler(uploader)

    def from_config(
        self,
        options: ChangelogOptions | None = None,
        base_path: str | os.PathLike[str] | ObjectStore | None = None,
        **parts: Any,
    ) -> BatchingStateChangeUploadScheduler:
        """Return `BatchingStateChangeUploadScheduler.from_config` with the same arguments."""
        from statelog.changelog.upload.batching import BatchingStateChangeUploadScheduler

        return BatchingStateChangeUploadScheduler.from_config(options, base_path, **parts)


@runtime_checkable
class StateChangeUploadScheduler(ClosesAtExit, Protocol, metaclass=_Factories):
    """
    Uploads tasks; each task ends exactly once.

    A subclass defines `upload` and `close`, and `availability` if `upload` may wait.
    `StateChangeUploadScheduler.direct_scheduler(uploader)` and `.from_config(options, base_path)`
    make the two schedulers of statelog, as in Flink.
    """

    def upload(self, task: UploadTask) -> None:
        """
        Upload *task*, which ends later or within this call, on any thread.

        Must not be called under a lock.  If it raises, the task has been failed too.

        Blocks: May wait for capacity.

        Raises:
            ClosedError: The scheduler is closed, or was closed while waiting.
            BackpressureTimeoutError: No capacity was free in time.
        """
        ...

    @property
    def availability(self) -> AvailabilityProvider:
        """Report whether `upload` would block; by default, report that it never blocks."""
        return AvailabilityProvider.AVAILABLE

    def close(self) -> None:
        """Fail every open task with `ClosedError`. May be called more than once."""
        ...


class DirectStateChangeUploadScheduler(ClosesAtExit):
    """
    Uploads each task in the calling thread, without other threads or batches.

    Args:
        uploader: Writes the tasks; closed with the scheduler.
    """

    def __init__(self, uploader: StateChangeUploader) -> None:
        self._uploader = acting(uploader, "uploader", UPLOADER_METHODS, "a StateChangeUploader")
        self._availability = AvailabilityProvider()
        self._closed = False

    def upload(self, task: UploadTask) -> None:
        """
        Upload *task* and end it.

        A failure ends it with `UploadFailedError`, as with the batching scheduler.  An interrupt of
        the upload fails the task and is raised.
        Blocks: For the time of the store's put.   Thread: any.

        Raises:
            ClosedError: The scheduler is closed; the task has been failed with it.
        """
        if self._closed:
            error = ClosedError("the upload scheduler is closed; create a new storage")
            fail_tasks([task], error)
            raise error
        try:
            answer = self._uploader.upload([task])
            ends = ends_of(self._uploader, [task], check_answer(self._uploader, answer))
        except BaseException as error:
            attempts = f"attempt 1: {type(error).__name__}: {error}"
            fail_tasks([task], upload_failure(len(task.change_sets), error, attempts))
            if not isinstance(error, Exception):
                raise  # an interrupt
            return
        end_tasks(ends)

    @property
    def availability(self) -> AvailabilityProvider:
        """Report that an upload never waits for capacity."""
        return self._availability

    def close(self) -> None:
        """Close the uploader."""
        if not self._closed:
            self._closed = True
            self._uploader.close()


class InlineStateChangeUploader(ClosesAtExit):
    """
    Stores small batches in their handles, and passes large ones to a second uploader.

    Each change set becomes a complete plain changelog file inside a `ByteStreamStateHandle`, so
    that a handle with several sets contains no bytes twice.

    Args:
        threshold_bytes: Largest summed length of these files; 0 stores nothing inline.
        delegate: Uploads larger batches.
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
        Encode *tasks* into handles, or have the delegate write them.

        Blocks: Only where the delegate does.
        """
        return self.prepare(tasks)()

    def prepare(self, tasks: Sequence[UploadTask]) -> Write:
        """Encode *tasks* into handles, or have the delegate prepare them."""
        result = inline_result(tasks, self._threshold_bytes, self._ids)
        if result is not None:
            return partial(_pass_on, result)
        if isinstance(self._delegate, PreparingUploader):
            return self._delegate.prepare(tasks)
        return partial(self._delegate.upload, tasks)

    def discard(self, result: UploadTasksResult) -> None:
        """Delete the files written by the delegate; inline bytes do not require deletion."""
        if any(isinstance(handle, FileStateHandle) for handle in result.handles):
            self._delegate.discard(result)

    def close(self) -> None:
        """Close the delegate."""
        self._delegate.close()


class InlineStateChangeUploadScheduler(ClosesAtExit):
    """
    Stores small tasks in their handles at once, and passes large ones to a second scheduler.

    A small task ends within `upload`: no thread, no timer, no request to the store.

    Attributes: `threshold_bytes`, which applies to tasks uploaded from now on.
    """

    def __init__(
        self, threshold_bytes: int, delegate: StateChangeUploadScheduler, ids: IdSource
    ) -> None:
        self.threshold_bytes = whole_number(threshold_bytes, "inline_bytes", low=0)
        self._delegate = delegate
        self._ids = ids
        self._closed = False

    def upload(self, task: UploadTask) -> None:
        """Upload *task*; raises the delegate's errors."""
        if self._closed:
            error = ClosedError("the upload scheduler is closed; create a new storage")
            fail_tasks([task], error)
            raise error
        # Small: the bytes become part of the handle, and so of the checkpoint's metadata.
        result = inline_result([task], self.threshold_bytes, self._ids)
        if result is None:
            self._delegate.upload(task)
            return
        (entry,) = _pass_on(result).tasks
        end_tasks([(task, partial(task.complete, entry.results))])

    @property
    def availability(self) -> AvailabilityProvider:
        """Report whether the upload of a large task would block."""
        # The protocol has this default too, but a scheduler need not derive from it.
        return getattr(self._delegate, "availability", AvailabilityProvider.AVAILABLE)

    @property
    def uploads_in_flight(self) -> int:
        """Number of the delegate's uploads that have not returned; 0 if unknown."""
        return int(getattr(self._delegate, "uploads_in_flight", 0))

    def close(self) -> None:
        """Close the delegate."""
        self._closed = True
        self._delegate.close()


def inline_result(
    tasks: Sequence[UploadTask], threshold_bytes: int, ids: IdSource
) -> UploadTasksResult | None:
    """Return *tasks* as inline handles, or None if they exceed the threshold."""
    # A batch that is certainly too large is not encoded here.
    least = sum(
        change_set.size_bytes + PREFIX_SIZE * len(change_set)
        for task in tasks
        for change_set in task.change_sets
    )
    if least > threshold_bytes:
        return None
    handles: list[StreamStateHandle] = []
    entries: list[TaskResults] = []
    size = payload_bytes = 0
    for task in tasks:
        results = []
        # Each set is a file of its own, so a handle that names one set has only its bytes.
        for change_set, encoded in task.in_order():
            segment = SegmentWriter()
            place = segment.add_encoded(encoded)
            data = b"".join(segment.finish())
            size += len(data)
            payload_bytes += segment.payload_size
            # The estimate was a lower bound; the index and the checksums count too.
            if size > threshold_bytes:
                return None
            handle = ByteStreamStateHandle(ids.new_id(), data)
            handles.append(handle)
            results.append(upload_result(change_set, handle, place))
        entries.append(TaskResults(task, tuple(results)))
    return UploadTasksResult(
        tasks=tuple(entries), handles=tuple(handles), payload_bytes=payload_bytes
    )
