"""An uploader that stores small change sets inside the handle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from statelog.arguments import acting, whole_number
from statelog.changelog.upload.task import TaskResults, UploadTask, UploadTasksResult
from statelog.changelog.upload.uploader import (
    PREFIX_SIZE,
    UPLOADER_METHODS,
    PreparingUploader,
    StateChangeUploader,
    Write,
    _pass_on,
    upload_result,
)
from statelog.format.segment import SegmentWriter
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.runtime.closing import ClosesAtExit
from statelog.runtime.ids import IdSource, RandomIds


class InlineStateChangeUploader(ClosesAtExit):
    """
    Stores small batches in their handles and passes large ones to another uploader.

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
        Encode *tasks* into handles, or let the delegate write them.

        Blocks: Only where the delegate does.
        """
        return self.prepare(tasks)()

    def prepare(self, tasks: Sequence[UploadTask]) -> Write:
        """Encode *tasks* into handles, or let the delegate prepare them."""
        result = self._inline(tasks)
        if result is not None:
            return partial(_pass_on, result)
        if isinstance(self._delegate, PreparingUploader):
            return self._delegate.prepare(tasks)
        return partial(self._delegate.upload, tasks)

    def _inline(self, tasks: Sequence[UploadTask]) -> UploadTasksResult | None:
        """Return *tasks* as handles with their bytes; None if they are too large."""
        # A batch that is certainly too large is not encoded here.
        least = sum(
            change_set.size_bytes + PREFIX_SIZE * len(change_set)
            for task in tasks
            for change_set in task.change_sets
        )
        if least > self._threshold_bytes:
            return None
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
                    return None
                handle = ByteStreamStateHandle(self._ids.new_id(), data)
                handles.append(handle)
                results.append(upload_result(change_set, handle, at))
            entries.append(TaskResults(task, tuple(results)))
        return UploadTasksResult(
            tasks=tuple(entries), handles=tuple(handles), payload_bytes=payload_bytes
        )

    def discard(self, result: UploadTasksResult) -> None:
        """Delete the files of the delegate; inline bytes need no deletion."""
        if any(isinstance(handle, FileStateHandle) for handle in result.handles):
            self._delegate.discard(result)

    def close(self) -> None:
        """Close the delegate."""
        self._delegate.close()
