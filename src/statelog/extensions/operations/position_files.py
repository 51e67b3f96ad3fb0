"""
The files of a checkpointLocation that hold how far a query has read its sources.

They are what a tag keeps and what a fork starts from: the offsets of one micro-batch, its entry in the
commit log, and the logs of the sources up to it.  The log of a file source is reduced to one compact
file, which Spark reads like one that it has compacted itself.
Source: Spark's OffsetSeqLog, CommitLog, FileStreamSourceLog, CompactibleFileStreamLog.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.query_files import (
    COMMITS,
    COMPACT,
    METADATA,
    OFFSETS,
    StoredQuery,
    files_upto,
)
from statelog.core.source_position import FileEntry
from statelog.errors import CheckpointError, UsageError
from statelog.extensions.operations.rewind import check_sources, kept_entries
from statelog.store import ObjectStore

_SOURCES: Final = "sources"
_VERSION: Final = b"v1"


def position_files(query: StoredQuery, record: BatchRecord) -> dict[str, bytes]:
    """
    Return the files with which a query begins after the micro-batch of *record*.

    Returns:
        The files by name, without `metadata`.

    Raises:
        CheckpointError: The files do not match the state: another query ("other_query"), files
            removed ("not_found"), planned again ("gap"); or the micro-batch is not finished yet
            ("in_progress"), or the query has state of Spark's own ("foreign_state").
        UsageError: *query* is no checkpointLocation.
        StoreError: The store failed.

    Blocks: On the files.
    """
    batch_id = record.batch_id
    if query.query_id() != record.query_id:
        raise CheckpointError(
            f"{query.url} is the checkpointLocation of query {query.query_id()}, the state is that of "
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
            f"batch {batch_id} of {query.url} is not finished: its sink has not taken its rows yet. "
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
    """
    Return the files that say what a micro-batch reads, and what was read before it.

    Args:
        query: The checkpointLocation of the query.
        batch_id: The micro-batch.
        offsets: Its offsets.
        folders: Names of the sources' logs below `sources/`, in their order; None if unknown.

    Raises:
        CheckpointError: An entry of a log is missing ("not_found").
        CorruptionError: One is damaged.

    Blocks: On the files.
    """
    names = [f"{OFFSETS}/{batch_id}"] + ([f"{OFFSETS}/{batch_id - 1}"] if batch_id else [])
    files = {name: data for name in names if (data := query.read(name))}
    logs = kept_entries(folders, offsets)
    for folder, entry in logs.items():
        if entry >= 0:
            name = f"{_SOURCES}/{folder}/{entry}{COMPACT}"
            files[name] = _compact(files_upto(query, folder, entry))
    for folder in query.folders(_SOURCES):
        if folder not in logs:  # where the source began, which it reads at each restart
            files |= _whole(query, f"{_SOURCES}/{folder}")
    return files


def write_query(store: ObjectStore, files: Mapping[str, bytes], query_id: str) -> None:
    """
    Write a new checkpointLocation.

    `metadata` is last, so that an unfinished one is not that of a query.  A call that was interrupted
    before it is recognized by the offsets, which are those of *files*.

    Raises:
        UsageError: Another query has begun there.
        StoreError: The store failed; the call can be repeated.

    Blocks: On the files.
    """
    query = StoredQuery(store)
    metadata = msgspec.json.encode({"id": query_id})
    stored = query.read(METADATA)
    is_other = not _are_among(query, files) if stored is None else stored != metadata
    if is_other:
        raise UsageError(
            f"{store.url} is the checkpointLocation of another query already; choose a new folder"
        )
    for name, data in files.items():
        store.put(name, data)
    store.put(METADATA, metadata)


def _are_among(query: StoredQuery, files: Mapping[str, bytes]) -> bool:
    """Return whether all planned micro-batches of a checkpointLocation are among *files*."""
    names = [f"{OFFSETS}/{number}" for number in query.numbers(OFFSETS)]
    return all(name in files and query.read(name) == files[name] for name in names)


def _compact(files: Sequence[FileEntry]) -> bytes:
    return b"\n".join((_VERSION, *map(msgspec.json.encode, files)))


def _whole(query: StoredQuery, folder: str) -> dict[str, bytes]:
    names = (name for name in query.names(folder) if not name.startswith("."))
    read = {f"{folder}/{os.path.basename(name)}": query.read(f"{folder}/{name}") for name in names}
    return {name: data for name, data in read.items() if data is not None}
