"""Write a snapshot from what a reader returns, outside of a query."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from statelog.checkpoint.object_names import random_name
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import SCHEMA_METADATA, SnapshotWriter
from statelog.state.reader import StateReader
from statelog.store import LocationPaths, ObjectStore


def snapshot_of(
    reader: StateReader,
    key_groups: KeyGroupRange,
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda keys: keys,
) -> bytes:
    """
    Return the state of some key groups as a snapshot.

    Args:
        reader: The checkpoint.
        key_groups: Which of its key groups.
        keep: Returns the rows of a part of the keys that the snapshot is to have.

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
    path = LocationPaths().task_owned(random_name())
    store.put(path, data)
    handle = FileStateHandle(path, len(data), checksum([data]))
    return MaterializedHandle(key_groups, checkpoint_id, handle)
