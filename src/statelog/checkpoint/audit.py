"""
The audit log of a location: who changed it, when, how, and from which host.

A line is two small objects in `audit/`.  The first is put before the first change of an operation,
the second after its end, so an operation that was cut off has only the first.  Neither is ever
changed or deleted by statelog.  What the lines say is a claim of the process that wrote them: a
person who can write to the location can write any line.
Format: docs/how-to/audit-log.md.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import getpass
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Final, TypeVar

import msgspec

from statelog.errors import CorruptionError, IncompatibleFormatError, StatelogError
from statelog.format.buffers import decode_json
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model import Json, JsonObject
from statelog.redaction import redacted
from statelog.runtime.clock import wall_clock_ms
from statelog.store import (
    PATHS,
    LocationStore,
    ObjectInfo,
    ObjectStore,
    read_verified,
)
from statelog.store.paths import parse_audit_part
from statelog.store.verified import create

BEGIN: Final = "begin"
END: Final = "end"
DONE: Final = "done"
FAILED: Final = "failed"
UNFINISHED: Final = "unfinished"
"""The operation is running or was interrupted."""
VERSION: Final = 1
OBJECT_BYTES_MAX: Final = 64 * 1024
"""Larger objects in `audit/` are not read."""

_SECTION: Final = b"AUDT"
_Part = TypeVar("_Part", "BeginPart", "EndPart")
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""Since 1970 (UTC), up to the year 9999."""


class BeginPart(msgspec.Struct, frozen=True, kw_only=True):
    """
    The object that is stored before the first change.

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
    The object that is stored after the last change.

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
    An operation that changed a location.

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
    The audit lines of a location.

    Args:
        lines: The newest ones, in the order of time.
        earlier: Number of older lines that were not read.
        unknown: Objects in `audit/` that are not part of a line.
    """

    lines: tuple[AuditLine, ...]
    earlier: int = 0
    unknown: tuple[str, ...] = ()


def encoded(part: BeginPart | EndPart) -> bytes:
    """Return the content of an audit line's object."""
    return b"".join(SegmentWriter().finish({_SECTION: msgspec.json.encode(part)}))


def read_audit_log(store: ObjectStore, limit: int | None = None) -> AuditLog:
    """Read the audit lines of a location; damaged objects are reported as problems."""
    # A line is found by the objects that exist; either of its two may be missing.
    lines: dict[str, dict[str, ObjectInfo]] = {}
    unknown = []
    for info in store.list(PATHS.audit):
        parsed = parse_audit_part(info.path)
        if parsed is None or info.path != PATHS.audit_part(*parsed):
            unknown.append(info.path)
        else:
            lines.setdefault(parsed[0], {})[parsed[1]] = info
    # A name begins with its time, so the order of names is the order of time.
    names = sorted(lines)
    newest = names if limit is None else names[max(len(names) - limit, 0) :]
    return AuditLog(
        lines=tuple(_line(store, name, lines[name]) for name in newest),
        earlier=len(names) - len(newest),
        unknown=tuple(sorted(unknown)),
    )


def _line(store: ObjectStore, name: str, parts: Mapping[str, ObjectInfo]) -> AuditLine:
    problem = ""
    begin = None
    end = None
    try:
        if BEGIN in parts:
            begin = _read(store, parts[BEGIN], BeginPart)
        else:
            problem = (
                "the object that records its start is missing "
                f"({parts[END].path.removesuffix(END)}{BEGIN})"
            )
        if END in parts:
            end = _read(store, parts[END], EndPart)
    except (CorruptionError, IncompatibleFormatError) as error:
        problem = str(error)
    return AuditLine(name=name, begin=begin, end=end, problem=problem)


def _read(store: ObjectStore, info: ObjectInfo, kind: type[_Part]) -> _Part:
    path = info.path
    # Anybody with access to the store can put an object here, so its size is checked first.
    if info.size_bytes > OBJECT_BYTES_MAX:
        raise CorruptionError(
            f"{path} is {info.size_bytes} bytes long, but the limit for an audit line is {OBJECT_BYTES_MAX}: "
            "a different program wrote it",
            path=path,
        )
    trailer = read_verified(store, path, lambda data: parse_segment(data, where=path)).trailer
    sections: Mapping[bytes, bytes] = {} if trailer is None else trailer.sections
    try:
        # The version first: a newer format may have other fields.
        version = decode_json(sections[_SECTION], msgspec.json.Decoder(_Version)).version
        if version > VERSION:
            raise IncompatibleFormatError(
                f"{path} is an audit line of version {version}; this version of statelog reads up to "
                f"{VERSION}: upgrade statelog",
                path=path,
            )
        return decode_json(sections[_SECTION], msgspec.json.Decoder(kind))
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptionError(f"{path} is not an audit line: {error}", path=path) from error


class _Version(msgspec.Struct):
    version: int


def problems_of(log: AuditLog) -> list[str]:
    """Return the problems found in the audit log, one per line."""
    problems = [f"{line.name}: {line.problem}" for line in log.lines if line.problem]
    return problems + [f"{path} is not part of an audit line" for path in log.unknown]


# Write the audit line of an operation, if the operation changes the location.

USER_ENVIRONMENT: Final = "STATELOG_AUDIT_USER"
"""The environment variable with the person's name, if processes share a user."""

_LOG = logging.getLogger("statelog")
_TEXT_MAX: Final = 300
_ITEMS_MAX: Final = 32


class AuditedOperation:
    """
    An operation together with the audit line that it writes.

    Thread: any.
    """

    def __init__(
        self,
        store: LocationStore,
        operation: str,
        arguments: JsonObject,
        outer: Callable[[], None] | None = None,
    ) -> None:
        # Without the call back: its own objects are no changes.
        self._store = copy.copy(store)
        self._outer = outer
        self._operation = operation
        self._arguments = arguments
        self._begun: dict[str, Future[None]] = {}
        self._line = ""
        self._result: JsonObject = {}

    def begin(self) -> None:
        """Write the first object of the line, unless it has already been written."""
        if self._outer is not None:
            self._outer()
            return
        # `setdefault` is atomic, so exactly one thread puts the object and the others wait for it.
        first: Future[None] = Future()
        begun = self._begun.setdefault(BEGIN, first)
        if begun is not first:  # another thread has put it, or does so now
            begun.result()
            return
        try:
            self._put_begin()
        except BaseException as error:
            # The next change tries again.
            self._begun.clear()
            first.set_exception(error)
            raise
        first.set_result(None)

    def _put_begin(self) -> None:
        began_at_ms = wall_clock_ms()
        line = _name(began_at_ms)
        part = BeginPart(
            version=VERSION,
            operation=self._operation,
            arguments=_short(self._arguments),
            user=_user(),
            host=_text(socket.gethostname()),
            process=os.getpid(),
            program=_text(os.path.basename(sys.argv[0]) if sys.argv else ""),
            statelog=_version(),
            location=_text(self._store.url),
            began_at_ms=began_at_ms,
        )
        create(self._store, PATHS.audit_part(line, BEGIN), encoded(part))
        self._line = line

    def result(self, **facts: Json) -> None:
        """Record the result, which is included in the end of the line."""
        self._result.update(facts)

    def end(self, error: Exception | None = None) -> None:
        """
        Write the second object of the line if anything was changed.

        A store that fails is logged: the operation is over, and its line remains unfinished.
        """
        if not self._line:
            return
        part = EndPart(
            version=VERSION,
            outcome=DONE if error is None else FAILED,
            result=_short(self._result),
            # Its text may contain keys.
            error="" if error is None else type(error).__name__,
            ended_at_ms=wall_clock_ms(),
        )
        try:
            create(self._store, PATHS.audit_part(self._line, END), encoded(part))
        except StatelogError as failure:
            _LOG.warning("the end of %s was not written to audit/: %s", self._operation, failure)


@contextlib.contextmanager
def audited(store: ObjectStore, operation: str, **arguments: Json) -> Iterator[AuditedOperation]:
    """
    Write an audit line if the operation in the `with` block changes a location.

    An operation inside of another one on the same store is part of its line.  An interrupt leaves
    the line without an end, as a kill does.
    """
    place = store if isinstance(store, LocationStore) else LocationStore(store)
    operated = AuditedOperation(place, operation, dict(arguments), place.before_change)
    # Inside of another operation: its line covers this one too.
    if place.before_change is not None:
        yield operated
        return
    place.before_change = operated.begin
    try:
        yield operated
    except Exception as error:
        operated.end(error)
        raise
    else:
        operated.end()
    finally:
        place.before_change = None


def _name(began_at_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(began_at_ms // 1000, dt.UTC)
    return f"{moment:%Y%m%dT%H%M%S}{began_at_ms % 1000:03d}Z-{os.urandom(8).hex()}"


def _user() -> str:
    named = os.environ.get(USER_ENVIRONMENT)
    if named:
        return _text(named)
    try:
        return _text(getpass.getuser())
    except (KeyError, OSError):  # a container without an entry for the user
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else ""


def _version() -> str:
    try:
        return version("statelog")
    except PackageNotFoundError:  # it runs from a folder of sources
        return ""


def _text(text: str) -> str:
    text = redacted(text).encode("utf-8", "replace").decode()
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


def _short(facts: JsonObject) -> JsonObject:
    """Drop facts that are None, and shorten the others to fit into a line."""
    return {name: _shortened(fact) for name, fact in facts.items() if fact not in (None, "")}


def _shortened(fact: Json) -> Json:
    if isinstance(fact, str):
        return _text(fact)
    if isinstance(fact, list | tuple):
        items = [_shortened(item) for item in fact[:_ITEMS_MAX]]
        return items if len(fact) <= _ITEMS_MAX else [*items, f"and {len(fact) - _ITEMS_MAX} more"]
    return fact
