"""
Read the end of an object, whose size is not known.

The client of a server has one request for that.  Elsewhere the size is asked for first.
"""

from __future__ import annotations

from statelog.store.api import ObjectStore


def read_tail(store: ObjectStore, path: str, length: int) -> tuple[memoryview, int]:
    """
    Return the last bytes of an object, and the size of the whole.

    Args:
        store: The store.  Its method `get_tail`, which has the same arguments, is used if it has one.
        path: Name of the object.
        length: How many bytes, >= 1; a smaller object is returned whole.

    Raises:
        ObjectNotFoundError: There is no such object.
        StoreError: The store failed.

    Blocks: On the store: one request, or two.
    """
    get_tail = getattr(store, "get_tail", None)
    if get_tail is not None:
        found: tuple[memoryview, int] = get_tail(path, length)
        return found
    size = store.head(path).size_bytes
    start = max(0, size - length)
    return store.get_range(path, start, size - start), size
