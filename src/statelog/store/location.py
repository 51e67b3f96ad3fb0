"""
Locations: normalize what users write to one URL for each root of a store.

Plain paths, Hadoop's spellings (`s3a://`, `abfss://`, `file:/path`) and URLs become a URL that
obstore supports; a normalized URL is unchanged.
"""

from __future__ import annotations

import enum
import os
import urllib.parse
from typing import Final

from statelog.errors import InvalidOptionsError

_SCHEME_ALIASES: Final = {
    "local": "file",
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "az",
    "abfss": "az",
    "adl": "az",
    "azure": "az",
}


class StoreKind(enum.Enum):
    """The kind of client that a URL needs."""

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
    """Return the kind of a normalized URL; None for other stores."""
    scheme = url.partition(":")[0]
    return next((kind for kind in StoreKind if kind.value == scheme), None)


def is_known(location: str) -> bool:
    """Return whether *location* is a path or a URL that obstore supports."""
    scheme, separator, _ = location.partition("://")
    if not separator or len(scheme) < 2 or "/" in scheme:
        return True
    scheme = scheme.lower()
    return kind_of(f"{_SCHEME_ALIASES.get(scheme, scheme)}:") is not None


def normalize_url(location: str) -> str:
    """
    Return *location* as a URL that obstore supports.

    Plain paths become `file://` URLs; `s3a://`, `abfs://` and the like become obstore's spelling.

    Raises:
        InvalidOptionsError: The location is empty, names no bucket, or its scheme is unknown.
    """
    if not location:
        raise InvalidOptionsError("the store location is empty; give a path or a URL")
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
        # Without its slashes, credentials in the URL would not be recognized, and shown.
        shown = repr(location) if rest.startswith("//") or "@" not in rest else f"the {scheme} URL"
        raise InvalidOptionsError(f"{shown} names no {bucket}; write {scheme}://{bucket}/path")
    return f"{scheme}:{rest}".rstrip("/")


def _file_url(path: str) -> str:
    # Only "%" is quoted, so the URL stays readable and converts back exactly.
    return "file://" + os.path.abspath(path).replace("%", "%25")


def local_path(url: str) -> str | None:
    """Return the directory of a normalized `file://` URL, None for every other URL."""
    if kind_of(url) is not StoreKind.LOCAL:
        return None
    return urllib.parse.unquote(url.removeprefix("file://"))
