"""
Check the names of objects in metadata, which may be forged.

A handle names an object relative to the root of the store.  Metadata from another source must not
make a reader open, or a clean-up delete, anything outside of that root.  So every name passes
through `checked_path` when metadata is decoded.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from statelog.errors import CorruptionError

_LENGTH_MAX: Final = 1024
"""The limit of S3, GCS and Azure for a name."""
_DECODINGS: Final = 3
"""A name that is still encoded after so many decodings is refused."""
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:/|$)|[A-Za-z]:")


def checked_path(path: object) -> str:
    """
    Return *path* if it is the name of an object below the root of a store.

    Raises:
        CorruptionError: It is no text; it is empty, absolute, a URL, or a name with `..`, an empty
            part, a backslash or a control character, plain or percent-encoded.
    """
    if isinstance(path, str):
        problem = _problem(path)
        plain = path
        for _ in range(_DECODINGS if "%" in path else 0):
            before, plain = plain, unquote(plain)
            problem = problem or _problem(plain)
            if before == plain:
                break
        else:
            if "%" in plain and unquote(plain) != plain:
                problem = problem or "is percent-encoded several times"
        if problem is None:
            return path
    else:
        problem = "is no text"
    raise CorruptionError(
        f"the metadata names the object {path!r:.200}, which {problem}; a name must lie below the "
        "root of the location. The metadata was forged or damaged, and nothing is read or deleted",
        path=str(path)[:200],
    )


def _problem(path: str) -> str | None:
    """Return why *path* is not the name of an object; None if it is."""
    if not path or len(path) > _LENGTH_MAX:
        return "is empty or too long"
    if _FORBIDDEN.search(path):
        return "has a backslash or a control character"
    if path.startswith("/") or _SCHEME.match(path):
        return "is absolute or a URL"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "has an empty part or '..'"
    return None
