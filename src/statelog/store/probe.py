"""
Probe whether a store honours put-if-absent, on which commits depend.

A server that ignores the condition answers every put with success, so two drivers could both
commit.  So it is probed once, before the first claim, with an object of a random name.
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
"""URLs of stores that passed the probe in this process."""


def verify_put_if_absent(
    store: ObjectStore,
    paths: LocationPaths,
    pause: Callable[[float], None] = lambda seconds: None,
) -> None:
    """
    Check that *store* refuses a put-if-absent of a name that is taken.

    Probed once for each URL and process.  Local disk and memory need no probe, and neither does a
    store of the caller's own class, which must pass the store contract.

    Args:
        store: The store of the location.
        paths: The location in the store; the probe is stored in its temporary folder.
        pause: Waits so many seconds if the store answers "exists" and returns no object.

    Raises:
        StoreError: The store ignores the condition (`reason` "put_if_absent"), or it failed.

    Blocks: On the store: three requests the first time, none afterwards.
    """
    kind = kind_of(store.url)
    if kind is None or not kind.is_remote or store.url in _verified:
        return
    path = paths.temporary(f"probe-{os.urandom(16).hex()}")
    try:
        # A refusal of the first put proves nothing: S3 answers 409 for a free name too, and a client
        # that lost an answer finds its own object.  After this call the object exists.
        put_or_find(store, path, _CONTENT, lambda: store.head(path), pause)
        try:
            # Other content: after a lost answer a store takes the same content for its own put.
            store.put_if_absent(path, _CONTENT + b"again\n")
        except ObjectExistsError:
            _verified.add(store.url)
            return
        raise StoreError(
            f"{store.url} writes a name twice in spite of the condition If-None-Match: *, so two "
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
    """Delete the probe if possible; garbage collection deletes a remaining one."""
    try:
        store.delete([path])
    except StoreError:
        pass
