"""
Decide which locations may be opened as parents of a fork.

What a location stores about it is a claim, not a permission.

A reader that follows a stored URL acts with the rights of its caller.  So the URL is followed only
to the same bucket (or host) as the location, or to a place that the caller named, and this is
checked before a connection is made.  Then the parent must agree: its tag of the fork names the
location.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    InvalidOptionsError,
)
from statelog.format.buffers import decode_json
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.store.api import ObjectStore
from statelog.store.location import local_path, normalize_url
from statelog.store.paths import PATHS
from statelog.store.verified import read_verified

OPTION: Final = "parents"
"""The store option that lists locations that may be opened as parents."""
ENVIRONMENT: Final = "STATELOG_PARENTS"
"""The environment variable with these locations if the option is not set."""
TAG_SECTION: Final = b"TAGS"
"""The section of a tag with its facts."""
_SECTION: Final = b"PRNT"
_LOCAL: Final = ("file", "memory")


class ParentReference(msgspec.Struct, frozen=True, kw_only=True):
    """
    The location of a fork's parent.

    Args:
        location: URL of the parent's location, without options.
        checkpoint_id: The checkpoint that was forked.
    """

    location: str
    checkpoint_id: int

    def encoded(self) -> bytes:
        """Return the content for the object `parents/<fork id>`."""
        return b"".join(SegmentWriter().finish({_SECTION: msgspec.json.encode(self)}))

    @classmethod
    def read(cls, store: ObjectStore, fork_id: str) -> ParentReference:
        """Read the reference to a fork's parent."""
        path = PATHS.parent(fork_id)
        segment = read_verified(store, path, lambda data: parse_segment(data, where=path))
        trailer = segment.trailer
        try:
            section = trailer.sections[_SECTION] if trailer else b""
            return decode_json(section, msgspec.json.Decoder(cls))
        except (KeyError, msgspec.DecodeError) as error:
            raise CheckpointError(
                f"{path} of {store.url} is not a reference to the parent of a fork: {error}",
                reason="damaged",
                path=path,
            ) from error


class _Tag(msgspec.Struct):
    facts: dict[str, object] = {}


def named_parents(options: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return the URLs that the caller specified as parents of forks."""
    urls = (options or {}).get(OPTION)
    if urls is None:
        urls = os.environ.get(ENVIRONMENT) or ()
    if isinstance(urls, str):
        urls = urls.split(",")
    if not isinstance(urls, Sequence) or not all(isinstance(url, str) for url in urls):
        raise InvalidOptionsError(
            f"store option {OPTION} is {urls!r}; pass the URLs of the parents of forks, separated by "
            "commas"
        )
    return tuple(_plain_url(url.strip()) for url in urls if url.strip())


def may_follow(location: str, parent: str, named: Sequence[str]) -> bool:
    """
    Return whether the parent location recorded in *location* may be opened.

    True for a location that the caller named, and for one with the scheme and the bucket, or the
    host, of *location*.  All of the local disk is one place.
    """
    if is_named(parent, named):
        return True
    if "::" in parent:  # fsspec would open the second of two places
        return False
    place = _place(parent)
    return place is not None and place == _place(location)


def is_named(parent: str, named: Sequence[str]) -> bool:
    """Return whether the caller specified this location as a parent."""
    return any(is_same_location(parent, url) for url in named)


def confirmed_by(parent: ObjectStore, path: str) -> str | None:
    """
    Return the location that a fork's tag records.

    None if the tag names none or is damaged.
    """
    try:
        trailer = read_verified(parent, path, lambda data: parse_segment(data, where=path)).trailer
        sections = {} if trailer is None else trailer.sections
        location = decode_json(sections[TAG_SECTION], msgspec.json.Decoder(_Tag)).facts.get(
            "location"
        )
    except (KeyError, CorruptionError, IncompatibleFormatError, msgspec.DecodeError):
        return None
    return location if isinstance(location, str) else None


def is_same_location(url: str, other: str) -> bool:
    """Return whether two URLs refer to the same location, resolving links on local disk."""
    first = _plain_url(url)
    second = _plain_url(other)
    if first == second:
        return True
    paths = local_path(first), local_path(second)
    if paths[0] is None or paths[1] is None:
        return False
    return os.path.realpath(paths[0]) == os.path.realpath(paths[1])


def _plain_url(location: str) -> str:
    try:
        return normalize_url(location).rstrip("/")
    except (InvalidOptionsError, ValueError):
        return location.rstrip("/")


def _place(location: str) -> tuple[str, str] | None:
    """Return the scheme of a location, and its bucket or host."""
    scheme, separator, rest = _plain_url(location).partition("://")
    if not separator:
        return None
    return scheme, "" if scheme in _LOCAL else rest.partition("/")[0]
