"""The seam to object stores: local disk, memory, S3, GCS, Azure.  Every path is made here."""

from statelog.store.api import Buffers, ObjectInfo, ObjectStore
from statelog.store.cached import CachedStore
from statelog.store.object_store import ObstoreStore, open_store
from statelog.store.paths import LocationPaths

__all__ = [
    "Buffers",
    "CachedStore",
    "LocationPaths",
    "ObjectInfo",
    "ObjectStore",
    "ObstoreStore",
    "open_store",
]
