"""
A store that caches the objects read last.

Objects never change, so a cached copy is always valid.  Tasks of one worker read the object of a
micro-batch several times within seconds; the cache saves the repeated requests.
"""

from __future__ import annotations

import threading  # noqa: TID251 - only a lock around dicts and counters
from collections import OrderedDict

from statelog.format.buffers import pieces_of
from statelog.store.api import Buffers, ObjectStore, StoreWrapper
from statelog.store.verified import get_again


class CachedStore(StoreWrapper):
    """
    An `ObjectStore` that keeps objects it read whole, and evicts the least recently used.

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
        """Keep an object if it is not too large, and evict others for it."""
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
        """Forget an object; the caller holds the lock."""
        dropped = self._objects.pop(path, None)
        self._bytes -= 0 if dropped is None else len(dropped)
        self._verified.pop(path, None)

    def get_again(self, path: str) -> memoryview:
        """Return the whole object, read from the store past all caches."""
        with self._lock:
            self._drop(path)
        return self._keep(path, get_again(self._store, path))

    def is_verified(self, path: str, crc32c: int) -> bool:
        """Return whether the cached object was found to have this checksum."""
        return self._verified.get(path) == crc32c

    def note_verified(self, path: str, crc32c: int) -> None:
        """Record the checksum of an object, so that its cached copy is not verified again."""
        if path in self._objects:
            self._verified[path] = crc32c

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return part of the object, from memory if the object is cached."""
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
