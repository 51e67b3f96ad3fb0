"""
The names of state objects, and verified reads of their contents.

Changelog files are read by `statelog.changelog.reader` instead: they carry their own checksums, and
their handles count uncompressed bytes.
Source: Flink, EntropyInjector.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from statelog.arguments import text, whole_number
from statelog.errors import CorruptionError, UsageError
from statelog.format.buffers import Buffer, checksum
from statelog.model import (
    ByteStreamStateHandle,
    FileStateHandle,
    MaterializedHandle,
    StreamStateHandle,
)
from statelog.store import CachedStore, ObjectStore, read_verified

_ENTROPY_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Entropy:
    """
    Random characters in names, which spread objects over the partitions of a store.

    Args:
        marker: Text whose first occurrence in a path is replaced; not empty.
        length: Number of random characters, >= 1.

    Raises:
        UsageError: The marker is empty or the length not positive.
    """

    marker: str
    length: int = 4

    def __post_init__(self) -> None:
        text(self.marker, "marker")
        whole_number(self.length, "length")
        if not self.marker or self.length < 1:
            raise UsageError(f"entropy requires a marker and a length of at least 1; got {self!r}")

    def inject(self, path: str) -> str:
        """Return *path* with random characters in place of the marker, for data."""
        if self.marker not in path:
            return path
        drawn = os.urandom(self.length)
        characters = "".join(_ENTROPY_ALPHABET[byte % len(_ENTROPY_ALPHABET)] for byte in drawn)
        return path.replace(self.marker, characters, 1)

    def remove(self, path: str) -> str:
        """Return *path* without the marker and without empty folders, for metadata."""
        if self.marker not in path:
            return path
        parts = path.replace(self.marker, "", 1).split("/")
        return "/".join(part for part in parts if part)


def random_name() -> str:
    """Return a random name in UUID form, like the file names that Flink uses."""
    digits = os.urandom(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def read_stream(
    store: ObjectStore, handle: StreamStateHandle, *, what: str = "state"
) -> memoryview:
    """Return the bytes that a handle refers to, verified against the handle."""
    if isinstance(handle, ByteStreamStateHandle):
        return memoryview(handle.data)
    file = handle
    crc32c = handle.crc32c
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
    """Verify bytes against the size and checksum in their handle."""
    if handle.size_bytes >= 0 and len(data) != handle.size_bytes:
        raise CorruptionError(
            f"damaged {name}: {len(data)} bytes instead of {handle.size_bytes}",
            path=handle.path,
        )
    if handle.crc32c is not None and checksum([data]) != handle.crc32c:
        raise CorruptionError(
            f"damaged {name}: its checksum does not match the checksum in its handle",
            path=handle.path,
        )


def read_materialized(store: ObjectStore, snapshot: MaterializedHandle) -> memoryview:
    """
    Return the bytes of a snapshot; raises like `read_stream`.

    It may hold more key groups than the handle's range; the reader drops the others.

    Blocks: On the store.   Thread: any.
    """
    return read_stream(store, snapshot.handle, what="snapshot")
