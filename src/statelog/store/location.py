"""
Locations: normalize what users write to one URL for each root of a store.

Plain paths, Hadoop's spellings (`s3a://`, `abfss://`, `file:/path`) and URLs become a URL that
obstore supports; a normalized URL is unchanged.
"""

from __future__ import annotations

import os
import urllib.parse

from statelog.errors import InvalidOptionsError
from statelog.store.schemes import BY_NAME, BY_SPELLING, LOCAL, MEMORY, SCHEMES, Scheme


def kind_of(url: str) -> Scheme | None:
    """Return the scheme of a normalized URL; None for other stores."""
    return BY_NAME.get(url.partition(":")[0])


def is_known(location: str) -> bool:
    """Return whether *location* is a path or a URL that obstore supports."""
    scheme, separator, _ = location.partition("://")
    if not separator or len(scheme) < 2 or "/" in scheme:
        return True
    return scheme.lower() in BY_SPELLING


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
    kind = BY_SPELLING.get(scheme.lower())
    if kind is None:
        spellings = ", ".join(scheme.spelling for scheme in SCHEMES)
        raise InvalidOptionsError(
            f"cannot open {location!r}: unknown scheme {scheme.lower()!r}; use a path, {spellings}"
        )
    if kind is LOCAL:
        # Hadoop and Spark write file:/path, URLs have file:///path: both are one absolute path.
        return _file_url("/" + urllib.parse.unquote(rest).lstrip("/"))
    if kind is MEMORY:
        return "memory://" + rest.strip("/")
    if not rest.startswith("//") or not rest[2:].partition("/")[0]:
        # Without its slashes, credentials in the URL would not be recognized, and shown.
        text = (
            repr(location) if rest.startswith("//") or "@" not in rest else f"the {kind.name} URL"
        )
        raise InvalidOptionsError(
            f"{text} names no {kind.bucket}; write {kind.name}://{kind.bucket}/path"
        )
    return f"{kind.name}:{rest}".rstrip("/")


def _file_url(path: str) -> str:
    # Only "%" is quoted, so the URL stays readable and converts back exactly.
    return "file://" + os.path.abspath(path).replace("%", "%25")


def local_path(url: str) -> str | None:
    """Return the directory of a normalized `file://` URL, None for every other URL."""
    if kind_of(url) is not LOCAL:
        return None
    return urllib.parse.unquote(url.removeprefix("file://"))
