"""
The interface between writers and uploads, and its simplest implementation.

Source: Flink, StateChangeUploadScheduler and its `directScheduler`.  Deviation: a failed upload
fails its task; it is not raised to the caller of an append (H10).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from statelog.arguments import acting
from statelog.changelog.api import AvailabilityProvider
from statelog.changelog.upload.task import (
    UploadTask,
    check_answer,
    end_tasks,
    ends_of,
    fail_tasks,
    upload_failure,
)
from statelog.changelog.upload.uploader import UPLOADER_METHODS, StateChangeUploader
from statelog.errors import ClosedError
from statelog.options import ChangelogOptions
from statelog.runtime.closing import ClosesAtExit
from statelog.store.api import ObjectStore

if TYPE_CHECKING:
    from statelog.changelog.upload.batching import BatchingStateChangeUploadScheduler


if TYPE_CHECKING:
    from abc import ABCMeta as _ProtocolMeta
else:
    _ProtocolMeta = type(Protocol)


class _Factories(_ProtocolMeta):
    """
    Flink's static methods of the interface.

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
        """Return `BatchingStateChangeUploadScheduler.from_config`, with the same arguments."""
        from statelog.changelog.upload.batching import BatchingStateChangeUploadScheduler

        return BatchingStateChangeUploadScheduler.from_config(options, base_path, **parts)


@runtime_checkable
class StateChangeUploadScheduler(Protocol, metaclass=_Factories):
    """
    Uploads tasks; each of them ends exactly once.

    `StateChangeUploadScheduler.direct_scheduler(uploader)` and `.from_config(options, base_path)`
    make the two schedulers of statelog, as in Flink.
    """

    def upload(self, task: UploadTask) -> None:
        """
        Upload *task*; it ends later, or within this call, on any thread.

        Must not be called under a lock.  If it raises, the task has been failed too.

        Blocks: May wait for capacity.

        Raises:
            ClosedError: The scheduler is closed, or was closed while waiting.
            BackpressureTimeoutError: No capacity was free in time.
        """
        ...

    @property
    def availability(self) -> AvailabilityProvider:
        """Reports whether `upload` would wait; without an own definition, that it never does."""
        return AvailabilityProvider.AVAILABLE

    def close(self) -> None:
        """Fail every open task with `ClosedError`.  May be called more than once."""
        ...


class DirectStateChangeUploadScheduler(ClosesAtExit):
    """
    Uploads in the calling thread, task by task, without threads and batches.

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
        """Reports that an upload never waits for capacity."""
        return self._availability

    def close(self) -> None:
        """Close the uploader."""
        if not self._closed:
            self._closed = True
            self._uploader.close()
