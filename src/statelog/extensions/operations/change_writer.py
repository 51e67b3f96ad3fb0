"""Write deltas of state as a log handle, outside of a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.checkpoint.state_stream import random_name
from statelog.format.buffers import checksum
from statelog.model import (
    ChangeBatch,
    ChangelogStateHandle,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
)
from statelog.options import Options, task_changelog_options
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import SCHEMA_METADATA, SnapshotWriter
from statelog.state.heap.tables import Overlay
from statelog.state.reader import StateReader
from statelog.store import PATHS, ObjectStore

# Write a snapshot from what a reader returns, outside of a query.


def snapshot_of(
    reader: StateReader,
    key_groups: KeyGroupRange,
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda keys: keys,
) -> bytes:
    """
    Return the state of some key groups as a snapshot.

    Blocks: On the store.
    """
    metadata = {SCHEMA_METADATA: OperatorCodec(reader.schema).metadata_change()}
    writer = SnapshotWriter(reader.keys_schema().with_metadata(metadata))
    for batch in reader.keys(key_groups=key_groups, include_expired=True):
        writer.write(pa.Table.from_batches([keep(batch)]).replace_schema_metadata(metadata))
    data: bytes = writer.finish().to_pybytes()
    return data


def put_snapshot(
    store: ObjectStore, data: bytes, key_groups: KeyGroupRange, checkpoint_id: int
) -> MaterializedHandle:
    """
    Put a snapshot of a checkpoint, and return its handle.

    Blocks: On the store.
    """
    path = PATHS.task_owned(random_name())
    store.put(path, data)
    handle = FileStateHandle(path, len(data), checksum([data]))
    return MaterializedHandle(key_groups, checkpoint_id, handle)


INLINE_BYTES = 64 * 1024
"""Changes of one range up to this size travel inside the checkpoint's own object."""


class ChangeWriter:
    """
    Appends the changes of a range of key groups, part by part.

    Attributes: `delta_bytes`: summed size of the changes.
    """

    def __init__(self, store: ObjectStore, codec: OperatorCodec, key_groups: KeyGroupRange) -> None:
        self._storage = FsStateChangelogStorage.from_options(
            Options(changelog=task_changelog_options()),
            store,
            job_id="",
            inline_bytes=INLINE_BYTES,
        )
        self._codec = codec
        self._key_groups = key_groups
        self._writer: FsStateChangelogWriter | None = None
        self.delta_bytes = 0

    def append(self, overlays: Mapping[int, Overlay]) -> None:
        """
        Append changes as one change set; nothing where there are none.

        Blocks: While bytes in flight are at their limit.
        """
        self.append_changes(self._codec.encode(overlays))

    def append_changes(self, changes: ChangeBatch) -> None:
        """Append encoded changes as one change set; see `append`."""
        if not len(changes):
            return
        if self._writer is None:
            operator = self._codec.schema.operator_id
            self._writer = self._storage.create_writer(operator, self._key_groups)
        self._writer.append_meta(self._codec.metadata_change())
        self._writer.append_batch(changes.key_groups, changes.values)
        # A change set of its own, so that no set has two changes of a variable and key group.
        self._writer.next_sequence_number()
        self.delta_bytes += changes.size_bytes

    def persist(self, checkpoint_id: int) -> ChangelogStateHandle | None:
        """
        Make all changes durable, and return their handle; None without changes.

        Raises:
            UploadFailedError: The store failed.

        Blocks: For the store.
        """
        if self._writer is None:
            return None
        start = self._writer.initial_sequence_number()
        return self._writer.persist(start, checkpoint_id).result().job_manager_owned

    def close(self) -> None:
        """
        Close the writer; files that no handle names are deleted.

        Blocks: At most a few seconds, for deletions and uploads that are running.
        """
        if self._writer is not None:
            self._writer.close()
        self._storage.close()
