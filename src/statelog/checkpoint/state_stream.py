"""
Read the bytes of a handle, verified: snapshots, staged rows, state that is copied.

Changelog files are read by `statelog.changelog.reader` instead: they carry their own checksums, and
their handles count uncompressed bytes.
"""

from __future__ import annotations

from statelog.errors import CorruptionError
from statelog.format.buffers import Buffer, checksum
from statelog.model import (
    ByteStreamStateHandle,
    FileStateHandle,
    MaterializedHandle,
    StreamStateHandle,
)
from statelog.store import CachedStore, ObjectStore, read_verified


def read_stream(
    store: ObjectStore, handle: StreamStateHandle, *, what: str = "state"
) -> memoryview:
    """
    Return the bytes of a handle, verified as far as the handle can tell.

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
    file, crc32c = handle, handle.crc32c
    cache = store if isinstance(store, CachedStore) and crc32c is not None else None

    def checked(data: memoryview) -> memoryview:
        if cache is None or crc32c is None:
            check_stream(file, data, f"{what} {file.path} in {store.url}")
        elif not cache.is_verified(file.path, crc32c):
            check_stream(file, data, f"{what} {file.path} in {store.url}")
            cache.note_verified(file.path, crc32c)  # the copy in memory is not verified again
        return data

    return read_verified(store, file.path, checked)


def check_stream(handle: FileStateHandle, data: Buffer, name: str) -> None:
    """
    Verify bytes by the size and the checksum of their handle.

    Raises:
        CorruptionError: Size or checksum differ.
    """
    if handle.size_bytes >= 0 and len(data) != handle.size_bytes:
        raise CorruptionError(
            f"damaged {name}: {len(data)} bytes instead of {handle.size_bytes}",
            path=handle.path,
        )
    if handle.crc32c is not None and checksum([data]) != handle.crc32c:
        raise CorruptionError(
            f"damaged {name}: its checksum does not match the one of its handle",
            path=handle.path,
        )


def read_materialized(store: ObjectStore, snapshot: MaterializedHandle) -> memoryview:
    """
    Return the bytes of a snapshot; raises as `read_stream` does.

    It may hold more key groups than the handle's range; the reader drops the others.

    Blocks: On the store.   Thread: any.
    """
    return read_stream(store, snapshot.handle, what="snapshot")
