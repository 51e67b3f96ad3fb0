"""
Files of this host, by absolute path, for local copies and downloads.

Nothing here is made durable: such a file is optional, and a torn one is detected when it is read.
Code uses the disk through a `LocalDisk`, so that a simulation can replace it.
"""

from __future__ import annotations

import os
from typing import Protocol

from statelog.errors import ObjectNotFoundError, StoreError
from statelog.format.buffers import Buffers, pieces_of


class LocalDisk(Protocol):
    """Files by absolute path.  Thread: any.  Blocks: for the disk, which may hang."""

    @property
    def url(self) -> str:
        """Its location, for messages."""
        ...

    def get(self, path: str) -> memoryview:
        """Return the whole file, or raise `ObjectNotFoundError`."""
        ...

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only where the file ends."""
        ...

    def put(self, path: str, content: Buffers, temporary: str) -> None:
        """Write a file as *temporary* and rename it; on `OSError` leave nothing."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; raise `OSError` if that is not possible."""
        ...


class LocalFiles:
    """The `LocalDisk` of this host."""

    url = "file://"

    def get(self, path: str) -> memoryview:
        """
        Return the whole file.

        Raises:
            ObjectNotFoundError: There is no such file.
            StoreError: It cannot be read, or *path* is not absolute.

        Blocks: For the disk.   Thread: any.
        """
        return _read(path, 0, -1)

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """
        Return *length* bytes from *start*; fewer only where the file ends.

        Raises:
            ObjectNotFoundError: There is no such file.
            StoreError: It cannot be read, or *path* is not absolute.

        Blocks: For the disk.   Thread: any.
        """
        return _read(path, start, length)

    def put(self, path: str, content: Buffers, temporary: str) -> None:
        """
        Write a file as *temporary* and rename it; create its folder.

        Raises:
            OSError: *temporary* exists, or the disk fails; nothing is left.

        Blocks: For the disk.   Thread: any.
        """
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            write_file(temporary, content)
            os.replace(temporary, path)
        except BaseException:
            remove_quietly(self, temporary)
            raise

    def remove(self, path: str) -> None:
        """
        Remove a file.

        Raises:
            OSError: It does not exist, or may not be removed.

        Blocks: For the disk.   Thread: any.
        """
        os.unlink(path)


def remove_quietly(disk: LocalDisk, path: str) -> bool:
    """Remove a file if possible, and return whether it was removed."""
    try:
        disk.remove(path)
    except OSError:
        return False
    return True


def write_file(path: str, content: Buffers) -> None:
    """
    Write a new file.

    Raises:
        OSError: The file exists, or the disk fails.

    Blocks: For the disk.
    """
    with open(path, "xb") as file:
        for piece in pieces_of(content):
            file.write(piece)


def _read(path: str, start: int, length: int) -> memoryview:
    if not os.path.isabs(path):
        raise StoreError(f"{path} is not an absolute path, so it is not a local copy", path=path)
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return memoryview(file.read(length))
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"local file {path} does not exist", path=path) from error
    except OSError as error:
        raise StoreError(f"cannot read local file {path}: {error}", path=path) from error
