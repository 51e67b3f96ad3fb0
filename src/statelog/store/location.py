"""
Locations: what people type, as one URL for each root of a store.

Plain paths, Hadoop's spellings (`s3a://`, `abfss://`, `file:/path`) and URLs come in; a URL that
obstore understands comes out, and coming in again it stays the same.
"""

from __future__ import annotations

import enum
import os
import urllib.parse
from typing import Final

from statelog.errors import InvalidOptionsError

_SCHEME_ALIASES: Final = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "az",
    "abfss": "az",
    "adl": "az",
    "azure": "az",
}


class StoreKind(enum.Enum):
    """Which client a URL needs."""

    LOCAL = "file"
    MEMORY = "memory"
    S3 = "s3"
    GCS = "gs"
    AZURE = "az"

    @property
    def is_remote(self) -> bool:
        """Whether requests leave this process for a server."""
        return self not in (StoreKind.LOCAL, StoreKind.MEMORY)


def kind_of(url: str) -> StoreKind | None:
    """Return the kind of a normalized URL; None for a store that is not opened here."""
    scheme = url.partition(":")[0]
    return next((kind for kind in StoreKind if kind.value == scheme), None)


def is_known(location: str) -> bool:
    """Return whether *location* is a path or a URL that obstore has a client for."""
    scheme, separator, _ = location.partition("://")
    if not separator or len(scheme) < 2 or "/" in scheme:
        return True
    scheme = scheme.lower()
    return kind_of(f"{_SCHEME_ALIASES.get(scheme, scheme)}:") is not None


def normalize_url(location: str) -> str:
    """
    Return *location* as a URL that obstore understands.

    Plain paths become `file://` URLs; `s3a://`, `abfs://` and the like become obstore's spelling.

    Raises:
        InvalidOptionsError: The location is empty, names no bucket, or its scheme is unknown.
    """
    if not location:
        raise InvalidOptionsError("a store location must not be empty")
    scheme, separator, rest = location.partition(":")
    if not separator or len(scheme) < 2 or "/" in scheme:  # a plain path (or a drive letter)
        return _file_url(location)
    scheme = _SCHEME_ALIASES.get(scheme.lower(), scheme.lower())
    kind = kind_of(f"{scheme}:")
    if kind is None:
        raise InvalidOptionsError(
            f"cannot open {location!r}: unknown scheme {scheme!r}; use a path, file://, memory://, "
            "s3:// (s3a://), gs://, az:// or abfs://"
        )
    if kind is StoreKind.LOCAL:
        # Hadoop and Spark write file:/path, URLs have file:///path: both are one absolute path.
        return _file_url("/" + urllib.parse.unquote(rest).lstrip("/"))
    if kind is StoreKind.MEMORY:
        return "memory://" + rest.strip("/")
    if not rest.startswith("//") or not rest[2:].partition("/")[0]:
        bucket = "container" if kind is StoreKind.AZURE else "bucket"
        raise InvalidOptionsError(f"{location!r} names no {bucket}; write {scheme}://{bucket}/path")
    return f"{scheme}:{rest}".rstrip("/")


def _file_url(path: str) -> str:
    # Only "%" is quoted: the URL stays what people typed, and reading it back is exact.
    return "file://" + os.path.abspath(path).replace("%", "%25")


def local_path(url: str) -> str | None:
    """Return the directory of a normalized `file://` URL, None for every other URL."""
    if kind_of(url) is not StoreKind.LOCAL:
        return None
    return urllib.parse.unquote(url.removeprefix("file://"))
