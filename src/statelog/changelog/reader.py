"""
Handles to changes: every byte verified, each file fetched once.

Usable without a storage: all that is needed is the store.
Source: Flink, StateChangelogHandleStreamHandleReader and StateChangeFormat.  Deviations: changes
come in columns too; consecutive sets of one file share one request (H14); one set out of a large
plain file is fetched by itself; foreign key groups can be dropped; damage is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from statelog.errors import CorruptionError, ObjectNotFoundError, StoreError
from statelog.format.change_set import decode_change_set
from statelog.format.segment import Segment, parse_segment, verify_set
from statelog.model import (
    METADATA_KEY_GROUP,
    ByteStreamStateHandle,
    ChangeBatch,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    StateChange,
    StreamStateHandle,
)
from statelog.store.api import ObjectStore

CHANGE_SCHEMA = pa.schema(
    [
        pa.field("key_group", pa.int32(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""Columns of `read_change_batches`: key group (-1 for metadata) and value."""

_FLAG_SIZE = 1
_ARROW_BINARY_MAX = 2**31 - 1
_RANGED_GET_FRACTION = 0.5
"""A lone set is fetched by itself if it is at most this part of its file."""

_new_change = partial(tuple.__new__, StateChange)


def read_changes(store: ObjectStore, handle: ChangelogStateHandle) -> Iterator[StateChange]:
    """
    Yield the changes of *handle* one by one, set by set.

    Inside a set metadata comes first, then key group by key group; inside a key group the order is
    that of the appends.

    Args:
        store: Where the handle's paths lie.
        handle: What to read.

    Raises:
        ObjectNotFoundError: A file is missing.
        CorruptionError: A file is damaged; nothing of the damaged part was returned.
        IncompatibleFormatError: A newer statelog wrote a file.

    Blocks: For the store.
    """
    for batch in _read_sets(store, handle):
        # One pass in C: a named tuple made by its class costs twice as much.
        yield from map(
            _new_change, zip(batch.key_groups.tolist(), batch.values.to_pylist(), strict=True)
        )


def read_change_batches(
    store: ObjectStore,
    handle: ChangelogStateHandle,
    key_group_range: KeyGroupRange | None = None,
) -> Iterator[pa.RecordBatch]:
    """
    Yield the changes of *handle* in columns, one batch or more for each set.

    Args:
        store: Where the handle's paths lie.
        handle: What to read.
        key_group_range: Drop changes of other key groups; metadata is always kept.

    Raises:
        ObjectNotFoundError: A file is missing.
        CorruptionError: A file is damaged.
        IncompatibleFormatError: A newer statelog wrote a file.

    Blocks: For the store.
    """
    for batch in _read_sets(store, handle):
        wanted = batch if key_group_range is None else _only(batch, key_group_range)
        for values, start in _narrow(wanted.values):
            key_groups = wanted.key_groups[start : start + len(values)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(key_groups, pa.int32()), values], schema=CHANGE_SCHEMA
            )


def _read_sets(store: ObjectStore, handle: ChangelogStateHandle) -> Iterator[ChangeBatch]:
    """Yield the sets of *handle*; consecutive entries of one file share its bytes."""
    for stream, group in groupby(handle.handles_and_offsets, key=lambda entry: entry.handle):
        entries = list(group)
        try:
            if len(entries) == 1 and (batch := _read_lone_set(store, stream, entries[0])):
                yield batch
                continue
            segment = _open(store, stream)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                f"changelog file {_name(stream)} of handle {handle.state_handle_id} (checkpoint "
                f"{handle.checkpoint_id}) is missing in {store.url}: it was deleted too early, or "
                "this is another store",
                path=_name(stream),
                state_handle_id=handle.state_handle_id,
            ) from error
        for entry in entries:
            yield _set_at(segment, entry)


def _read_lone_set(
    store: ObjectStore, stream: StreamStateHandle, entry: HandleAndOffset
) -> ChangeBatch | None:
    """
    Fetch one set by its position, or return None where the whole file is the better way.

    A framed file has other bytes at that position, or ends before it.  Then the checksum does not
    match, or the store refuses; the whole file, which is read next, says what is true.
    """
    if not isinstance(stream, FileStateHandle) or entry.size_bytes is None or entry.crc32c is None:
        return None
    if entry.size_bytes > stream.size_bytes * _RANGED_GET_FRACTION:
        return None
    try:
        encoded = store.get_range(stream.path, _FLAG_SIZE + entry.offset, entry.size_bytes)
        verify_set(encoded, entry.crc32c)
    except ObjectNotFoundError:
        raise
    except (CorruptionError, StoreError):
        return None
    decoded = decode_change_set(encoded, 0, where=stream.path)
    return decoded.batch if decoded.end == len(encoded) else None


def _open(store: ObjectStore, stream: StreamStateHandle) -> Segment:
    if isinstance(stream, ByteStreamStateHandle):
        return parse_segment(stream.data, where=stream.name)
    return parse_segment(store.get(stream.path), where=stream.path)


def _set_at(segment: Segment, entry: HandleAndOffset) -> ChangeBatch:
    """Decode the set that *entry* names, after making sure that there is one."""
    where, offset = segment.where, entry.offset
    if segment.trailer is not None:
        sizes = {each.offset: each.size_bytes for each in segment.trailer.sets}
        if sizes.get(offset) is None or entry.size_bytes not in (None, sizes[offset]):
            raise CorruptionError(
                f"{where} has no change set at payload offset {offset} of the size its handle "
                "names: the handle belongs to another file",
                path=where,
                offset=offset,
            )
    elif entry.crc32c is not None and entry.size_bytes is not None:
        # The handle knows more than the file: it has lost its trailer.
        encoded = segment.payload[offset : offset + entry.size_bytes]
        verify_set(encoded, entry.crc32c, where=where, offset=offset)
    return decode_change_set(segment.payload, offset, where=where).batch


def _only(batch: ChangeBatch, key_group_range: KeyGroupRange) -> ChangeBatch:
    column = batch.key_groups
    wanted = (column >= key_group_range.start) & (column <= key_group_range.end)
    wanted |= column == METADATA_KEY_GROUP
    if wanted.all():
        return batch
    return ChangeBatch(column[wanted], batch.values.filter(pa.array(wanted)))


def _narrow(values: pa.Array[Any]) -> Iterator[tuple[pa.Array[Any], int]]:
    """Yield *values* as `binary` arrays with their positions, split where they pass 2 GiB."""
    if pa.types.is_binary(values.type):
        yield values, 0
        return
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    start = 0
    while start < len(values):
        end = int(np.searchsorted(offsets, offsets[start] + _ARROW_BINARY_MAX, side="right")) - 1
        end = max(start + 1, end)
        yield values.slice(start, end - start).cast(pa.binary()), start
        start = end


def _name(stream: StreamStateHandle) -> str:
    return stream.path if isinstance(stream, FileStateHandle) else stream.name
