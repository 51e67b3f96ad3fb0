"""Take a location where a store is expected, as Flink takes a path."""

from __future__ import annotations

import os
from collections.abc import Sequence

from statelog.arguments import path, refused
from statelog.store.api import ObjectStore
from statelog.store.opening import open_store


def as_store(
    location: str | os.PathLike[str] | ObjectStore, name: str, methods: Sequence[str]
) -> ObjectStore:
    """
    Return the store at *location*, or *location* itself if it is a store.

    Args:
        location: A path, a URL, or an object with all *methods*.
        name: The name of the argument, for the error.
        methods: What is called.

    Raises:
        UsageError: It is something else; the message names the methods that are missing.
    """
    if isinstance(location, str | os.PathLike):
        return open_store(path(location, name))
    missing = [method for method in methods if not callable(getattr(location, method, None))]
    if missing:
        wanted = f"an ObjectStore, a path or a URL (it has no {', '.join(missing)})"
        raise refused(name, wanted, location)
    return location
