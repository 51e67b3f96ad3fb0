"""
Does the store keep its word?  Commits rest on put-if-absent, and some servers ignore the condition.

Such a server answers every put with success: two drivers would both be told "committed".  So it is
asked once, before the first claim, with an object that nobody else knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from statelog.errors import ObjectExistsError, StoreError
from statelog.store.api import ObjectStore
from statelog.store.conditional_put import put_or_find
from statelog.store.location import kind_of
from statelog.store.paths import LocationPaths

_CONTENT: Final = b"statelog asks whether this store refuses to write a name twice\n"

_verified: set[str] = set()
"""URLs of stores that passed in this process."""


def verify_put_if_absent(
    store: ObjectStore,
    paths: LocationPaths,
    pause: Callable[[float], None] = lambda seconds: None,
) -> None:
    """
    Make sure that *store* refuses a put-if-absent of a name that is taken.

    Asked once for each URL and process.  Local disk and memory are known to be good; a store of
    another kind than those opened here vouches for itself, by passing the store contract.

    Args:
        store: Where the location is.
        paths: The location in the store; the probe lies in its temporary folder.
        pause: Waits so many seconds where the store answers "exists" and shows no object.

    Raises:
        StoreError: The store ignores the condition (`reason` "put_if_absent"), or it failed.

    Blocks: On the store: three requests the first time, none afterwards.
    """
    kind = kind_of(store.url)
    if kind is None or not kind.is_remote or store.url in _verified:
        return
    path = paths.temporary(f"probe-{os.urandom(16).hex()}")
    try:
        # A refusal of the first put is no proof: S3's 409 comes for a free name too, and a client
        # that lost an answer meets its own object.  Behind this line the object is there.
        put_or_find(store, path, _CONTENT, lambda: store.head(path), pause)
        try:
            store.put_if_absent(path, _CONTENT)
        except ObjectExistsError:
            _verified.add(store.url)
            return
        raise StoreError(
            f"{store.url} writes a name twice although it was asked not to (If-None-Match: *): two "
            "drivers could both commit. Use a server or version with conditional writes, for "
            "example S3, GCS, Azure or MinIO; docs/how-to/stores.md lists what statelog assumes",
            path=path,
            url=store.url,
            operation="put-if-absent",
            reason="put_if_absent",
        )
    finally:
        _delete_quietly(store, path)


def _delete_quietly(store: ObjectStore, path: str) -> None:
    """Leave the probe to the sweep if it cannot be deleted: the answer counts, not the rest."""
    try:
        store.delete([path])
    except StoreError:
        pass
