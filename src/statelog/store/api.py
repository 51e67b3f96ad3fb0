"""
The operations that statelog requires of a store, and their guarantees.

Names are relative to the root of the store, with "/" between parts.  Objects are immutable: a
name is written once and never reused, so there is no operation that overwrites.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from statelog.format.buffers import Buffer, Buffers

__all__ = ["Buffer", "Buffers", "ObjectInfo", "ObjectStore"]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """
    An object in a listing.

    Args:
        path: Name relative to the root of the store.
        size_bytes: Length of the object.
        last_modified: Time of the last write by the store's clock (UTC).
    """

    path: str
    size_bytes: int
    last_modified: dt.datetime


class ObjectStore(Protocol):
    """
    A store of objects by name.

    An implementation must not return from a put before the object is durable, must show an object
    whole or not at all, and must let exactly one of several concurrent `put_if_absent` calls win.

    Blocks: For the store.   Thread: any; all methods may be called concurrently.
    """

    @property
    def url(self) -> str:
        """The URL of the store's root for display, without secrets."""
        ...

    def put(self, path: str, data: Buffers) -> None:
        """Write a new object, whose name is unique by construction; durable on return."""
        ...

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """
        Write a new object atomically and durably, or raise `ObjectExistsError`.

        The error may also mean that another request for the name is in progress (S3's 409), or that
        an earlier attempt of this call succeeded and its answer was lost.  So `create` and
        `put_or_find` in `statelog.store.verified` are the only callers in statelog, except
        for the probe.
        """
        ...

    def get(self, path: str) -> memoryview:
        """Return the whole object, or raise `ObjectNotFoundError`."""
        ...

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only at the end of the object."""
        ...

    def head(self, path: str) -> ObjectInfo:
        """Return the size and age of an object, or raise `ObjectNotFoundError`."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder *prefix*, in no particular order."""
        ...

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below the folder *prefix*."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; names that do not exist are ignored."""
        ...


class StoreWrapper:
    """The operations that a wrapping store passes on."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    @property
    def url(self) -> str:
        """The URL of the store's root, without secrets."""
        return self._store.url

    @property
    def endpoint(self) -> str | None:
        """The server of the store; see `statelog.store.requests.endpoint_of`."""
        endpoint: str | None = getattr(self._store, "endpoint", None)
        return endpoint

    @property
    def local_root(self) -> str | None:
        """The directory of the store if it is on local disk, otherwise None."""
        root: str | None = getattr(self._store, "local_root", None)
        return root

    def head(self, path: str) -> ObjectInfo:
        """Return the size and age of an object, or raise `ObjectNotFoundError`."""
        return self._store.head(path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder *prefix*."""
        return self._store.list(prefix)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below the folder *prefix*."""
        return self._store.list_folders(prefix)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; names that do not exist are ignored."""
        self._store.delete(paths)
