"""
Files of this host, by absolute path: what local copies and downloads are made of.

Nothing here is made durable.  Such a file is a convenience, and a torn one is noticed when it is
read.  A `LocalDisk` stands between the code and the disk, so that a simulation can bring its own.
"""

from __future__ import annotations

import os
from typing import Protocol

from statelog.errors import ObjectNotFoundError, StoreError
from statelog.format.buffers import Buffers, pieces_of


class LocalDisk(Protocol):
    """Files by absolute path.  Called from several threads at once, and may hang like a disk."""

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        ...

    def get(self, path: str) -> memoryview:
        """Return the whole file, or raise `ObjectNotFoundError`."""
        ...

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only where the file ends."""
        ...

    def put(self, path: str, content: Buffers, temporary: str) -> None:
        """Write a file as *temporary* and give it its name; raise `OSError` and leave nothing."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; raise `OSError` if it is not there or not to be removed."""
        ...


class LocalFiles:
    """The `LocalDisk` of this host."""

    url = "file://"

    def get(self, path: str) -> memoryview:
        """
        Return the whole file.

        Raises:
            ObjectNotFoundError: There is none.
            StoreError: It cannot be read, or *path* is not absolute.

        Blocks: For the disk.   Thread: any.
        """
        return _read(path, 0, -1)

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """
        Return *length* bytes from *start*; fewer only where the file ends.

        Raises:
            ObjectNotFoundError: There is none.
            StoreError: It cannot be read, or *path* is not absolute.

        Blocks: For the disk.   Thread: any.
        """
        return _read(path, start, length)

    def put(self, path: str, content: Buffers, temporary: str) -> None:
        """
        Write a file under a name of its own, then give it its name; its folder is made.

        Raises:
            OSError: *temporary* exists, or the disk refuses; nothing is left behind.

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
            OSError: It is not there, or not ours to remove.

        Blocks: For the disk.   Thread: any.
        """
        os.unlink(path)


def remove_quietly(disk: LocalDisk, path: str) -> bool:
    """Remove a file if that can be done; a clean-up of the directory finds what stays."""
    try:
        disk.remove(path)
    except OSError:
        return False
    return True


def write_file(path: str, content: Buffers) -> None:
    """
    Write a new file.

    Raises:
        OSError: The file exists, or the disk refuses.

    Blocks: For the disk.
    """
    with open(path, "xb") as file:
        for piece in pieces_of(content):
            file.write(piece)


def _read(path: str, start: int, length: int) -> memoryview:
    if not os.path.isabs(path):
        raise StoreError(f"{path} is no absolute path, so it is no local copy", path=path)
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return memoryview(file.read(length))
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"no local file {path}", path=path) from error
    except OSError as error:
        raise StoreError(f"cannot read local file {path}: {error}", path=path) from error
