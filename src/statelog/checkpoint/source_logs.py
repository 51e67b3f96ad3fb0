"""Read the logs of file sources below a query's checkpointLocation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from statelog.core.source_position import (
    FileEntry,
    SourceLog,
    files_digest,
    logged_range,
    parse_files,
)
from statelog.errors import CheckpointError

_TAIL: Final = 64 * 1024
COMPACT: Final = ".compact"


class QueryFiles(Protocol):
    """
    The files below a query's checkpointLocation.

    Spark writes them before a micro-batch runs, so a reader needs Spark's file access at most.
    """

    @property
    def url(self) -> str:
        """The checkpointLocation, as Spark resolves it."""

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        """
        Return a file, or its last *tail* bytes; None if there is no such file.

        Blocks: On the file.
        """

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the files in a folder; none if there is no such folder."""


def read_source_logs(
    files: QueryFiles,
    folders: Sequence[str],
    before: Sequence[str | None],
    offsets: Sequence[str | None],
) -> tuple[SourceLog, ...]:
    """
    Return the entries in the logs of the sources between two sets of offsets.

    Args:
        files: The checkpointLocation.
        folders: For each source the name of its log below `sources/`.
        before: For each source the offset before the micro-batch; empty for the first one.
        offsets: For each source the offset of the micro-batch.

    Raises:
        CorruptionError: An entry is empty or cut short.

    Blocks: On the files, usually one small read for each file source with new files.
    """
    logs = []
    for source, (folder, offset) in enumerate(zip(folders, offsets, strict=True)):
        covered = logged_range(before[source] if source < len(before) else None, offset)
        if covered is not None:
            digest = entries_digest(files, folder, *covered)
            logs.append(
                SourceLog(
                    source=source, folder=folder, after=covered[0], upto=covered[1], digest=digest
                )
            )
    return tuple(logs)


def entries_digest(files: QueryFiles, folder: str, after: int, upto: int) -> str:
    """
    Return a digest of the files in entries (*after*, *upto*]; "" if one is missing.

    Raises:
        CorruptionError: An entry is empty or cut short.

    Blocks: On the files.
    """
    listed: list[FileEntry] = []
    for entry in range(after + 1, upto + 1):
        named = _entry(files, f"sources/{folder}", entry)
        if named is None:
            return ""
        listed += named
    return files_digest(listed)


def files_upto(files: QueryFiles, folder: str, upto: int) -> list[FileEntry]:
    """
    Return the files in all entries of a source's log up to *upto*.

    Raises:
        CheckpointError: An entry is missing (`reason` "not_found").
        CorruptionError: An entry is empty or cut short.

    Blocks: On the files.
    """
    log = f"sources/{folder}"
    compact = _last_compact_upto(files.names(log), upto)
    entries: list[FileEntry] = []
    if compact is not None:
        name = f"{log}/{compact}{COMPACT}"
        entries += parse_files(files.read(name) or b"", name)
    for entry in range(0 if compact is None else compact + 1, upto + 1):
        named = _entry(files, log, entry)
        if named is None:
            raise CheckpointError(
                f"the log of a source, {files.url}/{log}, has no entry {entry}", reason="not_found"
            )
        entries += named
    return entries


def _entry(files: QueryFiles, folder: str, entry: int) -> list[FileEntry] | None:
    """Return the files of one entry, from its own file or a compact one."""
    name = f"{folder}/{entry}"
    data = files.read(name)
    if data is not None:
        return parse_files(data, name)
    compacted = _compacted(files, f"{name}{COMPACT}", entry)
    if compacted is not None:
        return compacted
    later = _first_compact_after(files.names(folder), entry)
    # Each entry names a file.  One without files was never written, whatever the later numbers say.
    return (later is not None and _compacted(files, f"{folder}/{later}{COMPACT}", entry)) or None


def _compacted(files: QueryFiles, name: str, entry: int) -> list[FileEntry] | None:
    """Return the files of one entry from a compact file, read from its end."""
    size = _TAIL
    while True:
        data = files.read(name, size)
        if data is None:
            return None
        whole = len(data) < size
        listed = parse_files(data, name, whole=whole)
        if whole or (listed and listed[0].batch_id < entry):
            return [file for file in listed if file.batch_id == entry]
        size *= 8


def _first_compact_after(names: Iterable[str], entry: int) -> int | None:
    return min((each for each in _compacts(names) if each > entry), default=None)


def _last_compact_upto(names: Iterable[str], entry: int) -> int | None:
    return max((each for each in _compacts(names) if each <= entry), default=None)


def _compacts(names: Iterable[str]) -> list[int]:
    stems = (name.removesuffix(COMPACT) for name in names if name.endswith(COMPACT))
    return [int(stem) for stem in stems if stem.isdigit() and stem.isascii()]
