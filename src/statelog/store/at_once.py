"""
Save round trips: send several requests at once, and read the end of an object in one request.

Local disk and memory answer faster than a thread starts, and a simulated store draws its faults in the
order of the requests: there the requests are sent one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from statelog.runtime.background import together
from statelog.store.api import ObjectStore

T = TypeVar("T")
U = TypeVar("U")


def endpoint_of(store: ObjectStore) -> str | None:
    """
    Return the server and bucket that serve a store, as text without secrets.

    None for local disk and memory, and for a store of a caller's own class, unless it has an
    attribute `endpoint`.
    """
    endpoint: str | None = getattr(store, "endpoint", None)
    return endpoint


def ask_at_once(store: ObjectStore, requests: Iterable[Callable[[], T]]) -> list[T]:
    """
    Return the answers to requests of *store*, in the order of the requests.

    Args:
        store: The store that the requests use.
        requests: Each sends one request, or several that depend on each other.

    Raises:
        Exception: The error of the first request that failed.

    Blocks: On the store, until every request that was begun has ended.
    """
    waiting = list(requests)
    if len(waiting) < 2 or endpoint_of(store) is None:
        return [request() for request in waiting]
    return together(waiting)


def ask_both(store: ObjectStore, first: Callable[[], T], second: Callable[[], U]) -> tuple[T, U]:
    """Return the answers to two requests of *store*; errors and `Blocks:` as `ask_at_once`."""
    firsts: list[T] = []
    seconds: list[U] = []
    ask_at_once(store, [lambda: firsts.append(first()), lambda: seconds.append(second())])
    return firsts[0], seconds[0]


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
        tail: tuple[memoryview, int] = get_tail(path, length)
        return tail
    size = store.head(path).size_bytes
    start = max(0, size - length)
    return store.get_range(path, start, size - start), size
