"""
Send several requests at once, to a store whose requests take a round trip.

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
