"""
Rows straight from the snapshots of a checkpoint, where no log follows them.

Restoring would sort and hash them first, so that changes can be applied; without changes that is not
needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from statelog.checkpoint.state_stream import read_materialized
from statelog.model import KeyGroupRange, MaterializedHandle
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import is_of_schema, snapshot_table, snapshot_tables
from statelog.state.heap.memory import BLOCK
from statelog.store import ObjectStore

_Parts = list[tuple[MaterializedHandle, memoryview]]


def whole_snapshots(
    store: ObjectStore, handle: ChangelogStateBackendHandle, codec: OperatorCodec
) -> _Parts | None:
    """
    Return the snapshots of some key groups if they are all of their state, else None.

    That is: there is no log after them, and they were written with the present schema.

    Raises:
        CorruptionError: A snapshot is damaged.
        ObjectNotFoundError: One does not exist.
        StoreError: The store failed.

    Blocks: On the store.
    """
    if handle.log:
        return None
    parts = [(each, read_materialized(store, each)) for each in handle.materialized]
    if not all(is_of_schema(codec, data) for _, data in parts):
        return None
    return sorted(parts, key=lambda part: part[0].key_group_range.start)


def snapshot_rows(parts: _Parts, codec: OperatorCodec) -> Iterator[pa.Table]:
    """
    Yield the rows of snapshots in the order of key groups, a few key groups at a time.

    Raises:
        CorruptionError: A snapshot cannot be read.
    """
    schema = snapshot_table(codec, {}, {}, KeyGroupRange(0, 0), now_ms=-1).schema
    for snapshot, data in parts:
        for _, table in snapshot_tables(data, snapshot.key_group_range, schema, BLOCK):
            yield table
