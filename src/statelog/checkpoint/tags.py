"""
Tags, which keep subsumed checkpoints readable and restorable.

A tag is one object, `tags/<kind>/<name>/<checkpoint>-<attempt>`.  Its name alone pins the
checkpoint, so one listing tells a clean-up what it must keep; its content is facts for people and
the position of the query.

A tag is safe while a query runs, without a lock.  The query lists the tags after a commit and
before it deletes what that commit subsumed, once for many commits.  A new tag is put first, and
then counts only if the newest checkpoint still retains the tagged one: every later clean-up sees
the tag.
Format: docs/reference/formats/tags.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from statelog.arguments import text, whole_number
from statelog.checkpoint.history import Entries, present_ids
from statelog.checkpoint.retained import Tag, TagKind, delete_tag, list_tags, retained_with
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    UsageError,
)
from statelog.format.buffers import decode_json, decode_msgpack
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model import Json, JsonObject
from statelog.model.handles import checked_path
from statelog.store import PATHS, ObjectStore, read_verified
from statelog.store.parents import TAG_SECTION
from statelog.store.verified import create

_FILES_SECTION: Final = b"FILE"
_POSITION_FILE: Final = re.compile(r"(?:offsets|commits)/\d+|sources/[^/]+/[^/]+")
"""The position files of a query, which a tag stores."""
_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class TagContent(msgspec.Struct, frozen=True, kw_only=True):
    """
    The content of a tag's object.

    Args:
        created_at_ms: Milliseconds since 1970 (UTC).
        facts: For people: a comment; the location that depends on the checkpoint.
        files: Files of the query's checkpointLocation that hold the source position, by name.
    """

    created_at_ms: int
    facts: JsonObject = {}
    files: dict[str, bytes] = {}


class _Stored(msgspec.Struct):
    version: int
    created_at_ms: int
    facts: JsonObject


_files_decoder: Final = msgspec.msgpack.Decoder(dict[str, bytes])


def put_tag(
    store: ObjectStore,
    tag: Tag,
    *,
    clock_ms: Callable[[], int],
    facts: Mapping[str, Json] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Tag:
    """
    Pin a checkpoint; a reader that moves on puts a second tag, then deletes the first.

    Returns:
        The tag with its path.
    """
    check_name(tag.name)
    whole_number(tag.checkpoint_id, "checkpoint", low=0)
    if tag.kind is not TagKind.READER:
        _check_free(store, tag)
    attempt = os.urandom(8).hex()
    path = PATHS.tag(tag.kind.value, tag.name, tag.checkpoint_id, tag.newest, attempt)
    content = TagContent(created_at_ms=clock_ms(), facts=dict(facts or {}), files=dict(files or {}))
    # Put first and check then: from the put on every clean-up sees the tag.
    create(store, path, _encoded(content))
    new = Tag(
        kind=tag.kind,
        name=tag.name,
        checkpoint_id=tag.checkpoint_id,
        newest=tag.newest,
        path=path,
    )
    try:
        if tag.kind is not TagKind.READER:
            _check_free(store, new)
        _check_retained(store, new)
    except (CheckpointError, UsageError):
        delete_tag(store, new)
        raise
    return new


def find_tag(store: ObjectStore, name: str, kind: TagKind) -> Tag:
    """Return the tag with the given name."""
    tags = [tag for tag in list_tags(store) if tag.kind is kind]
    for tag in tags:
        if tag.name == name:
            return tag
    names = ", ".join(tag.name for tag in tags) or "none"
    raise CheckpointError(
        f"{store.url} does not have a {kind.value} {name!r} (existing: {names}); "
        "`statelog tag LOCATION` lists them",
        reason="not_found",
    )


def read_tag(store: ObjectStore, tag: Tag) -> TagContent:
    """Return the content of a tag."""
    path = tag.path
    trailer = read_verified(store, path, lambda data: parse_segment(data, where=path)).trailer
    sections: Mapping[bytes, bytes] = {} if trailer is None else trailer.sections
    try:
        stored = decode_json(sections[TAG_SECTION], msgspec.json.Decoder(_Stored))
        files = decode_msgpack(sections[_FILES_SECTION], _files_decoder)
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptionError(
            f"damaged tag {tag.path}: its content is not a valid tag ({error})", path=tag.path
        ) from error
    if stored.version > _VERSION:
        raise IncompatibleFormatError(
            f"{tag.path} is a tag of version {stored.version}; this version of statelog reads up to "
            f"{_VERSION}: upgrade statelog",
            path=tag.path,
        )
    for name in files:
        # They are written into a checkpointLocation later: a forged name must not lead out of it.
        if not _POSITION_FILE.fullmatch(checked_path(name)):
            raise CorruptionError(
                f"damaged or forged tag {path}: it contains the file {name!r:.200}, but a query "
                "position consists only of files in offsets/, commits/ and sources/. Nothing was "
                "written",
                path=path,
            )
    return TagContent(created_at_ms=stored.created_at_ms, facts=stored.facts, files=files)


def check_name(name: str) -> str:
    """Check that *name* is a valid tag name, and return it."""
    if not _NAME.fullmatch(text(name, "name")):
        raise UsageError(
            f"{name!r} is not a valid tag name: use up to 100 letters, digits, '.', '_' and '-', "
            "with a letter or digit first"
        )
    return name


def _encoded(content: TagContent) -> bytes:
    stored = _Stored(_VERSION, content.created_at_ms, content.facts)
    sections = {
        TAG_SECTION: msgspec.json.encode(stored),
        _FILES_SECTION: msgspec.msgpack.encode(content.files),
    }
    return b"".join(SegmentWriter().finish(sections))


def _check_free(store: ObjectStore, tag: Tag) -> None:
    """Check that no other tag has the same kind and name as *tag*."""
    for other in list_tags(store):
        if (other.kind, other.name) == (tag.kind, tag.name) and other.path != tag.path:
            raise UsageError(
                f"{store.url} already has a {tag.kind.value} {tag.name!r}, which pins checkpoint "
                f"{other.checkpoint_id}; use a different name, or remove the tag (`statelog tag --remove`) first"
            )


def _check_retained(store: ObjectStore, tag: Tag) -> None:
    ids = present_ids(store)
    newest = Entries(store, ids).newest()
    retained: tuple[int, ...] = ()
    if newest is not None:
        # The new tag itself must not be the reason that the checkpoint counts as retained.
        others = [other.pin for other in list_tags(store) if other.path != tag.path]
        retained = newest.retained
        if tag.checkpoint_id in retained_with(store, others, newest, ids):
            return
    ids_text = ", ".join(map(str, retained)) or "none"
    exists = tag.checkpoint_id in ids
    what = "is no longer retained" if exists else "does not exist"
    raise CheckpointError(
        f"checkpoint {tag.checkpoint_id} of {store.url} {what} (retained: {ids_text}), so it cannot be "
        "pinned; choose a retained one. To keep more checkpoints, raise retainedCheckpoints",
        reason="subsumed" if exists else "not_found",
        checkpoint_id=tag.checkpoint_id,
    )


# The position of a reader that follows a location, stored in the location under a name.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    """
    Moves the position of one reader.

    Args:
        store: The store of the location.
        name: Name of the reader.
        newest: Its position holds checkpoints only among so many newest ids; >= 1.
        clock_ms: Milliseconds since 1970 (UTC).

    Raises:
        UsageError: The name has other characters than letters, digits, ".", "_" and "-".
    """

    store: ObjectStore
    name: str
    newest: int
    clock_ms: Callable[[], int]

    def __post_init__(self) -> None:
        check_name(self.name)

    def current(self) -> int | None:
        """Return the checkpoint up to which the reader has read, or None for a new reader."""
        return max((tag.checkpoint_id for tag in self._tags()), default=None)

    def move(self, checkpoint_id: int) -> None:
        """
        Record that the reader has read everything up to a checkpoint.

        The new position is put before the old one is deleted, so that no clean-up in between
        deletes what was not read.
        """
        before = self._tags()
        if not any(
            (entry.checkpoint_id, entry.newest) == (checkpoint_id, self.newest) for entry in before
        ):
            tag = Tag(
                kind=TagKind.READER,
                name=self.name,
                checkpoint_id=checkpoint_id,
                newest=self.newest,
            )
            put_tag(self.store, tag, clock_ms=self.clock_ms)
        for entry in before:
            if (entry.checkpoint_id, entry.newest) != (checkpoint_id, self.newest):
                delete_tag(self.store, entry)

    def remove(self) -> None:
        """Delete the position; the checkpoint that it pinned can then be deleted."""
        for tag in self._tags():
            delete_tag(self.store, tag)

    def _tags(self) -> list[Tag]:
        tags = list_tags(self.store)
        return [tag for tag in tags if tag.kind is TagKind.READER and tag.name == self.name]
