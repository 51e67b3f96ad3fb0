"""
Put-if-absent with a read that resolves an ambiguous answer.

In the stores of statelog "exists" means that another object has the name.  In a store of a user's own
class it has three causes: another writer has the name, the client repeated a request whose answer was
lost and found its own object, or S3 answered 409 because another request for the name was in progress.
After the third the name may be free, so the same name must be put again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from statelog.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from statelog.store.api import Buffers, ObjectStore

_ATTEMPTS: Final = 8
_FIRST_PAUSE_S: Final = 0.01
"""Doubled after each attempt: all pauses together take 1.27 s."""

_Found = TypeVar("_Found")


def put_or_find(
    store: ObjectStore,
    path: str,
    data: Buffers,
    find: Callable[[], _Found],
    pause: Callable[[float], None],
) -> _Found | None:
    """
    Put an object, or return the one that has its name.

    Args:
        store: The store.
        path: Its name; no other name is tried.
        data: Its content.
        find: Reads the object back and raises `ObjectNotFoundError` if there is none.
        pause: Waits the given number of seconds between two attempts.

    Returns:
        None if the put was answered with success; else what *find* returned, which may be this
        caller's own object.

    Raises:
        StoreError: The store failed, or answered "exists" to every attempt, and no object has the
            name.  The object may appear later; the call can be repeated.

    Blocks: On the store; up to 1.3 s more while the store answers "exists" and returns no object.
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
                        "times that the name is taken, but no object is there. Another request for "
                        "the name may be under way (S3: 409 ConditionalRequestConflict); repeat "
                        "the call, or restart the job",
                        path=path,
                        url=store.url,
                        operation="put-if-absent",
                    ) from error
        pause(pause_s)
        pause_s *= 2
    raise AssertionError("the last attempt returns or raises")
