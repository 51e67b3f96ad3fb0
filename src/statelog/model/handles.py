"""
Handles: references from a checkpoint to bytes.

A handle is small, immutable, and has a JSON form, because workers send it to the driver and
checkpoint metadata stores it.  Paths are relative to the root of the store, so that a state
location can be copied or mounted elsewhere.  Metadata may be forged, and must not make a reader
open, or a clean-up delete, anything outside of that root.  So every name passes through
`checked_path` when metadata is decoded.
Source: Flink, StreamStateHandle, FileStateHandle, ByteStreamStateHandle,
ChangelogStateHandleStreamImpl and SnapshotResult.  Deviations: relative paths; each entry also
carries the size and the checksum of its change set, so that one set can be read and verified
without the rest.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import unquote

from statelog.arguments import instance, refused, text, whole_number
from statelog.errors import CorruptionError, IncompatibleFormatError, UsageError
from statelog.model.key_group import KeyGroupRange
from statelog.model.state_change import SequenceNumber, StateChangeSet

_LENGTH_MAX: Final = 1024
"""The limit of S3, GCS and Azure for a name."""
_DECODINGS: Final = 3
"""A name that is still encoded after this many decodings is rejected."""
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:/|$)|[A-Za-z]:")


def checked_path(path: object) -> str:
    """Return *path* if it names an object below a store's root."""
    if isinstance(path, str):
        problem = _problem(path)
        plain = path
        for _ in range(_DECODINGS if "%" in path else 0):
            before = plain
            plain = unquote(plain)
            problem = problem or _problem(plain)
            if before == plain:
                break
        else:
            if "%" in plain and unquote(plain) != plain:
                problem = problem or "is percent-encoded several times"
        if problem is None:
            return path
    else:
        problem = "is not text"
    raise CorruptionError(
        f"the metadata references the object {path!r:.200}, which {problem}; names must be below the "
        "root of the location. The metadata was forged or damaged; nothing was read or deleted",
        path=str(path)[:200],
    )


def _problem(path: str) -> str | None:
    """Return why *path* is not a valid name of an object, or None if it is valid."""
    if not path or len(path) > _LENGTH_MAX:
        return "is empty or too long"
    if _FORBIDDEN.search(path):
        return "contains a backslash or a control character"
    if path.startswith("/") or _SCHEME.match(path):
        return "is absolute or a URL"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "contains an empty part or '..'"
    return None


Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A value that JSON can express."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object as a decoder returns it; the reader checks each value."""


HANDLE_JSON_VERSION = 1

HandleT = TypeVar("HandleT")


@dataclass(frozen=True, slots=True)
class FileStateHandle:
    """
    Refers to bytes in an object of the store.

    Args:
        path: Object name relative to the root of the store; the identity of the handle.
        size_bytes: Size of the state in it; for changelog files the uncompressed payload, as in
            Flink.  -1 if unknown.
        crc32c: Checksum of the whole object, or None where the object verifies itself.
    """

    path: str
    size_bytes: int = field(compare=False)
    crc32c: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.path.__class__ is not str:
            text(self.path, "path")
        _check_count(self, "size_bytes", -1)
        if self.crc32c is not None:
            _check_count(self, "crc32c", 0)

    @property
    def name(self) -> str:
        """The identity of the handle, as for handles with inline bytes."""
        return self.path

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {"file": self.path, "size": self.size_bytes, "crc32c": self.crc32c}


@dataclass(frozen=True, slots=True)
class ByteStreamStateHandle:
    """
    Contains bytes in the handle itself, without an object in the store.

    Args:
        name: The name a file would have had; the identity of the handle.
        data: The bytes.
    """

    name: str
    data: bytes = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        text(self.name, "name")
        instance(self.data, "data", (bytes, bytearray, memoryview), "bytes")

    @property
    def size_bytes(self) -> int:
        """The length of the data in bytes."""
        return len(self.data)

    def to_json(self) -> JsonObject:
        """Return the JSON form, in which the bytes are base64."""
        return {"inline": self.name, "data": base64.b64encode(self.data).decode("ascii")}


def _check_count(value: object, name: str, low: int) -> None:
    """Convert the field *name* to a plain `int` >= *low*; raises `UsageError`."""
    count = getattr(value, name)
    if count.__class__ is not int or count < low:
        object.__setattr__(value, name, whole_number(count, name, low=low))


StreamStateHandle = FileStateHandle | ByteStreamStateHandle


def stream_handle_from_json(value: JsonObject) -> StreamStateHandle:
    """Create a stream handle from its JSON form."""
    handle = _stream_handle(value)
    if isinstance(handle, FileStateHandle):
        checked_path(handle.path)
    return handle


def _stream_handle(value: JsonObject) -> StreamStateHandle:
    try:
        if "file" in value:
            path = value["file"]
            if not isinstance(path, str):
                raise TypeError(f"the name of a file must be text, not {path!r:.200}")
            return FileStateHandle(path, int(value["size"]), value.get("crc32c"))
        return ByteStreamStateHandle(value["inline"], base64.b64decode(value["data"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"not a stream handle: {value!r:.200}") from error


@dataclass(frozen=True, slots=True)
class HandleAndOffset:
    """
    Where one change set is stored.

    Args:
        handle: The file (or inline bytes) that holds the set.
        offset: Uncompressed payload bytes before the set, not counting the flag byte.
        size_bytes: Encoded length of the set, or None for a file that statelog did not write.
        crc32c: Checksum over the encoded set, or None.
    """

    handle: StreamStateHandle
    offset: int
    size_bytes: int | None = None
    crc32c: int | None = None

    def __post_init__(self) -> None:
        # There is one for each change set, so a valid entry costs no call.
        kind = self.handle.__class__
        offset = self.offset
        if kind is not FileStateHandle and kind is not ByteStreamStateHandle:
            raise refused("handle", "a FileStateHandle or ByteStreamStateHandle", self.handle)
        if offset.__class__ is not int or offset < 0:
            _check_count(self, "offset", 0)
        size = self.size_bytes
        crc = self.crc32c
        if size is not None and (size.__class__ is not int or size < 0):
            _check_count(self, "size_bytes", 0)
        if crc is not None and (crc.__class__ is not int or crc < 0):
            _check_count(self, "crc32c", 0)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "handle": self.handle.to_json(),
            "offset": self.offset,
            "size": self.size_bytes,
            "crc32c": self.crc32c,
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> HandleAndOffset:
        """Create an entry from its JSON form; raise `CorruptionError` if it is invalid."""
        try:
            # Not checked further: the handle of a copy on this host has the path of a file.
            handle = _stream_handle(value["handle"])
            return cls(handle, int(value["offset"]), value.get("size"), value.get("crc32c"))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(f"not a log entry: {value!r:.200}") from error


@dataclass(frozen=True, slots=True)
class ChangelogStateHandle:
    """
    A piece of one writer's log: change sets in order, each with its file and offset.

    Args:
        key_group_range: Key groups whose changes it holds.
        handles_and_offsets: The sets in the order of their sequence numbers.
        size_bytes: Summed value bytes of all sets; -1 if unknown.
        incremental_size_bytes: The part of it that this checkpoint newly uploaded.
        state_handle_id: Unique name of this handle.
        checkpoint_id: The checkpoint of the persist; 0 for none.
        storage_identifier: Which storage can read it; always "filesystem".
    """

    key_group_range: KeyGroupRange
    handles_and_offsets: tuple[HandleAndOffset, ...]
    size_bytes: int
    incremental_size_bytes: int
    state_handle_id: str
    checkpoint_id: int = 0
    storage_identifier: str = "filesystem"

    def __post_init__(self) -> None:
        instance(self.key_group_range, "key_group_range", KeyGroupRange, "a KeyGroupRange")
        entries = instance(self.handles_and_offsets, "handles_and_offsets", tuple, "a tuple")
        for entry in entries:
            if not isinstance(entry, HandleAndOffset):
                raise refused("each of handles_and_offsets", "a HandleAndOffset", entry)
        for name, low in (("size_bytes", -1), ("incremental_size_bytes", -1), ("checkpoint_id", 0)):
            _check_count(self, name, low)
        text(self.state_handle_id, "state_handle_id")
        text(self.storage_identifier, "storage_identifier")

    def intersection(self, key_group_range: KeyGroupRange) -> ChangelogStateHandle | None:
        """
        Return the handle for a task that owns *key_group_range*.

        The result is None without overlap.  The entries stay whole; readers drop foreign key
        groups.
        """
        overlap = self.key_group_range.intersection(key_group_range)
        return replace(self, key_group_range=overlap) if len(overlap) else None

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "version": HANDLE_JSON_VERSION,
            "key_groups": [self.key_group_range.start, self.key_group_range.end],
            "entries": [entry.to_json() for entry in self.handles_and_offsets],
            "size": self.size_bytes,
            "incremental_size": self.incremental_size_bytes,
            "id": self.state_handle_id,
            "checkpoint_id": self.checkpoint_id,
            "storage": self.storage_identifier,
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> ChangelogStateHandle:
        """
        Create a handle from its JSON form.

        Raises:
            IncompatibleFormatError: It has a different format version.
            CorruptionError: It is not the JSON of a changelog handle.
        """
        try:
            if value["version"] > HANDLE_JSON_VERSION:
                raise IncompatibleFormatError(
                    f"changelog handle has version {value['version']}; this version of statelog reads up to "
                    f"{HANDLE_JSON_VERSION}; upgrade statelog"
                )
            start, end = value["key_groups"]
            return cls(
                key_group_range=KeyGroupRange(start, end),
                handles_and_offsets=tuple(
                    HandleAndOffset.from_json(entry) for entry in value["entries"]
                ),
                size_bytes=int(value["size"]),
                incremental_size_bytes=int(value["incremental_size"]),
                state_handle_id=str(value["id"]),
                checkpoint_id=int(value["checkpoint_id"]),
                storage_identifier=str(value["storage"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(f"not a changelog handle: {value!r:.200}") from error


@dataclass(frozen=True, slots=True)
class SnapshotResult(Generic[HandleT]):
    """
    The handles that `persist` returns.

    Args:
        job_manager_owned: Handle the coordinator becomes responsible for; None for no state.
        task_local: Handle of the host-local copy, or None.

    Raises:
        UsageError: A local copy without the owned handle.
    """

    job_manager_owned: HandleT | None
    task_local: HandleT | None = None

    def __post_init__(self) -> None:
        if self.task_local is not None and self.job_manager_owned is None:
            raise UsageError(
                "a task-local snapshot requires a job-manager-owned snapshot; pass both, or neither"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """
    Where one change set was made durable.

    Args:
        log_id: The writer's number within its storage.
        sqn: The set's position in that writer's log.
        size_bytes: Summed value bytes of the set.
        entry: File (or inline bytes), offset, encoded size and checksum.
        local: The same in the host-local copy, or None without one.
    """

    log_id: int
    sqn: SequenceNumber
    size_bytes: int
    entry: HandleAndOffset
    local: HandleAndOffset | None = None

    @classmethod
    def of(
        cls,
        handle: StreamStateHandle,
        change_set: StateChangeSet,
        offset: int,
        *,
        encoded_bytes: int | None = None,
        crc32c: int | None = None,
        local_handle: StreamStateHandle | None = None,
    ) -> UploadResult:
        """
        Return the result for *change_set*, stored in *handle* at a payload offset.

        Args:
            handle: The file or inline bytes.
            change_set: The set.
            offset: Uncompressed payload bytes before it, without the flag byte.
            encoded_bytes: Its encoded length; with the checksum, readers fetch and verify it alone.
            crc32c: Checksum over its encoded bytes.
            local_handle: The host-local copy of the file, or None.

        Raises:
            UsageError: The offset is negative, or an argument is of another class.
        """
        instance(change_set, "change_set", StateChangeSet, "a StateChangeSet")
        for name, given_handle in (("handle", handle), ("local_handle", local_handle or handle)):
            instance(
                given_handle,
                name,
                (FileStateHandle, ByteStreamStateHandle),
                "a stream state handle",
            )
        entry = HandleAndOffset(
            handle, whole_number(offset, "offset", low=0), encoded_bytes, crc32c
        )
        return cls(
            log_id=change_set.log_id,
            sqn=change_set.sqn,
            size_bytes=change_set.size_bytes,
            entry=entry,
            local=None if local_handle is None else replace(entry, handle=local_handle),
        )
