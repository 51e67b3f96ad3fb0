"""
Write objects to local disk with few system calls.

Obstore would copy the content and pass it to one of its threads.  Here the pieces are written from
the buffers of the caller.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable
from typing import Final

import obstore.exceptions as obstore_errors

from statelog.errors import StoreError, UsageError
from statelog.format.buffers import Buffers, pieces_of
from statelog.store.explain import is_missing_bucket
from statelog.store.location import local_path

_PLAIN_NAME: Final = re.compile(r"(?:(?!\.{1,2}(?:/|$))[\w.=+@,-]+(?:/|$))+", re.ASCII)
_STAGED_BITS: Final = 32
"""Incomplete files have the suffix `#<number>`, as obstore's: its listings omit them."""
_STAGED_ATTEMPTS: Final = 100
_WRITE_ATTEMPTS: Final = 3
_PIECES_MAX: Final = 1024
"""The limit of one `writev` on every system."""


def can_write(path: str) -> bool:
    """Return whether *path* is stored under its own name; obstore escapes some names."""
    return hasattr(os, "writev") and not path.endswith("/") and bool(_PLAIN_NAME.fullmatch(path))


def leads_out(root: str, path: str) -> bool:
    """
    Return whether a symbolic link in an object's path leads out of the store.

    The root itself may be reached by a link, and links may lead from place to place within it.
    """
    link = root
    for part in path.split("/"):
        link = f"{link}/{part}"
        try:
            is_link = stat.S_ISLNK(os.lstat(link).st_mode)
        except (OSError, ValueError):
            return False  # the operation itself reports it
        if is_link:
            inside = os.path.realpath(root)
            target = os.path.realpath(f"{root}/{path}")
            return not _is_in(target, inside)
    return False


def check_links(root: str, path: str, url: str) -> None:
    """Check that no symbolic link in an object's path leads out of the store at *url*."""
    if leads_out(root, path):
        raise StoreError(
            f"{path} in {url}: a symbolic link leads out of this directory, so statelog does not follow it: move "
            "the objects into the directory, or mount the disk there",
            path=path,
            url=url,
            operation="open",
        )


def check_named_file(location: str, path: str | os.PathLike[str]) -> None:
    """
    Check that no symbolic link in a location leads to a file, or to files below it.

    A caller may name a file in a location, whose links are made by those who write there.  A path
    that leads to the file past the location, or out of it by `..`, is the caller's own word.
    """
    root = local_path(location)
    if root is None:
        return
    named = os.fspath(path)
    is_inside = _is_in(os.path.realpath(named), os.path.realpath(root))
    below = (
        os.path.join(folder, name)
        for folder, folders, files in (os.walk(named) if is_inside else ())
        for name in (*folders, *files)
    )
    for file_path in (named, *below):
        link = _link_out(root, file_path)
        if link is not None:
            raise UsageError(
                f"{named}: {link} is a symbolic link that leads out of the location, so statelog does not "
                "follow it: pass the intended file or folder itself"
            )


def _link_out(root: str, path: str) -> str | None:
    """Return the first link in the path of a file that leads out of the directory *root*."""
    inside = os.path.realpath(root)
    link = "" if os.path.isabs(path) else os.getcwd()
    for part in path.split("/"):
        folder = os.path.realpath(link or "/")
        link = os.path.join(folder, part)
        if part != ".." and _is_in(folder, inside) and not _is_in(os.path.realpath(link), inside):
            return link
    return None


def _is_in(path: str, folder: str) -> bool:
    return os.path.commonpath([folder, path]) == folder


def has_outer_folder(root: str, prefix: str) -> bool:
    """
    Return whether a folder below *prefix* is a symbolic link out of the store.

    Obstore's listing would enter such a folder.
    """
    if prefix and leads_out(root, prefix):
        return True
    waiting = [prefix]
    entered = set()
    while waiting:
        folder_name = waiting.pop()
        where = f"{root}/{folder_name}" if folder_name else root
        try:
            with os.scandir(where) as entries:
                folders = [entry for entry in entries if entry.is_dir()]
        except OSError:
            continue  # the listing itself reports it
        for entry in folders:
            path = f"{folder_name}/{entry.name}" if folder_name else entry.name
            if entry.is_symlink():
                if leads_out(root, path):
                    return True
                target = os.path.realpath(entry.path)
                if target in entered:
                    continue
                entered.add(target)
            waiting.append(path)
    return False


def write_object(root: str, path: str, data: Buffers, *, fsync: bool) -> None:
    """Write a new object to a temporary file, then rename the file."""
    final = os.path.join(root, path)
    try:
        staged, descriptor = _staged(final)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(final), exist_ok=True)
        staged, descriptor = _staged(final)
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


def _staged(final: str) -> tuple[str, int]:
    """
    Create a temporary file next to *final*, and return its name and descriptor.

    The name is random and the file is new: another user of the folder can neither guess the name
    nor make it a link to a file of this user.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    for _ in range(_STAGED_ATTEMPTS - 1):
        staged = f"{final}#{secrets.randbits(_STAGED_BITS)}"
        try:
            return staged, os.open(staged, flags, 0o666)
        except FileExistsError:
            continue
    staged = f"{final}#{secrets.randbits(_STAGED_BITS)}"
    return staged, os.open(staged, flags, 0o666)


def _write(descriptor: int, data: Buffers) -> None:
    pieces = pieces_of(data)
    for start in range(0, len(pieces), _PIECES_MAX):
        waiting = [memoryview(piece) for piece in pieces[start : start + _PIECES_MAX]]
        unwritten = sum(piece.nbytes for piece in waiting)
        while unwritten:
            written = os.writev(descriptor, waiting)
            unwritten -= written
            if unwritten:  # a full disk raises an error in the next call
                waiting = _rest(waiting, written)


def _rest(pieces: list[memoryview], written: int) -> list[memoryview]:
    """Return what remains of *pieces* after the first *written* bytes."""
    for index, piece in enumerate(pieces):
        if written < piece.nbytes:
            return [piece.cast("B")[written:], *pieces[index + 1 :]]
        written -= piece.nbytes
    return []


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it does not exist, or the first error is raised


def with_folders(write: Callable[[], object]) -> None:
    """Run *write*, and repeat it if its folder was deleted along with the last object in it."""
    for _ in range(_WRITE_ATTEMPTS - 1):
        try:
            write()
        except (obstore_errors.NotFoundError, FileNotFoundError) as error:
            if is_missing_bucket(error):
                raise
        else:
            return
    write()
