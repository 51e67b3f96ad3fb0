"""
Append the changes of a task to the changelog.

A task that processes its rows at once appends one change set, inline or in a file.  A task with more
rows appends a set for each part.  The writer uploads the sets while the task continues, so that they
do not accumulate in memory, and the handle names several files.
"""

from __future__ import annotations

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.scheduler import DirectStateChangeUploadScheduler
from statelog.changelog.upload.uploader import StateChangeFsUploader
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.model import ChangeBatch, ChangelogStateHandle, KeyGroupRange
from statelog.options import ChangelogOptions
from statelog.runtime.ids import IdSource
from statelog.spark.worker.run import TaskRun
from statelog.state.encoding.changes import OperatorCodec
from statelog.store import LocationPaths, ObjectStore

_UPLOADS = 32


def files_only(
    store: ObjectStore, paths: LocationPaths, ids: IdSource, budget_bytes: int
) -> FsStateChangelogStorage:
    """
    Return a storage that writes all changes to files.

    Args:
        store: Where files are written.
        paths: Makes their names.
        ids: Makes unique names.
        budget_bytes: Memory of the worker; one upload uses a small part of it.
    """
    uploader = StateChangeFsUploader(store, paths=paths, ids=ids)
    return FsStateChangelogStorage(
        store,
        job_id="",
        scheduler=DirectStateChangeUploadScheduler(uploader),
        options=ChangelogOptions(preemptive_persist_threshold_bytes=budget_bytes // _UPLOADS),
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

        Blocks: For the store, when many bytes wait for upload.
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

        Blocks: For the store.
        """
        writer = self._writer
        if writer is None:
            return None
        start = writer.initial_sequence_number()
        return writer.persist(start, checkpoint_id=self._checkpoint_id).result().job_manager_owned

    def close(self) -> None:
        """Close the writer; files that no handle names are deleted."""
        if self._writer is not None:
            self._writer.close()
