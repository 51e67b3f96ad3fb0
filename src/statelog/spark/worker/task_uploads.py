"""
What one task writes to the store, until its answer names it.

The driver's checkpoint owns what an answer names.  Everything else of a failed task is deleted before
the error is reported, because the worker process ends with it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.inline import InlineStateChangeUploadScheduler
from statelog.format.buffers import Buffers
from statelog.model import KeyGroupRange
from statelog.runtime.closing import close_after
from statelog.spark.worker.task_log import TaskLog
from statelog.state.encoding.changes import OperatorCodec

_GIVE_UP_S: Final = 5.0
"""Longest wait of a failed task for its uploads to end, and again for their deletion."""
_POLL_S: Final = 0.005


class TaskUploads:
    """
    The log and the objects of one task.

    Args:
        storage: Where they are written.
    """

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
        """
        Return the log of the task.

        Args:
            codec: The operator's codec.
            key_group_range: The task's key groups.
            checkpoint_id: The checkpoint being made.
            inline_bytes: Changes of one upload up to this size stay in the handle.
        """
        self._storage.inline_bytes = inline_bytes
        log = TaskLog(self._storage, codec, key_group_range, checkpoint_id)
        self._logs.append(log)
        return log

    def put(self, new_path: Callable[[], str], data: Buffers) -> str:
        """
        Put an object and return its name; see `ObjectUploads.put`.

        Blocks: For the store.
        """
        path = self._storage.objects.put(new_path, data)
        self._paths.append(path)
        return path

    def hand_over(self) -> None:
        """Leave everything to the driver, which the answer tells of it."""
        for log in self._logs:
            log.close()
        self._storage.objects.hand_over(self._paths)

    def give_up(self) -> None:
        """
        Delete everything.

        Blocks: For the store, at most ten seconds.
        """
        for log in self._logs:
            log.give_up()
        self._storage.objects.give_up(self._paths)
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
