"""Open the store of a location: obstore's where it has a client, else one of fsspec."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from statelog import arguments
from statelog.errors import InvalidOptionsError
from statelog.store.api import ObjectStore
from statelog.store.client import check_options
from statelog.store.location import is_known, normalize_url
from statelog.store.object_store import ObstoreStore

if TYPE_CHECKING:
    from statelog.store.fsspec_store import FsspecStore


def open_store(
    location: str | os.PathLike[str],
    *,
    options: Mapping[str, object] | None = None,
    fsync: bool = True,
) -> ObstoreStore | FsspecStore:
    """
    Return the store rooted at *location*; no request is sent before the first use.

    Args:
        location: A path, or a `file://`, `memory://`, `s3://` (`s3a://`), `gs://`, `az://`
            (`abfs://`) URL.  Other schemes (hdfs, sftp, ...) use fsspec.
        options: Client options of obstore (region, endpoint, credentials, ...).  Missing ones are
            taken from the usual environment variables of the process that uses the store.
            `backend="fsspec"` uses fsspec for any location; the other options are then arguments
            of its file system.
        fsync: On local disk, make every object durable (file and folders) before a put returns.
            False leaves it to the operating system: a power failure may then lose objects that
            were acknowledged.

    Raises:
        InvalidOptionsError: The location is invalid, or an option is unknown.
    """
    location = arguments.path(location, "location", error=InvalidOptionsError)
    arguments.switch(fsync, "fsync", error=InvalidOptionsError)
    settings = dict(
        arguments.instance(
            {} if options is None else options,
            "options",
            Mapping,
            "a mapping of names to values",
            error=InvalidOptionsError,
        )
    )
    backend = settings.pop("backend", "obstore" if is_known(location) else "fsspec")
    if backend == "fsspec":
        from statelog.store.fsspec_store import open_fsspec_store

        return open_fsspec_store(location, settings)
    if backend != "obstore":
        raise InvalidOptionsError(f"store option backend is {backend!r}; use obstore or fsspec")
    url = normalize_url(location)
    check_options(url, settings)
    return ObstoreStore(url, settings, fsync)


# Take a location where a store is expected, as Flink takes a path.


def as_store(
    location: str | os.PathLike[str] | ObjectStore, name: str, methods: Sequence[str]
) -> ObjectStore:
    """Return the store at *location*, or *location* itself if it is a store."""
    if isinstance(location, str | os.PathLike):
        return open_store(arguments.path(location, name))
    missing = [method for method in methods if not callable(getattr(location, method, None))]
    if missing:
        expected = f"an ObjectStore, a path or a URL (it has no {', '.join(missing)})"
        raise arguments.refused(name, expected, location)
    return location
