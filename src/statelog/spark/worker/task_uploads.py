"""
What one task writes to the store, until its answer names it.

The driver's checkpoint owns what an answer names.  Everything else of a failed task is deleted
before the error is reported, because the worker process ends with it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.scheduler import InlineStateChangeUploadScheduler
from statelog.changelog.upload.task import KEPT_CHANGES
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.errors import UploadFailedError
from statelog.format.buffers import Buffers
from statelog.model import ChangeBatch, ChangelogStateHandle, KeyGroupRange
from statelog.runtime.closing import close_after
from statelog.state.encoding.changes import OperatorCodec

# Append the changes of a task to the changelog.

_REPEATED: Final = (
    "Spark runs the task again, up to spark.task.maxFailures times; after that the query fails, and "
    "continues after its last committed micro-batch when it is started again"
)


class TaskLog:
    """
    The changes of one task.

    Attributes: `delta_bytes`: summed size of the changes.
    """

    def __init__(
        self,
        storage: FsStateChangelogStorage,
        codec: OperatorCodec,
        key_group_range: KeyGroupRange,
        checkpoint_id: int,
    ) -> None:
        self._storage = storage
        self._codec = codec
        self._range = key_group_range
        self._checkpoint_id = checkpoint_id
        self._writer: FsStateChangelogWriter | None = None
        self.delta_bytes = 0

    def append(self, changes: ChangeBatch) -> ChangeBatch:
        """Append changes as one change set, and return them."""
        if len(changes):
            if self._writer is None:
                self._writer = self._storage.create_writer(
                    self._codec.schema.operator_id, self._range
                )
            self._writer.append_meta(self._codec.metadata_change())
            self._writer.append_batch(changes.key_groups, changes.values)
            # A change set of its own, so that no set has two changes of a variable and key group.
            self._writer.next_sequence_number()
            self.delta_bytes += changes.size_bytes
        return changes

    def persist(self) -> ChangelogStateHandle | None:
        """Make all changes durable, and return their handle or None."""
        writer = self._writer
        if writer is None:
            return None
        start = writer.initial_sequence_number()
        try:
            result = writer.persist(start, checkpoint_id=self._checkpoint_id).result()
        except UploadFailedError as error:
            raise type(error)(
                f"{error.message.removesuffix(KEPT_CHANGES).removesuffix('; ')}; {_REPEATED}",
                **error.facts,
            ) from error
        return result.job_manager_owned

    def close(self) -> None:
        """Close the writer; files that the handle of `persist` names are kept."""
        if self._writer is not None:
            self._writer.close()

    def give_up(self) -> None:
        """Close the writer and delete all its files, because no answer will name them."""
        if self._writer is not None:
            self._writer.truncate_and_close(self._writer.initial_sequence_number())


_GIVE_UP_S: Final = 5.0
"""Longest wait of a failed task for its uploads to end, and again for their deletion."""
_POLL_S: Final = 0.005


class TaskUploads:
    """The log and the objects of one task."""

    def __init__(self, storage: FsStateChangelogStorage) -> None:
        self._storage = storage
        self._logs: list[TaskLog] = []
        self._paths: list[str] = []

    def log(
        self,
        codec: OperatorCodec,
        key_group_range: KeyGroupRange,
        checkpoint_id: int,
        inline_bytes: int,
    ) -> TaskLog:
        """Return the log of the task."""
        self._storage.inline_bytes = inline_bytes
        log = TaskLog(self._storage, codec, key_group_range, checkpoint_id)
        self._logs.append(log)
        return log

    def put(self, new_path: Callable[[], str], data: Buffers) -> str:
        """Put an object and return its name; see `ObjectUploads.put`."""
        path = self._storage.objects.put(new_path, data)
        self._paths.append(path)
        return path

    def drop(self, path: str) -> None:
        """Delete an object that was put."""
        self._paths.remove(path)
        self._storage.objects.give_up([path])

    def hand_over(self) -> None:
        """Leave everything to the driver, which the answer tells of it."""
        for log in self._logs:
            log.close()
        self._storage.objects.hand_over(self._paths)

    def give_up(self) -> None:
        """Delete everything."""
        for log in self._logs:
            log.give_up()
        self._storage.objects.give_up(self._paths)
        # An upload that still runs may end after the deletion, so wait for it a moment.
        scheduler = self._storage.scheduler
        if isinstance(scheduler, InlineStateChangeUploadScheduler):
            until_s = time.monotonic() + _GIVE_UP_S
            while scheduler.uploads_in_flight and time.monotonic() < until_s:
                time.sleep(_POLL_S)
        self._storage.registry.close(_GIVE_UP_S)


@contextlib.contextmanager
def task_uploads(storage: FsStateChangelogStorage) -> Iterator[TaskUploads]:
    """
    Yield the uploads of a task, and delete them if the block fails.

    The block calls `hand_over` before the task answers; after that nothing is deleted.
    """
    uploads = TaskUploads(storage)
    try:
        yield uploads
    except BaseException as error:
        close_after(error, uploads.give_up)
        raise
