"""
Read the changes of a handle, verifying every byte and fetching each file once.

The functions need only the store, no storage.  Each file is read from its host-local copy if that
exists and is intact, else from the store.
Source: Flink, StateChangelogHandleStreamHandleReader and StateChangeFormat.  Deviations: changes
can be read in columns too; consecutive sets of one file share one request (H14); one set of a large
plain file is fetched alone; foreign key groups can be dropped; damage is an error; a damaged local
copy affects its own file, not the whole local state.

A log has one handle for each checkpoint since the last snapshot and each task, and a file for most
of them.  `read_logs` reads several at once where a request takes a round trip.

`StateChangeFormat` is for uploaders and readers with their own input and output.  Deviation: it
writes a whole file, with the flag byte before the change sets and the index with checksums after
them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from statelog.arguments import refused, switch, whole_number
from statelog.changelog.local_registry import LocalFiles
from statelog.errors import (
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    StoreError,
    UsageError,
)
from statelog.format.buffers import Buffer
from statelog.format.change_set import decode_change_set
from statelog.format.segment import Segment, SegmentWriter, parse_segment, verify_set
from statelog.format.trailer import SetEntry
from statelog.metrics import Metrics
from statelog.model import (
    METADATA_KEY_GROUP,
    ByteStreamStateHandle,
    ChangeBatch,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    StateChange,
    StateChangeSet,
    StreamStateHandle,
)
from statelog.model.state_change import INT32_MAX, ChangeRows
from statelog.runtime.pool import CALLS_MAX
from statelog.store.api import ObjectStore
from statelog.store.requests import ask_at_once, endpoint_of
from statelog.store.verified import Source, read_verified

_log = logging.getLogger("statelog")

CHANGE_SCHEMA = pa.schema(
    [
        pa.field("key_group", pa.int32(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""Columns of `read_change_batches`: key group (-1 for metadata) and value."""

_FLAG_SIZE = 1
_RANGED_GET_FRACTION = 0.5
"""A single set is fetched alone if it is at most this fraction of its file."""

_LOCAL_FILES = LocalFiles()

_new_change = partial(tuple.__new__, StateChange)
Part: TypeAlias = tuple[ChangelogStateHandle, KeyGroupRange]
_WINDOW_BYTES: Final = 32 * 1024 * 1024
"""Maximum value bytes to read at once; larger handles are read alone, set by set."""


class FileSource(Source, Protocol):
    """A source of whole files and byte ranges: an `ObjectStore`, a `DownloadCache`, local files."""

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only at the end of the file."""
        ...


@dataclass(slots=True)
class ReadReport:
    """
    Counts what a restore read from each source; filled by one reader at a time.

    Args:
        local_files: Files read from local copies.
        remote_files: Files read from the store, or from a cache of it.
        inline: Pieces of state inside the handle.
        set_aside: Local copies that were not used, each with the reason.
    """

    local_files: int = 0
    remote_files: int = 0
    inline: int = 0
    set_aside: list[tuple[str, str]] = field(default_factory=list)


def read_changes(
    store: FileSource,
    handle: ChangelogStateHandle,
    *,
    local: ChangelogStateHandle | None = None,
    report: ReadReport | None = None,
    disk: FileSource = _LOCAL_FILES,
    metrics: Metrics | None = None,
) -> Iterator[StateChange]:
    """
    Yield the changes of *handle* one by one, one change set after another.

    A set yields its metadata first, then its changes by key group; the changes of a key group are
    in the order of their appends.

    Args:
        store: The store that contains the files of the handle.
        handle: The handle to read.
        local: Its host-local copy (`SnapshotResult.task_local`); used as far as it is intact.
        report: Counts the sources.
        disk: Reads local copies.
        metrics: Counts hits and misses of local copies; None disables it.

    Raises:
        ObjectNotFoundError: A file is missing.
        CorruptionError: A file is damaged; nothing of the damaged part was returned.
        IncompatibleFormatError: A file has a different format version.

    Blocks: For the store.
    """
    for batch in _read_sets(store, handle, local, report, disk, metrics):
        if isinstance(batch, ChangeRows):
            yield from batch
            continue
        # One pass in C: calling the class of the named tuple costs twice as much.
        yield from map(
            _new_change, zip(batch.key_groups.tolist(), batch.values.to_pylist(), strict=True)
        )


def read_change_batches(
    store: FileSource,
    handle: ChangelogStateHandle,
    key_group_range: KeyGroupRange | None = None,
    *,
    local: ChangelogStateHandle | None = None,
    report: ReadReport | None = None,
    disk: FileSource = _LOCAL_FILES,
    metrics: Metrics | None = None,
) -> Iterator[pa.RecordBatch]:
    """
    Yield the changes of *handle* in columns, as one or more batches per change set.

    Args:
        store: The store that contains the files of the handle.
        handle: The handle to read.
        key_group_range: Drop changes of other key groups; metadata is always kept.
        local: Its host-local copy; used as far as it is intact.
        report: Counts the sources.
        disk: Reads local copies.
        metrics: Counts hits and misses of local copies; None disables it.

    Raises:
        ObjectNotFoundError: A file is missing.
        CorruptionError: A file is damaged.
        IncompatibleFormatError: A file has a different format version.

    Blocks: For the store.
    """
    for batch in _read_sets(store, handle, local, report, disk, metrics):
        chosen = batch if key_group_range is None else _only(batch, key_group_range)
        for values, start in _as_binary(chosen.values):
            key_groups = chosen.key_groups[start : start + len(values)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(key_groups, pa.int32()), values], schema=CHANGE_SCHEMA
            )


def _read_sets(
    store: FileSource,
    handle: ChangelogStateHandle,
    local: ChangelogStateHandle | None,
    report: ReadReport | None,
    disk: FileSource,
    metrics: Metrics | None,
) -> Iterator[ChangeBatch]:
    """Yield the change sets of *handle*; consecutive entries in a file are read together."""
    report = report if report is not None else ReadReport()
    copies = _copies_of(handle, local, report)
    # Neighbouring entries of one file share its bytes, and so its request.
    for stream, group in groupby(handle.handles_and_offsets, key=lambda entry: entry.handle):
        entries = list(group)
        copy = copies.get(stream)
        # 1. The local copy, if it is whole.
        if copy is not None and (batches := _read_copy(disk, copy, entries, report)) is not None:
            if metrics is not None:
                metrics.count("local_recovery_hits")
                metrics.count("local_recovery_bytes", copy.size_bytes)
            yield from batches
            continue
        # 2. Else the store, or the bytes in the handle.
        if isinstance(stream, FileStateHandle):
            report.remote_files += 1
            if local is not None and metrics is not None:
                metrics.count("local_recovery_misses")
                metrics.count("local_copy_errors", int(copy is not None))
        else:
            report.inline += 1
        try:
            yield from _read_entries(store, stream, entries)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                f"changelog file {stream.name} of handle {handle.state_handle_id} (checkpoint "
                f"{handle.checkpoint_id}) is missing in {store.url}: it was deleted, or the handle "
                "belongs to a different store; check the location",
                path=stream.name,
            ) from error


def _copies_of(
    handle: ChangelogStateHandle, local: ChangelogStateHandle | None, report: ReadReport
) -> dict[StreamStateHandle, FileStateHandle]:
    """Return the local copies of those files of *handle* that have one."""
    if local is None:
        return {}
    # A copy has the same entries at the same offsets; anything else is the copy of another handle.
    pairs = list(zip(handle.handles_and_offsets, local.handles_and_offsets, strict=False))
    if (
        local.state_handle_id != handle.state_handle_id
        or len(handle.handles_and_offsets) != len(local.handles_and_offsets)
        or any(entry.offset != copy.offset for entry, copy in pairs)
    ):
        _set_aside(
            report, local.state_handle_id, f"it is not a copy of handle {handle.state_handle_id}"
        )
        return {}
    return {
        entry.handle: copy.handle
        for entry, copy in pairs
        if isinstance(entry.handle, FileStateHandle) and isinstance(copy.handle, FileStateHandle)
    }


def _read_copy(
    disk: FileSource, copy: FileStateHandle, entries: list[HandleAndOffset], report: ReadReport
) -> list[ChangeBatch] | None:
    """
    Read the sets of *entries* from a local copy; return None if it is damaged.

    All sets are read before the first is yielded, because a yielded set cannot be withdrawn.
    """
    try:
        batches = list(_read_entries(disk, copy, entries))
    except (CorruptionError, IncompatibleFormatError, StoreError) as error:
        _set_aside(report, copy.path, str(error))
        return None
    report.local_files += 1
    return batches


def _set_aside(report: ReadReport, name: str, reason: str) -> None:
    report.set_aside.append((name, reason))
    _log.warning("cannot use the local copy %s; reading from the store instead: %s", name, reason)


def _read_entries(
    source: FileSource, stream: StreamStateHandle, entries: list[HandleAndOffset]
) -> Iterator[ChangeBatch]:
    """Yield the sets of *entries*, which are all stored in *stream*."""
    # One set of a large file: only its bytes are fetched.
    if len(entries) == 1 and (batch := _read_lone_set(source, stream, entries[0])):
        yield batch
        return
    if isinstance(stream, ByteStreamStateHandle):
        yield from _sets_of(parse_segment(stream.data, where=stream.name), entries)
        return
    path = stream.path
    yield from read_verified(
        source, path, lambda data: _sets_of(parse_segment(data, where=path), entries)
    )


def _sets_of(segment: Segment, entries: list[HandleAndOffset]) -> Iterable[ChangeBatch]:
    """Verify the bytes of all *entries* before returning their sets."""
    if segment.trailer is None:  # each set has its own checksum at most
        return [_set_at(segment, None, entry) for entry in entries]
    index = segment.sets_by_offset()
    return (_set_at(segment, index, entry) for entry in entries)


def _read_lone_set(
    store: FileSource, stream: StreamStateHandle, entry: HandleAndOffset
) -> ChangeBatch | None:
    """
    Fetch a single set by its position; return None if the whole file must be read.

    A framed file has other bytes at that position, or ends before it.  Then the checksum does not
    match, or the store refuses the range, and the whole file is read next.
    """
    if not isinstance(stream, FileStateHandle) or entry.size_bytes is None or entry.crc32c is None:
        return None
    # Most of the file is needed anyway, and the whole file has a checksum of its own.
    if entry.size_bytes > stream.size_bytes * _RANGED_GET_FRACTION:
        return None
    try:
        encoded = store.get_range(stream.path, _FLAG_SIZE + entry.offset, entry.size_bytes)
        verify_set(encoded, entry.crc32c)
    except ObjectNotFoundError:
        raise
    except (CorruptionError, StoreError):
        return None
    return decode_change_set(encoded, 0, size_bytes=len(encoded), where=stream.path).batch


def _set_at(
    segment: Segment, index: dict[int, SetEntry] | None, entry: HandleAndOffset
) -> ChangeBatch:
    """Check that the file contains the set of *entry*, and decode it."""
    where = segment.where
    offset = entry.offset
    size_bytes = entry.size_bytes
    if index is not None:
        position = index.get(offset)
        if (
            position is None
            or entry.size_bytes not in (None, position.size_bytes)
            or entry.crc32c not in (None, position.crc32c)
        ):
            raise CorruptionError(
                f"{where} does not contain a change set with the handle's size and checksum at "
                f"payload offset {offset}: the handle belongs to a different file",
                path=where,
                offset=offset,
            )
        size_bytes = position.size_bytes
    elif entry.crc32c is not None and entry.size_bytes is not None:
        # The file has lost its trailer, so the checksum of the handle is used.
        encoded = segment.payload[offset : offset + entry.size_bytes]
        verify_set(encoded, entry.crc32c, where=where, offset=offset)
    return decode_change_set(segment.payload, offset, size_bytes=size_bytes, where=where).batch


def _only(batch: ChangeBatch, key_group_range: KeyGroupRange) -> ChangeBatch:
    column = batch.key_groups
    chosen = (column >= key_group_range.start) & (column <= key_group_range.end)
    chosen |= column == METADATA_KEY_GROUP
    if chosen.all():
        return batch
    return ChangeBatch(column[chosen], batch.values.filter(pa.array(chosen)))


def _as_binary(values: pa.Array) -> Iterator[tuple[pa.Array, int]]:
    """Yield *values* as `binary` arrays with their positions, split at 2 GiB."""
    if pa.types.is_binary(values.type):
        yield values, 0
        return
    # A slice shares its buffers with the whole array, so its own offsets begin at `values.offset`.
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    start = 0
    while start < len(values):
        end = int(np.searchsorted(offsets, offsets[start] + INT32_MAX, side="right")) - 1
        # At least one value, whatever its length: no value exceeds 2 GiB.
        end = max(start + 1, end)
        yield values.slice(start, end - start).cast(pa.binary()), start
        start = end


def read_logs(store: ObjectStore, parts: Iterable[Part]) -> Iterator[Iterable[pa.RecordBatch]]:
    """Yield the changes of several handles, like `read_change_batches` for each."""
    # A local disk answers at once, so no round trip is shared.
    if endpoint_of(store) is None:
        for handle, key_groups in parts:
            yield read_change_batches(store, handle, key_groups)
        return
    for window in _windows(parts):
        if len(window) == 1:
            yield read_change_batches(store, *window[0])
            continue
        # Neighbours in one file are read by one call, which fetches that file once.
        together = [list(neighbours) for _, neighbours in groupby(window, key=_first_path)]
        reads = [partial(_read, store, batches) for batches in together]
        for batches in ask_at_once(store, reads):
            yield from batches


def _windows(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield groups of parts to read together; an oversized part forms its own group."""
    window: list[Part] = []
    size = 0
    for part in parts:
        part_bytes = max(part[0].size_bytes, 0)
        if window and (len(window) == CALLS_MAX or size + part_bytes > _WINDOW_BYTES):
            yield window
            window = []
            size = 0
        window.append(part)
        size += part_bytes
    if window:
        yield window


def _first_path(part: Part) -> str:
    """
    Return the first file of a handle.

    The handles of one checkpoint may share it, and its one request.
    """
    for entry in part[0].handles_and_offsets:
        if isinstance(entry.handle, FileStateHandle):
            return entry.handle.path
    return ""


def _read(store: ObjectStore, parts: Sequence[Part]) -> list[list[pa.RecordBatch]]:
    return [list(read_change_batches(store, *part)) for part in parts]


class ByteSink(Protocol):
    """Accepts bytes in order: an open binary file, `io.BytesIO` or a socket's file."""

    def write(self, data: Buffer, /) -> object:
        """Store *data*."""
        ...


class StateChangeFormat:
    """
    Writes change sets to one changelog file, and reads single sets back.

    Args:
        compress: Snappy-frame the payload.
    """

    def __init__(self, *, compress: bool = False) -> None:
        self._compress = switch(compress, "compress")

    def write(
        self, out: ByteSink, change_sets: Iterable[StateChangeSet]
    ) -> dict[StateChangeSet, SetEntry]:
        """
        Write *change_sets*, in this order, as one complete file.

        Args:
            out: Takes the file; it is neither flushed nor closed.
            change_sets: Sets of any writers; Flink's order is by log id and number.

        Returns:
            For each set its payload offset, encoded length and checksum, as
            `UploadTasksResult.of` takes them.

        Raises:
            UsageError: One of them is not a change set, or appears twice.

        Blocks: While *out* does.
        """
        segment = SegmentWriter(compress=self._compress)
        places: dict[StateChangeSet, SetEntry] = {}
        for change_set in change_sets:
            if not isinstance(change_set, StateChangeSet):
                raise refused("each of change_sets", "a StateChangeSet", change_set)
            if change_set in places:
                raise UsageError(
                    f"change set {change_set.sqn} of log {change_set.log_id} appears twice; pass "
                    "each change set only once"
                )
            places[change_set] = segment.add(change_set)
        for piece in segment.finish():
            out.write(piece)
        return places

    def read(self, data: Buffer, offset: int = 0) -> Iterator[StateChange]:
        """
        Yield the changes in one set of a file written by statelog or Flink.

        Args:
            data: The whole file; every checksum it has is verified.
            offset: Payload offset of the set, as in its handle.

        Raises:
            CorruptionError: The file is damaged, or no set begins at *offset*.
        """
        start = whole_number(offset, "offset", low=0)
        segment = parse_segment(data)
        yield from decode_change_set(segment.payload, start).batch
