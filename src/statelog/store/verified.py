"""
Reads and writes whose results are verified.

A connection, a proxy or a cache may change or shorten what a store sends.  So an object is damaged
only if two reads returned the same wrong bytes, as many as the store says that it has.  Reads after
the first one use a new connection and no cache.

A put-if-absent is answered "exists" for three reasons: another writer has the name, a request whose
answer was lost was repeated and found its own object, or S3 answered 409 because another request
for the name was in progress.  After the third the name may be free, so the same name must be put
again.  After an error of the store the object may exist too.  So the object is read back after
every answer but success.

Objects never change, so a cached copy is always valid.  Tasks of one worker read the object of a
micro-batch several times within seconds; `CachedStore` saves the repeated requests.
"""

from __future__ import annotations

import logging
import threading  # noqa: TID251 - only a lock around dicts and counters
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol, TypeVar, runtime_checkable

from statelog.errors import (
    CorruptionError,
    IncompatibleFormatError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from statelog.format.buffers import checksum, pieces_of, same_content
from statelog.runtime.clock import pause as wait
from statelog.store.api import Buffers, ObjectInfo, ObjectStore, StoreWrapper
from statelog.store.requests import count_repeated

T = TypeVar("T")
_log = logging.getLogger("statelog")

_READS: Final = 5


class Source(Protocol):
    """A source of objects: an `ObjectStore`, a cache or local files."""

    @property
    def url(self) -> str:
        """The location of the source, for messages."""
        ...

    def get(self, path: str) -> memoryview:
        """Return the whole object, or raise `ObjectNotFoundError`."""
        ...


@runtime_checkable
class Rereadable(Protocol):
    """A source that can read an object without using its caches and open connections."""

    def get_again(self, path: str) -> memoryview:
        """Return the whole object, over a new connection and bypassing caches."""
        ...


@runtime_checkable
class _Listing(Protocol):
    """A source that can report the size of an object."""

    def head(self, path: str) -> ObjectInfo: ...


def get_again(source: Source, path: str) -> memoryview:
    """Return the whole object, bypassing caches and open connections if *source* can."""
    return source.get_again(path) if isinstance(source, Rereadable) else source.get(path)


def read_verified(
    source: Source,
    path: str,
    check: Callable[[memoryview], T],
    *,
    first: Callable[[], T] | None = None,
) -> T:
    """
    Return the result of *check* on an object; read it again before reporting damage.

    Args:
        source: Where the object is.
        path: Its name.
        check: Decodes the whole object, and raises if its bytes are wrong.
        first: Reads and decodes less than the whole object; the whole one is read if that fails.

    Raises:
        CorruptionError: Two reads returned the same wrong bytes: the object is damaged.
        IncompatibleFormatError: It has a different format version.
        StoreError: The store failed; or five reads returned wrong bytes, other ones each time or
            fewer than the object has (`reason` "transfer"): that says nothing about the object.

    Blocks: On the source.   Thread: any.
    """
    wrong: set[tuple[int, int]] = set()
    failed = ""
    if first is not None:
        try:
            return first()
        except (CorruptionError, IncompatibleFormatError) as error:
            failed = str(error)
    for _ in range(_READS):
        if failed:
            count_repeated()
        data = get_again(source, path) if failed else source.get(path)
        try:
            result = check(data)
        except (CorruptionError, IncompatibleFormatError) as error:
            content = len(data), checksum([data])
            if content in wrong and _stored_size(source, path) in (None, len(data)):
                raise _certain(error) from error.__cause__
            wrong.add(content)
            failed = str(error)
        else:
            if failed:
                _log.warning(
                    "a read of %s in %s returned wrong bytes, but a read over a new connection returned "
                    "correct bytes: the transfer failed, the object is intact (%s)",
                    path,
                    source.url,
                    failed,
                )
            return result
    raise StoreError(
        f"get {path} in {source.url} failed: {_READS} reads returned wrong bytes, different each time, "
        f"or fewer than the store reports (the last time: {failed}). The connection, a proxy or a "
        "cache changes data in transit; the object itself may be intact. Try again, and look for the "
        "cause there: going back to an older checkpoint does not help",
        path=path,
        url=source.url,
        operation="get",
        reason="transfer",
    )


def _stored_size(source: Source, path: str) -> int | None:
    """Return the size of an object as reported by its store, or None."""
    if not isinstance(source, _Listing):
        return None
    try:
        return source.head(path).size_bytes
    except StoreError as error:
        _log.debug("the size of %s in %s is unknown: %s", path, source.url, error)
        return None


def _certain(
    error: CorruptionError | IncompatibleFormatError,
) -> CorruptionError | IncompatibleFormatError:
    """Return the error for an object that was read twice with the same wrong bytes."""
    if isinstance(error, IncompatibleFormatError):
        return error
    return type(error)(
        f"{error.message} (read twice with the same bytes: the object itself is damaged)",
        **error.facts,
    )


_ATTEMPTS: Final = 8
_FIRST_PAUSE_S: Final = 0.01
"""Doubled after each attempt: all pauses together take 1.27 s."""

_Found = TypeVar("_Found")


def create(
    store: ObjectStore, path: str, data: Buffers, pause: Callable[[float], None] = wait
) -> None:
    """
    Create an object, or raise `ObjectExistsError` if one with that name exists.

    An object with the same content is this call's own.  So a content that must tell its writer
    contains something that no other writer's has.
    """

    def is_same() -> bool:
        # A second read, because one bad read would make this call's own object another's.
        reads = (lambda: store.get(path), lambda: get_again(store, path))
        return any(_is_content(read, data) for read in reads)

    if put_or_find(store, path, data, is_same, pause) is False:
        raise ObjectExistsError(
            f"put-if-absent {path} in {store.url}: a different object with this name already exists",
            path=path,
            url=store.url,
            operation="put-if-absent",
        )


def _is_content(read: Callable[[], memoryview], data: Buffers) -> bool:
    try:
        return same_content(read(), data)
    except (CorruptionError, IncompatibleFormatError):  # of an encrypted location
        return False


def put_or_find(
    store: ObjectStore,
    path: str,
    data: Buffers,
    find: Callable[[], _Found],
    pause: Callable[[float], None],
) -> _Found | None:
    """
    Write an object, or return the existing object of that name.

    Returns:
        None if the put was answered with success; else what *find* returned, which may be this
        caller's own object.
    """
    pause_s = _FIRST_PAUSE_S
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            store.put_if_absent(path, data)
            return None
        except StoreError as error:
            try:
                return find()
            except ObjectNotFoundError:
                if not isinstance(error, ObjectExistsError):
                    raise error from None
                if attempt == _ATTEMPTS:
                    raise StoreError(
                        f"put-if-absent {path} in {store.url} failed: the store answered {attempt} "
                        "times that the name exists, but there is no object. A different request for "
                        "the name may be in progress (S3: 409 ConditionalRequestConflict); repeat "
                        "the call, or restart the job",
                        path=path,
                        url=store.url,
                        operation="put-if-absent",
                    ) from error
        pause(pause_s)
        pause_s *= 2
    raise AssertionError("the last attempt must return or raise an error")


class CachedStore(StoreWrapper):
    """
    An `ObjectStore` that caches whole objects, evicting the least recently used.

    `objects_put` and `bytes_put` count what was written through it.

    Args:
        store: The store to cache.
        max_bytes: Bound of the kept objects; larger objects are not kept.

    Thread: any.
    """

    def __init__(self, store: ObjectStore, max_bytes: int) -> None:
        super().__init__(store)
        self._max_bytes = max_bytes
        self._objects: OrderedDict[str, memoryview] = OrderedDict()
        self._bytes = 0
        self._verified: dict[str, int] = {}
        self._lock = threading.Lock()
        self.objects_put = 0
        self.bytes_put = 0

    def get(self, path: str) -> memoryview:
        """Return the whole object, from memory if it is cached."""
        with self._lock:
            data = self._objects.get(path)
            if data is not None:
                self._objects.move_to_end(path)
                return data
        return self._keep(path, self._store.get(path))

    def _keep(self, path: str, data: memoryview) -> memoryview:
        """Cache an object unless it is too large, evicting others if necessary."""
        if len(data) > self._max_bytes:
            return data
        with self._lock:
            if path in self._objects:  # read by another thread meanwhile
                self._drop(path)
            self._objects[path] = data
            self._bytes += len(data)
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._objects)))
        return data

    def _drop(self, path: str) -> None:
        """Remove an object from the cache. Called under the lock."""
        dropped = self._objects.pop(path, None)
        self._bytes -= 0 if dropped is None else len(dropped)
        self._verified.pop(path, None)

    def get_again(self, path: str) -> memoryview:
        """Return the whole object, read from the store without caches."""
        with self._lock:
            self._drop(path)
        return self._keep(path, get_again(self._store, path))

    def is_verified(self, path: str, crc32c: int) -> bool:
        """Return whether the cached object has been verified against this checksum."""
        return self._verified.get(path) == crc32c

    def note_verified(self, path: str, crc32c: int) -> None:
        """Record the checksum of an object, so that its cached copy is not verified again."""
        if path in self._objects:
            self._verified[path] = crc32c

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return a part of the object, from memory if the object is cached."""
        # Without the lock: one look-up, and a part of an object is not a use that keeps it.
        data = self._objects.get(path)
        if data is not None:
            return data[start : start + length]
        return self._store.get_range(path, start, length)

    def put(self, path: str, data: Buffers) -> None:
        """Write a new object."""
        self._store.put(path, data)
        self._count(data)

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """Write a new object, or raise `ObjectExistsError`."""
        self._store.put_if_absent(path, data)
        self._count(data)

    def _count(self, data: Buffers) -> None:
        with self._lock:
            self.objects_put += 1
            self.bytes_put += sum(map(len, pieces_of(data)))
