"""
Read the bytes behind a handle, verified: snapshots, staged rows, state that is copied.

Changelog files are read by `statelog.changelog.reader` instead: they carry their own checksums, and
their handles count uncompressed bytes.
"""

from __future__ import annotations

from statelog.errors import CorruptionError
from statelog.format.buffers import checksum
from statelog.model import ByteStreamStateHandle, MaterializedHandle, StreamStateHandle
from statelog.store import ObjectStore


def read_stream(
    store: ObjectStore, handle: StreamStateHandle, *, what: str = "state"
) -> memoryview:
    """
    Return the bytes behind a handle, verified as far as the handle can tell.

    Args:
        store: Where the handle's path counts from.
        handle: What to read.
        what: What the bytes are, for errors.

    Raises:
        CorruptionError: Size or checksum differ.
        ObjectNotFoundError: The object does not exist.
        StoreError: The store failed.

    Blocks: On the store.   Thread: any.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return memoryview(handle.data)
    data = store.get(handle.path)
    if handle.size_bytes >= 0 and len(data) != handle.size_bytes:
        raise CorruptionError(
            f"damaged {what} {handle.path} in {store.url}: {len(data)} bytes instead of "
            f"{handle.size_bytes}",
            path=handle.path,
        )
    if handle.crc32c is not None and checksum([data]) != handle.crc32c:
        raise CorruptionError(
            f"damaged {what} {handle.path} in {store.url}: its checksum does not match the one of "
            "its handle",
            path=handle.path,
        )
    return data


def read_materialized(store: ObjectStore, snapshot: MaterializedHandle) -> memoryview:
    """
    Return the bytes of a snapshot; raises as `read_stream` does.

    It may hold more key groups than the handle's range; the reader drops the others.

    Blocks: On the store.   Thread: any.
    """
    return read_stream(store, snapshot.handle, what="snapshot")
