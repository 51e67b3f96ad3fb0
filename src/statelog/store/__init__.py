"""Object stores on local disk, memory, S3, GCS and Azure: their interface and object names."""

from typing import TYPE_CHECKING

from statelog.store.api import Buffers, ObjectInfo, ObjectStore
from statelog.store.location_store import (
    LocationStore,
    open_existing_store,
    open_location,
    open_query_files,
)
from statelog.store.object_store import ObstoreStore, open_store
from statelog.store.paths import PATHS, LocationPaths
from statelog.store.requests import ask_at_once, ask_both, endpoint_of
from statelog.store.verified import CachedStore, read_verified

if TYPE_CHECKING:
    from statelog.store.encryption import EncryptedStore
    from statelog.store.probe import verify_put_if_absent

__all__ = [
    "ask_at_once",
    "ask_both",
    "endpoint_of",
    "Buffers",
    "CachedStore",
    "EncryptedStore",
    "LocationPaths",
    "PATHS",
    "LocationStore",
    "ObjectInfo",
    "ObjectStore",
    "ObstoreStore",
    "open_existing_store",
    "open_location",
    "open_query_files",
    "open_store",
    "read_verified",
    "verify_put_if_absent",
]


def __getattr__(name: str) -> object:
    # Public names, imported at their first use.
    if name == "EncryptedStore":
        from statelog.store.encryption import EncryptedStore

        return EncryptedStore
    if name == "verify_put_if_absent":
        from statelog.store.probe import verify_put_if_absent

        return verify_put_if_absent
    raise AttributeError(f"{__name__} does not have the attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
