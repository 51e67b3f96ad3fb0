"""
Determine how far a query has read its sources.

The files of its checkpointLocation, and whether they fit the state.

They are what a tag keeps and what a fork starts from: the offsets of one micro-batch, its entry in
the commit log, and the logs of the sources up to it.  The log of a file source is reduced to one
compact file, which Spark reads like one that it has compacted itself.
Source: Spark's OffsetSeqLog, CommitLog, FileStreamSourceLog, CompactibleFileStreamLog.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.query_files import (
    COMMITS,
    COMPACT,
    METADATA,
    OFFSETS,
    StoredQuery,
    entries_digest,
    files_upto,
    number_of,
)
from statelog.core.source_position import log_entry, parse_files, position_of
from statelog.errors import CheckpointError, CorruptionError, IncompatibleFormatError, UsageError
from statelog.store import ObjectStore

SOURCES: Final = "sources"
_VERSION: Final = b"v1"


def position_files(query: StoredQuery, record: BatchRecord) -> dict[str, bytes]:
    """
    Return the files from which a query starts after the micro-batch of *record*.

    Returns:
        The files by name, without `metadata`.
    """
    batch_id = record.batch_id
    if query.query_id() != record.query_id:
        raise CheckpointError(
            f"{query.url} is the checkpointLocation of query {query.query_id()}, but the state belongs to "
            f"query {record.query_id}; pass the checkpointLocation of this query",
            reason="other_query",
        )
    if query.has_state_of_spark():
        raise CheckpointError(
            f"{query.url} contains state of one of Spark's own operators (in state/), which a fork "
            "does not cover. Start the second query with a new checkpointLocation and adopt=True "
            "instead",
            reason="foreign_state",
        )
    offsets = check_sources(query, record, batch_id)
    files = batch_files(query, batch_id, offsets, record.source_folders)
    commits = (f"{COMMITS}/{batch_id}", f"{COMMITS}/{batch_id - 1}")
    files |= {name: data for name in commits if (data := query.read(name))}
    if commits[0] not in files:
        raise CheckpointError(
            f"batch {batch_id} of {query.url} is not finished: its sink has not written its rows yet. "
            "Repeat the call in a moment, or choose an older checkpoint",
            reason="in_progress",
        )
    return files


def batch_files(
    query: StoredQuery,
    batch_id: int,
    offsets: Sequence[str | None],
    folders: Sequence[str] | None,
) -> dict[str, bytes]:
    """Return the files that record what a micro-batch reads, and what was read before it."""
    names = [f"{OFFSETS}/{batch_id}"] + ([f"{OFFSETS}/{batch_id - 1}"] if batch_id else [])
    files = {name: data for name in names if (data := query.read(name))}
    logs = kept_entries(folders, offsets)
    for folder, entry in logs.items():
        if entry >= 0:
            name = f"{SOURCES}/{folder}/{entry}{COMPACT}"
            entries = map(msgspec.json.encode, files_upto(query, folder, entry))
            files[name] = b"\n".join((_VERSION, *entries))
    for folder in query.folders(SOURCES):
        if folder not in logs:  # where the source began, which it reads at each restart
            files |= _whole(query, f"{SOURCES}/{folder}")
    return files


def write_query(store: ObjectStore, files: Mapping[str, bytes], query_id: str) -> None:
    """
    Write a new checkpointLocation.

    `metadata` is last, so that an unfinished one is not that of a query.  A call that was
    interrupted before it is recognized by the offsets, which are those of *files*.
    """
    query = StoredQuery(store)
    metadata = msgspec.json.encode({"id": query_id})
    stored = query.read(METADATA)
    is_other = not _are_among(query, files) if stored is None else stored != metadata
    if is_other:
        raise UsageError(
            f"{store.url} is already the checkpointLocation of a different query; choose a new folder"
        )
    for name, data in files.items():
        store.put(name, data)
    store.put(METADATA, metadata)


def _are_among(query: StoredQuery, files: Mapping[str, bytes]) -> bool:
    """Return whether *files* contains all planned micro-batches of a checkpointLocation."""
    names = [f"{OFFSETS}/{number}" for number in query.numbers(OFFSETS)]
    return all(name in files and query.read(name) == files[name] for name in names)


def _whole(query: StoredQuery, folder: str) -> dict[str, bytes]:
    names = (name for name in query.names(folder) if not name.startswith("."))
    read = {f"{folder}/{os.path.basename(name)}": query.read(f"{folder}/{name}") for name in names}
    return {name: data for name, data in read.items() if data is not None}


def check_sources(query: StoredQuery, record: BatchRecord, batch_id: int) -> tuple[str | None, ...]:
    """Return the offsets of a micro-batch, if *record* describes the state after it."""
    entry = query.offsets(batch_id)
    if entry is None:
        planned = query.numbers(OFFSETS)
        span = f"batches {planned[0]} to {planned[-1]}" if planned else "no batch"
        refuse(
            f"{query.url} does not contain the offsets of batch {batch_id} (only of {span}), so "
            "the sources cannot go back to it",
            "not_found",
        )
    offsets = entry.offsets
    if offsets is None:
        raise IncompatibleFormatError(
            f"{query.url}/{OFFSETS}/{batch_id} lists the offsets by source name (version "
            "v2); a rewind needs them listed by position (version v1)",
            path=f"{OFFSETS}/{batch_id}",
        )
    if record.position is None:
        same = record.batch_id == batch_id
    else:
        same = record.position in _positions(record, offsets)
    if not same and record.batch_id < batch_id:
        refuse(
            f"the state after batch {batch_id} is not retained: the newest retained state before it "
            f"is that of batch {record.batch_id}, but the sources were read in between",
            "subsumed",
        )
    if not same or not _same_logs(query, record):
        refuse(
            f"batch {batch_id} was planned again: its offsets, or the logs of its sources, do not "
            "match the state after it. Rewind to an earlier batch",
            "gap",
        )
    return offsets


def _positions(record: BatchRecord, offsets: Sequence[str | None]) -> set[str]:
    """Return the digest of the user's source offsets, or two digests if their number is unknown."""
    if record.source_folders:
        return {position_of(offsets[: len(record.source_folders)])}
    whole = position_of(offsets)
    # The last source may be statelog's own, which does not count.
    return {whole, position_of(offsets[:-1])} if len(offsets) > 1 else {whole}


def _same_logs(query: StoredQuery, record: BatchRecord) -> bool:
    return all(
        entries_digest(query, log.folder, log.after, log.upto) == log.digest
        for log in record.source_logs or ()
    )


def kept_entries(folders: Sequence[str] | None, offsets: Sequence[str | None]) -> dict[str, int]:
    """Return the last log entry that each file source has retained."""
    names = folders or [str(number) for number in range(len(offsets))]
    entries = ((name, log_entry(offset)) for name, offset in zip(names, offsets, strict=False))
    return {name: entry for name, entry in entries if entry is not None}


def missing_inputs(query: StoredQuery, record: BatchRecord) -> tuple[str, ...]:
    """
    Return input files that a query would read after *record* but that no longer exist.

    Only files on local disk are looked for.
    """
    offsets = check_sources(query, record, record.batch_id)
    return missing_files(read_again(query, kept_entries(record.source_folders, offsets))[1])


def read_again(query: StoredQuery, kept_upto: Mapping[str, int]) -> tuple[list[str], set[str]]:
    """Return the log entries to drop, and the input files that only these entries list."""
    logs: list[str] = []
    names: set[str] = set()
    for folder, entry in kept_upto.items():
        for path in query.files_above(f"{SOURCES}/{folder}", entry):
            logs.append(path)
            if number_of(os.path.basename(path)) is None:  # a checksum
                continue
            with suppress(CorruptionError):  # truncated: deleted, and its files are listed again
                files = parse_files(query.read(path) or b"v1", path)
                names.update(file.path for file in files if file.batch_id > entry)
    return logs, names


def missing_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Return input files that no longer exist, checking only files on local disk."""
    gone = []
    for path in paths:
        url = urllib.parse.urlsplit(path)
        if url.scheme == "file" and not os.path.exists(urllib.parse.unquote(url.path)):
            gone.append(path)
    return tuple(sorted(gone))


def refuse(what: str, reason: str) -> NoReturn:
    """Raise the error for a rewind that is impossible."""
    advice = ""
    if reason == "active":
        advice = ". Stop it, wait until it has ended, and repeat the rewind"
    raise CheckpointError(f"{what}{advice}", reason=reason)
