"""
Append the changes of a task to the changelog.

A task that processes its rows at once appends one change set, inline or in a file.  A task with more
rows appends a set for each part.  The storage uploads these on its threads while the task continues,
holds the task back at the limit of bytes in flight, and the handle names several files.
"""

from __future__ import annotations

from typing import Final

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.task import KEPT_CHANGES
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.errors import UploadFailedError
from statelog.model import ChangeBatch, ChangelogStateHandle, KeyGroupRange
from statelog.spark.worker.run import TaskRun
from statelog.state.encoding.changes import OperatorCodec

_REPEATED: Final = (
    "Spark runs the task again, up to spark.task.maxFailures times; after that the query fails, and "
    "continues after its last committed micro-batch when it is started again"
)


class TaskLog:
    """
    The changes of one task.

    Args:
        storage: Where they are written.
        codec: The operator's codec.
        key_group_range: The task's key groups.
        checkpoint_id: The checkpoint being made.

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

    def append(self, run: TaskRun) -> ChangeBatch:
        """
        Append the changes of *run* as one change set.

        Raises:
            ProcessorError: A value does not fit its type.
            BackpressureTimeoutError: The store does not take the bytes in flight in time.

        Blocks: While bytes in flight are at their limit.
        """
        changes = run.encoded()
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
        """
        Make all changes durable, and return their handle or None.

        Raises:
            UploadFailedError: Every attempt of an upload failed.

        Blocks: For the store, where changes are not small.
        """
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
