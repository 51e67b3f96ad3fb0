"""Bytes that a restoring task needs, verified."""

from __future__ import annotations

from statelog.errors import CorruptionError
from statelog.format.change_set import checksum
from statelog.model import ByteStreamStateHandle, MaterializedHandle, StreamStateHandle
from statelog.store import ObjectStore


def read_materialized(store: ObjectStore, snapshot: MaterializedHandle) -> memoryview:
    """
    Return the bytes of a snapshot.

    It may hold more key groups than the handle's range; the reader drops the others.

    Args:
        store: Where the handle's paths count from.
        snapshot: What to read.

    Raises:
        CorruptionError: Size or checksum differ from what the checkpoint says.
        ObjectNotFoundError: The object is gone.
        StoreError: The store failed.

    Blocks: On the store.   Thread: any.
    """
    return read_stream(store, snapshot.handle)


def read_stream(store: ObjectStore, handle: StreamStateHandle) -> memoryview:
    """
    Return the bytes behind any stream handle, verified as far as the handle can tell.

    Raises:
        CorruptionError: Size or checksum differ.
        ObjectNotFoundError: The object is gone.
        StoreError: The store failed.

    Blocks: On the store.   Thread: any.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return memoryview(handle.data)
    data = store.get(handle.path)
    if handle.size_bytes >= 0 and len(data) != handle.size_bytes:
        raise CorruptionError(
            f"damaged snapshot {handle.path}: {len(data)} bytes instead of {handle.size_bytes}",
            path=handle.path,
        )
    if handle.crc32c is not None and checksum([data]) != handle.crc32c:
        raise CorruptionError(
            f"damaged snapshot {handle.path}: its checksum does not match the checkpoint's",
            path=handle.path,
        )
    return data
