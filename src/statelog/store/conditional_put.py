"""
Put-if-absent with a read that resolves an ambiguous answer.

The answer "exists" has three causes: another writer has the name, a request whose answer was lost was
repeated and found its own object, or S3 answered 409 because another request for the name was in progress.
After the third the name may be free, so the same name must be put again.  After an error of the store the
object may exist too.  So the object is read back after every answer but success.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from statelog.errors import (
    CorruptionError,
    IncompatibleFormatError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from statelog.format.buffers import same_content
from statelog.runtime.clock import pause as wait
from statelog.store.api import Buffers, ObjectStore
from statelog.store.verified import get_again

_ATTEMPTS: Final = 8
_FIRST_PAUSE_S: Final = 0.01
"""Doubled after each attempt: all pauses together take 1.27 s."""

_Found = TypeVar("_Found")


def create(
    store: ObjectStore, path: str, data: Buffers, pause: Callable[[float], None] = wait
) -> None:
    """
    Create an object, or raise `ObjectExistsError` if another one has its name.

    An object with the same content is this call's own.  So a content that must tell its writer
    contains something that no other writer's has.
    """

    def is_same() -> bool:
        # A second read, because one bad read would make this call's own object another's.
        reads = (lambda: store.get(path), lambda: get_again(store, path))
        return any(_is_content(read, data) for read in reads)

    if put_or_find(store, path, data, is_same, pause) is False:
        raise ObjectExistsError(
            f"put-if-absent {path} in {store.url}: another object has the name",
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
    Put an object, or return the one that has its name.

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
