"""
A query's checkpointLocation as files: its id, its micro-batches, and the files it listed.

Spark writes `metadata` before the first micro-batch of a query, and `offsets/<batch>`, with the end
offsets of a micro-batch, before each.  `commits/<batch>` exists when it is finished, and
`sources/<folder>/<entry>` is the log of a file source.  On local disk Hadoop writes a file of
checksums next to each of them.
Source: Spark's StreamMetadata, OffsetSeqLog, StreamingQueryCheckpointMetadata, HDFSMetadataLog;
Hadoop's ChecksumFileSystem.
"""

from __future__ import annotations

import datetime as dt
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from statelog.core.source_position import (
    FileEntry,
    OffsetEntry,
    SourceLog,
    files_digest,
    logged_range,
    parse_files,
    parse_offsets,
)
from statelog.errors import CheckpointError, CorruptionError, ObjectNotFoundError, UsageError
from statelog.format.buffers import decode_json
from statelog.store import ObjectStore
from statelog.store.client import fsync_path
from statelog.store.location import local_path

_TAIL: Final = 64 * 1024
COMPACT: Final = ".compact"

OFFSETS: Final = "offsets"
METADATA: Final = "metadata"
_CHECKSUMS: Final = struct.Struct(">4sI")
_MAGIC: Final = b"crc\0"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
COMMITS: Final = "commits"


class QueryFiles(Protocol):
    """
    The files below a query's checkpointLocation.

    Spark writes them before a micro-batch runs, so a reader needs Spark's file access at most.
    """

    @property
    def url(self) -> str:
        """The checkpointLocation, as Spark resolves it."""

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        """Read a file or its last *tail* bytes; return None if the file does not exist."""

    def names(self, folder: str) -> Sequence[str]:
        """List the files in a folder by name; the result is empty if it does not exist."""


def read_source_logs(
    files: QueryFiles,
    folders: Sequence[str],
    before: Sequence[str | None],
    offsets: Sequence[str | None],
) -> tuple[SourceLog, ...]:
    """Return the entries that source logs contain between two sets of offsets."""
    logs = []
    # A source that was added since the last batch did not have an offset before.
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
    """Return a digest of the files in entries (*after*, *upto*]; "" if an entry is missing."""
    listed: list[FileEntry] = []
    for entry in range(after + 1, upto + 1):
        named = entry_of_log(files, f"sources/{folder}", entry)
        if named is None:
            return ""
        listed += named
    return files_digest(listed)


def entry_of_log(files: QueryFiles, folder: str, entry: int) -> list[FileEntry] | None:
    """Return the files of one entry, from the entry's own file or from a compact file."""
    name = f"{folder}/{entry}"
    # Three places: its own file; a compact file of its number; the next compact file.
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
    """Return the files of one entry from a compact file, which is read from its end."""
    # The entries of a compact file ascend, so the newest ones are read without the whole file.
    size = _TAIL
    while True:
        data = files.read(name, size)
        if data is None:
            return None
        # A tail may begin within a line, which is not parsed.
        whole = len(data) < size
        listed = parse_files(data, name, whole=whole)
        if whole or (listed and listed[0].batch_id < entry):
            return [file for file in listed if file.batch_id == entry]
        size *= 8


def _first_compact_after(names: Iterable[str], entry: int) -> int | None:
    return min((number for number in compacts_in(names) if number > entry), default=None)


def compacts_in(names: Iterable[str]) -> list[int]:
    """Return the numbers of a log's compact files."""
    stems = (name.removesuffix(COMPACT) for name in names if name.endswith(COMPACT))
    return [int(stem) for stem in stems if stem.isdigit() and stem.isascii()]


class _Metadata(msgspec.Struct):
    id: str


_metadata_decoder: Final = msgspec.json.Decoder(_Metadata)


def recorded_query_id(files: QueryFiles) -> str:
    """Return Spark's query id from a checkpointLocation, or "" if no query ran there."""
    data = files.read(METADATA)
    if data is None:
        return ""
    try:
        return decode_json(data, _metadata_decoder).id
    except msgspec.DecodeError as error:
        raise CheckpointError(
            f"{files.url}/{METADATA} does not contain a query id: {error}. A power failure may "
            "have truncated the file. Nothing was changed. Restore the file from a backup, or "
            "continue from the state with a new checkpointLocation and adopt=True",
            reason="damaged",
        ) from error


def read_offsets(files: QueryFiles, batch_id: int) -> OffsetEntry | None:
    """Return the offset log's entry for a micro-batch, or None."""
    name = f"{OFFSETS}/{batch_id}"
    data = files.read(name)
    return None if data is None else parse_offsets(data, name)


def newest_batch(files: QueryFiles) -> int | None:
    """Return the newest micro-batch that Spark has planned, or None."""
    return max(numbers_in(files, OFFSETS), default=None)


def newest_offsets(files: QueryFiles) -> OffsetEntry | None:
    """Return the newest entry of the offset log, or None."""
    newest = newest_batch(files)
    if newest is None:
        return None
    try:
        _check_sums(files, newest)
        return read_offsets(files, newest)
    except CorruptionError as error:
        raise CheckpointError(
            f"the offset log of {files.url} is damaged: {error}. Nothing was changed. To list the "
            f"batches you can go back to, run `statelog rewind {files.url}` (add --state-location "
            "if the state is stored elsewhere); rewinding removes the damaged file",
            reason="damaged",
        ) from error


def unfinished_batch(files: QueryFiles) -> int | None:
    """
    Return the planned but unfinished micro-batch, which Spark will repeat.

    None for none.
    """
    newest = newest_batch(files)
    return None if newest is None or newest in numbers_in(files, COMMITS) else newest


def numbers_in(files: QueryFiles, folder: str) -> set[int]:
    """Return the numbers of the files in a log."""
    numbers = (number_of(name) for name in files.names(folder))
    return {number for number in numbers if number is not None}


def number_of(name: str) -> int | None:
    """Return the number in a log file's name, or None."""
    stem = name.removesuffix(COMPACT)
    return int(stem) if stem.isdigit() and stem.isascii() else None


def _check_sums(files: QueryFiles, batch_id: int) -> None:
    """Verify an entry against its checksum file, as Hadoop does on local disk."""
    name = f"{OFFSETS}/{batch_id}"
    sums = files.read(f"{OFFSETS}/.{batch_id}.crc")
    if sums is None or len(sums) < _CHECKSUMS.size:
        return
    # Hadoop's layout: magic, bytes per checksum, then one CRC-32 for each chunk.
    magic, chunk = _CHECKSUMS.unpack_from(sums)
    if magic != _MAGIC or not chunk:
        return
    data = files.read(name) or b""
    hashed = b"".join(
        zlib.crc32(data[start : start + chunk]).to_bytes(4, "big")
        for start in range(0, len(data), chunk)
    )
    if hashed != sums[_CHECKSUMS.size :]:
        raise CorruptionError(f"{name} does not match its checksums", path=name)


# Detect what Spark's offline repartition leaves in a checkpointLocation of statelog.


class _Times(msgspec.Struct):
    conf: dict[str, str] = {}


_times_decoder: Final = msgspec.json.Decoder(_Times)


def refuse_unfinished_repartition(files: QueryFiles) -> None:
    """
    Reject a checkpointLocation that contains an unfinished repartition.

    Spark fixes the number of partitions when a query begins, so that only a repartition changes it.
    """
    newest = newest_batch(files)
    if not newest or files.read(f"{COMMITS}/{newest}") is not None:
        return
    before = _partitions(files, newest - 1)
    after = _partitions(files, newest)
    if before is None or after is None or before == after:
        return
    raise CheckpointError(
        f"batch {newest} in {files.url} repartitions Spark's own state store from {before} to {after} "
        "partitions. Spark does not start a query after it, and cannot finish it, because the state "
        f"is in statelog. Delete the files {OFFSETS}/{newest} and {OFFSETS}/.{newest}.crc there, and "
        "start the query again: it continues after its last micro-batch. To change the number of "
        "tasks, start the query with a different value of the setting tasks",
        reason="incompatible",
    )


def _partitions(files: QueryFiles, batch_id: int) -> str | None:
    """Return for how many shuffle partitions a micro-batch was planned, if known."""
    lines = (files.read(f"{OFFSETS}/{batch_id}") or b"").split(b"\n")
    try:
        return decode_json(lines[1], _times_decoder).conf.get(_PARTITIONS)
    except (IndexError, msgspec.MsgspecError):
        return None  # the offset log is checked elsewhere


def files_upto(files: QueryFiles, folder: str, upto: int) -> list[FileEntry]:
    """Return the files in all entries of a source's log up to and including *upto*."""
    log = f"sources/{folder}"
    compact = max(
        (number for number in compacts_in(files.names(log)) if number <= upto), default=None
    )
    entries: list[FileEntry] = []
    if compact is not None:
        name = f"{log}/{compact}{COMPACT}"
        entries += parse_files(files.read(name) or b"", name)
    for entry in range(0 if compact is None else compact + 1, upto + 1):
        named = entry_of_log(files, log, entry)
        if named is None:
            raise CheckpointError(
                f"the source log {files.url}/{log} does not contain entry {entry}",
                reason="not_found",
            )
        entries += named
    return entries


class StoredQuery:
    """The files of one checkpointLocation."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def store(self) -> ObjectStore:
        """The store of the checkpointLocation."""
        return self._store

    @property
    def url(self) -> str:
        """The checkpointLocation."""
        return self._store.url

    def query_id(self) -> str:
        """Return the id that Spark gave the query."""
        try:
            query_id = recorded_query_id(self)
        except CheckpointError as error:
            raise self._is_no_query() from error
        if not query_id:
            raise self._is_no_query()
        return query_id

    def _is_no_query(self) -> UsageError:
        return UsageError(
            f"{self.url} is not the checkpointLocation of a streaming query: it does not "
            "contain the file `metadata` with the query's id"
        )

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        """Read a file or its last *tail* bytes; return None if the file does not exist."""
        try:
            data = bytes(self._store.get(name))
        except ObjectNotFoundError:
            return None
        return data if tail is None else data[-tail:]

    def names(self, folder: str) -> Sequence[str]:
        """List the files in a folder by name; the result is empty if it does not exist."""
        names = (info.path.removeprefix(f"{folder}/") for info in self._store.list(folder))
        return [name for name in names if "/" not in name]

    def folders(self, folder: str) -> Sequence[str]:
        """List the subfolders of a folder by name."""
        return self._store.list_folders(folder)

    def numbers(self, folder: str) -> list[int]:
        """Return the numbers of the files in a folder in ascending order."""
        return sorted(numbers_in(self, folder))

    def offsets(self, batch_id: int) -> OffsetEntry | None:
        """Return the offset log's entry for a micro-batch, or None."""
        return read_offsets(self, batch_id)

    def last_written(self) -> dt.datetime | None:
        """Return when Spark last planned or finished a micro-batch, or None."""
        times = [info.last_modified for info in self._store.list(OFFSETS)]
        times += [info.last_modified for info in self._store.list(COMMITS)]
        return max(times, default=None)

    def has_state_of_spark(self) -> bool:
        """Return whether a Spark operator stores state in this checkpointLocation."""
        names = self._store.list_folders("state")
        return any(name.isdigit() for name in names)

    def files_above(self, folder: str, number: int) -> list[str]:
        """Return the files with higher numbers, and their checksum files, newest first."""
        files: list[tuple[int, str]] = []
        for name in self.names(folder):
            plain = name.removeprefix(".").removesuffix(".crc") if name.startswith(".") else name
            file_number = number_of(plain)
            if file_number is not None and file_number > number:
                files.append((file_number, f"{folder}/{name}"))
        # "7" before ".7.crc": a checksum without its file is a harmless remainder.
        return [path for _, path in sorted(files, key=lambda file: (-file[0], "/." in file[1]))]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files one by one, durably if they are on local disk."""
        folders = set()
        for path in paths:
            self._store.delete([path])
            folders.add(os.path.dirname(path))
        root = local_path(self.url)
        for folder in folders if root is not None else ():
            place = os.path.join(root or "", folder)
            fsync_path(place if os.path.isdir(place) else root or "")
