"""
The audit lines of a location: who changed it, when, how and from which host.

A line is two small objects in `audit/`.  The first is put before the first change of an operation, the
second after its end, so an operation that was cut off has only the first.  Neither is ever changed or
deleted by statelog.  What the lines say is a claim of the process that wrote them: a person who can write to
the location can write any line.
Format: docs/reference/formats/audit.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec

from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.format.bounds import decode_json
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model import JsonObject
from statelog.store import LocationPaths, ObjectInfo, ObjectStore, read_verified
from statelog.store.paths import parse_audit_part

BEGIN: Final = "begin"
END: Final = "end"
DONE: Final = "done"
FAILED: Final = "failed"
UNFINISHED: Final = "unfinished"
"""The operation runs, or was cut off."""
VERSION: Final = 1
OBJECT_BYTES_MAX: Final = 64 * 1024
"""A larger object in `audit/` is not read."""

_SECTION: Final = b"AUDT"
_Part = TypeVar("_Part", "BeginPart", "EndPart")
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""Since 1970 (UTC), up to the year 9999."""


class BeginPart(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is stored before the first change.

    Args:
        version: Of the format.
        operation: Such as "gc".
        arguments: Those that say what was asked for; never a key, a value or a secret.
        user, host, process, program: Who made the call, and where.
        statelog: Version of statelog.
        location: URL of the location as the call named it, without secrets.
        began_at_ms: Milliseconds since 1970 (UTC).
    """

    version: int
    operation: str
    arguments: JsonObject
    user: str
    host: str
    process: int
    program: str
    statelog: str
    location: str
    began_at_ms: _Milliseconds


class EndPart(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is stored after the last change.

    Args:
        version: Of the format.
        outcome: "done" or "failed".
        result: What was done.
        error: The class of the error, without its text.
        ended_at_ms: Milliseconds since 1970 (UTC).
    """

    version: int
    outcome: str
    result: JsonObject
    error: str
    ended_at_ms: _Milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """
    One operation that changed a location.

    Args:
        name: Its time and attempt, by which lines are sorted.
        begin: What was asked for; None if that object is missing or damaged.
        end: What came of it; None if the operation runs or was cut off.
        problem: Why an object cannot be read; "" without a problem.
    """

    name: str
    begin: BeginPart | None = None
    end: EndPart | None = None
    problem: str = ""

    @property
    def outcome(self) -> str:
        """Return "done", "failed" or "unfinished"."""
        return UNFINISHED if self.end is None else self.end.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """
    The lines of a location.

    Args:
        lines: The newest ones, in the order of time.
        earlier: Number of older lines that were not read.
        unknown: Objects in `audit/` that are not part of a line.
    """

    lines: tuple[AuditLine, ...]
    earlier: int = 0
    unknown: tuple[str, ...] = ()


def encoded(part: BeginPart | EndPart) -> bytes:
    """Return the content of an object of an audit line."""
    return b"".join(SegmentWriter().finish({_SECTION: msgspec.json.encode(part)}))


def read_audit_log(store: ObjectStore, paths: LocationPaths, limit: int | None = None) -> AuditLog:
    """
    Return the audit lines of a location; objects that are damaged are reported as such.

    Args:
        store: The store of the location.
        paths: The location in the store.
        limit: Read only so many of the newest lines; None for all.

    Raises:
        StoreError: The store failed.

    Blocks: On the store: one listing, and two reads for each line.
    """
    lines: dict[str, dict[str, ObjectInfo]] = {}
    unknown = []
    for info in store.list(paths.audit):
        parsed = parse_audit_part(info.path)
        if parsed is None or info.path != paths.audit_part(*parsed):
            unknown.append(info.path)
        else:
            lines.setdefault(parsed[0], {})[parsed[1]] = info
    names = sorted(lines)
    newest = names if limit is None else names[max(len(names) - limit, 0) :]
    return AuditLog(
        lines=tuple(_line(store, name, lines[name]) for name in newest),
        earlier=len(names) - len(newest),
        unknown=tuple(sorted(unknown)),
    )


def _line(store: ObjectStore, name: str, parts: Mapping[str, ObjectInfo]) -> AuditLine:
    problem, begin, end = "", None, None
    try:
        if BEGIN in parts:
            begin = _read(store, parts[BEGIN], BeginPart)
        else:
            problem = (
                f"the object of its begin is missing ({parts[END].path.removesuffix(END)}{BEGIN})"
            )
        if END in parts:
            end = _read(store, parts[END], EndPart)
    except (CorruptionError, IncompatibleFormatError) as error:
        problem = str(error)
    return AuditLine(name=name, begin=begin, end=end, problem=problem)


def _read(store: ObjectStore, info: ObjectInfo, kind: type[_Part]) -> _Part:
    path = info.path
    if info.size_bytes > OBJECT_BYTES_MAX:
        raise CorruptionError(
            f"{path} has {info.size_bytes} bytes, and an audit line up to {OBJECT_BYTES_MAX}: "
            "another program wrote it",
            path=path,
        )
    trailer = read_verified(store, path, lambda data: parse_segment(data, where=path)).trailer
    sections: Mapping[bytes, bytes] = {} if trailer is None else trailer.sections
    try:
        version = decode_json(sections[_SECTION], msgspec.json.Decoder(_Version)).version
        if version > VERSION:
            raise IncompatibleFormatError(
                f"{path} has version {version} of an audit line; this statelog reads up to "
                f"{VERSION}: upgrade statelog",
                path=path,
            )
        return decode_json(sections[_SECTION], msgspec.json.Decoder(kind))
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptionError(f"{path} is not an audit line: {error}", path=path) from error


class _Version(msgspec.Struct):
    version: int


def problems_of(log: AuditLog) -> list[str]:
    """Return what is wrong with the audit log, as lines."""
    found = [f"{each.name}: {each.problem}" for each in log.lines if each.problem]
    return found + [f"{path} is not part of an audit line" for path in log.unknown]
