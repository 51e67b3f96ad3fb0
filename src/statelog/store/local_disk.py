"""
Writing an object to local disk in as few system calls as it takes.

Obstore would take the content over into memory of its own, and hand it to a thread of its own.
Here the pieces go to the file from where they lie.
"""

from __future__ import annotations

import os
import re
from typing import Final

from statelog.format.buffers import Buffers, pieces_of

_PLAIN_NAME: Final = re.compile(r"(?:(?!\.{1,2}(?:/|$))[\w.=+@,-]+(?:/|$))+", re.ASCII)
_STAGED: Final = "#1"
"""Obstore's own ending of files that are not complete yet: its listings leave them out."""
_PIECES_MAX: Final = 1024
"""What one `writev` takes at most on every system."""


def can_write(path: str) -> bool:
    """Return whether *path* is a name that stands on disk as it is; obstore escapes some others."""
    return hasattr(os, "writev") and not path.endswith("/") and bool(_PLAIN_NAME.fullmatch(path))


def write_object(root: str, path: str, data: Buffers, *, fsync: bool) -> None:
    """
    Write a new object: beside its name first, so that it is seen whole or not at all.

    Args:
        root: Directory of the store.
        path: Name below it, one that `can_write` accepts and nobody else writes.
        data: The content, not copied.
        fsync: Make the bytes durable before the name appears; the folders are the caller's.

    Raises:
        FileNotFoundError: The folder went while the object was written; try again.
        OSError: The disk refuses; nothing is left behind.

    Blocks: For the disk.
    """
    final = os.path.join(root, path)
    staged = final + _STAGED
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(staged, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(final), exist_ok=True)
        descriptor = os.open(staged, flags, 0o666)
    try:
        try:
            _write(descriptor, data)
            if fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(staged, final)
    except BaseException:
        _remove(staged)
        raise


def _write(descriptor: int, data: Buffers) -> None:
    pieces = pieces_of(data)
    for start in range(0, len(pieces), _PIECES_MAX):
        waiting = [memoryview(each) for each in pieces[start : start + _PIECES_MAX]]
        left = sum(each.nbytes for each in waiting)
        while left:
            written = os.writev(descriptor, waiting)
            left -= written
            if left:  # a full disk says so in the next call
                waiting = _rest(waiting, written)


def _rest(pieces: list[memoryview], written: int) -> list[memoryview]:
    """Return what is left of *pieces* behind the first *written* bytes."""
    for index, piece in enumerate(pieces):
        if written < piece.nbytes:
            return [piece.cast("B")[written:], *pieces[index + 1 :]]
        written -= piece.nbytes
    return []


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it is not there, or the error that brought us here says more
