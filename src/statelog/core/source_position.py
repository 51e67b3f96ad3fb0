"""
Describe how far a query has read its sources, in a form that can be compared.

Spark writes the offset of every source to `offsets/<batch>` before it runs a micro-batch.  The
offset of a file source is only the number of an entry in the source's own log,
`sources/<folder>/<entry>`; the files of that entry are chosen when it is written.  So a position
identifies the input only together with the log entries that the batch covers.
Source: Spark's OffsetSeqLog, FileStreamSourceLog, CompactibleFileStreamLog.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from statelog.errors import CorruptionError, IncompatibleFormatError

NOTHING_READ: Final = ""
"""The position of a query that has read nothing from any source."""
NO_ENTRY: Final = -1
"""The position before the first entry of a source's log."""
NO_OFFSET: Final = "-"
"""The entry of the offset log for a source that has not been read."""
_VERSION: Final = "v1"
_NAMED: Final = "v2"
"""The version of an offset log whose sources have names."""


class SourceLog(msgspec.Struct, frozen=True, kw_only=True):
    """
    The entries in a source's own log that a micro-batch covers.

    Args:
        source: Place of the source among the query's offsets, from 0.
        folder: Name of its log below `sources/`.
        after: Last entry before the batch; -1 for none.
        upto: Last entry of the batch.
        digest: Digest of the files in the entries between, with their times; "" if an entry is
            missing.
    """

    source: int
    folder: str
    after: int
    upto: int
    digest: str


class _FileOffset(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    log_offset: int


class FileEntry(msgspec.Struct, frozen=True, rename="camel"):
    """
    A file in the log of a file source.

    Args:
        path: URL of the file.
        timestamp: When it was last modified, milliseconds since 1970.
        batch_id: The entry of the log that names it.
    """

    path: str
    timestamp: int
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetEntry:
    """
    An entry in a query's offset log.

    Args:
        timestamp_ms: Processing time of the micro-batch.
        watermark_ms: Its watermark.
        sources: Number of sources.
        offsets: JSON of the offset of each source, None for one that has not been read; None
            where the sources have names, and so no order.
    """

    timestamp_ms: int
    watermark_ms: int
    sources: int
    offsets: tuple[str | None, ...] | None


class _Times(msgspec.Struct, rename="camel"):
    """Spark's `OffsetSeqMetadata`, which also contains the session's settings."""

    batch_watermark_ms: int = 0
    batch_timestamp_ms: int = 0


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""The errors of the decoders; the last one is for deep nesting."""
_times_decoder = msgspec.json.Decoder(_Times)
_offset_decoder = msgspec.json.Decoder(_FileOffset)
_file_decoder = msgspec.json.Decoder(FileEntry)


def position_of(offsets: Sequence[str | None]) -> str:
    """Return a digest of the offsets of all sources, which depends on their order."""
    if not any(offsets):
        return NOTHING_READ
    return _digest(list(offsets))


def log_entry(offset: str | None) -> int | None:
    """Return the log entry that *offset* refers to, or None."""
    if offset is None:
        return NO_ENTRY
    try:
        return _offset_decoder.decode(offset).log_offset
    except _UNREADABLE:
        return None


def logged_range(before: str | None, offset: str | None) -> tuple[int, int] | None:
    """
    Return the entries between two offsets in the log of a source.

    They begin after the first offset and end with the second.

    Returns:
        None if the source has no such log, or nothing was read.
    """
    # Not a file source's offset, or no new entry: nothing to identify.
    upto = log_entry(offset)
    after = log_entry(before)
    if offset is None or upto is None or after is None or upto <= after:
        return None
    return after, upto


def files_digest(files: Iterable[FileEntry]) -> str:
    """Return a digest of files and their times that does not depend on their order."""
    return _digest(sorted((file.path, file.timestamp) for file in files))


def parse_files(data: bytes, where: str, *, whole: bool = True) -> list[FileEntry]:
    """Parse an entry of a file source's log."""
    lines = data.split(b"\n")
    if whole:
        _check_version(lines[0], where)
    files: list[FileEntry] = []
    # The byte at which the damaged line begins, for the error.
    offset = len(lines[0]) + 1
    for line in lines[1:]:
        try:
            if line:
                files.append(_file_decoder.decode(line))
        except _UNREADABLE as error:
            raise CorruptionError(
                f"damaged source log, {where} at byte {offset}: {error}",
                path=where,
                offset=offset,
            ) from error
        offset += len(line) + 1
    return files


def parse_offsets(data: bytes, where: str) -> OffsetEntry:
    """Parse an entry of a query's offset log."""
    lines = data.decode("utf-8", "replace").split("\n")
    _check_version(lines[0].encode(), where, _VERSION, _NAMED)
    try:
        times = _times_decoder.decode(lines[1] if len(lines) > 2 else "")
    except _UNREADABLE as error:
        offset = len(lines[0]) + 1
        raise CorruptionError(
            f"damaged query offset log {where}, at byte {offset}: truncated or not JSON",
            path=where,
            offset=offset,
        ) from error
    offsets = tuple(None if line == NO_OFFSET else line for line in lines[2:] if line)
    return OffsetEntry(
        timestamp_ms=times.batch_timestamp_ms,
        watermark_ms=times.batch_watermark_ms,
        sources=len(offsets),
        offsets=None if lines[0] == _NAMED else offsets,
    )


def _check_version(line: bytes, where: str, *known: str) -> None:
    # Spark writes the version first, so an empty file was cut by a crash, not by a version.
    if not line:
        raise CorruptionError(
            f"{where} is empty: a power failure may have truncated it", path=where
        )
    if line.decode("utf-8", "replace") not in (known or (_VERSION,)):
        raise IncompatibleFormatError(
            f"{where} has version {line[:20]!r}, but statelog can read only "
            f"{' and '.join(known or (_VERSION,))}",
            path=where,
        )


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:32]
