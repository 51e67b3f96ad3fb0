"""
One change set as bytes: Flink's layout, written and read in columns.

All integers are big-endian, signed, 32 bits::

    changeSet := numGroups  group{numGroups}
    group     := numChanges  keyGroup  change{numChanges}     count first, then the key group
    change    := length  bytes

The metadata group (key group -1) comes first where there is one.  Data groups are written in
ascending order; readers accept any order.  Inside a group, changes keep their append order.
Source: Flink, StateChangeFormat.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import CorruptionError
from statelog.model import METADATA_KEY_GROUP, ChangeBatch, StateChange, StateChangeSet

Buffer = bytes | memoryview
_INT: Final = struct.Struct(">i")
_GROUP: Final = struct.Struct(">ii")
_INT_SIZE: Final = _INT.size
_INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group inside an encoded set: its key group, number of changes, and encoded bytes."""

    key_group: int
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EncodedChangeSet:
    """
    A change set ready to be written.

    Args:
        buffers: The bytes, in pieces to be written one after another.
        size_bytes: Their summed length.
        crc32c: Checksum over them.
        groups: What the set holds, in file order.
    """

    buffers: tuple[Buffer, ...]
    size_bytes: int
    crc32c: int
    groups: tuple[GroupEntry, ...]


def checksum(buffers: Sequence[Buffer], initial: int = 0) -> int:
    """Return the CRC-32C over *buffers* one after another, continuing from *initial*."""
    crc = initial
    for buffer in buffers:
        crc = google_crc32c.extend(crc, buffer if isinstance(buffer, bytes) else np.asarray(buffer))
    return crc


def joined(pieces: Sequence[Buffer]) -> memoryview:
    """
    Return *pieces* one after another, in one buffer.

    For upload threads: the buffer comes from Arrow's memory pool, which keeps its pages.  What
    such a thread takes from the system comes in fresh pages, and they cost more than the copy.
    """
    whole = memoryview(pa.allocate_buffer(sum(len(piece) for piece in pieces))).cast("B")
    position = 0
    for piece in pieces:
        whole[position : position + len(piece)] = piece
        position += len(piece)
    return whole


def encode_change_set(change_set: StateChangeSet | Sequence[ChangeBatch]) -> EncodedChangeSet:
    """
    Encode the changes of one set.

    Args:
        change_set: A set, or its batches in append order.
    """
    batches = change_set.batches if isinstance(change_set, StateChangeSet) else change_set
    batches = [batch for batch in batches if len(batch)]
    if not batches:
        return _finish([_INT.pack(0)], _INT_SIZE, [])
    key_groups = np.concatenate([batch.key_groups for batch in batches])
    arrays = [batch.values for batch in batches]
    if len({array.type for array in arrays}) > 1:
        arrays = [array.cast(pa.large_binary()) for array in arrays]
    values = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    if np.any(key_groups[1:] < key_groups[:-1]):
        # int16 makes numpy's stable sort a radix sort; key groups never exceed 32767.
        order = np.argsort(key_groups.astype(np.int16), kind="stable")
        key_groups = key_groups[order]
        values = values.take(pa.array(order))
    present, starts = np.unique(key_groups, return_index=True)
    counts = np.diff(np.append(starts, len(key_groups)))
    body, bounds = _prefixed(values, np.append(starts, len(values)))
    pieces: list[Buffer] = [_INT.pack(len(present))]
    groups = []
    for index, (key_group, count) in enumerate(zip(present.tolist(), counts.tolist(), strict=True)):
        start, end = bounds[index], bounds[index + 1]
        pieces.append(_GROUP.pack(count, key_group))
        pieces.append(body[start:end])
        groups.append(GroupEntry(key_group, count, _GROUP.size + end - start))
    return _finish(pieces, _INT_SIZE + _GROUP.size * len(groups) + bounds[-1], groups)


def _finish(pieces: list[Buffer], size: int, groups: list[GroupEntry]) -> EncodedChangeSet:
    if len(pieces) > 3 and size // len(pieces) < 4096:  # many small pieces cost more than a copy
        pieces = [b"".join(pieces)]
    return EncodedChangeSet(tuple(pieces), size, checksum(pieces), tuple(groups))


def _prefixed(values: pa.Array[Any], starts: npt.NDArray[np.int64]) -> tuple[memoryview, list[int]]:
    """Return all values with their lengths before them, and the byte positions of *starts*."""
    wide = pa.types.is_large_binary(values.type)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64 if wide else np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    bounds = offsets[starts] - offsets[0] + _INT_SIZE * starts
    first = int(lengths[0])
    if first and (lengths == first).all():
        data = np.frombuffer(values.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
        # Arrow's memory pool keeps its pages; fresh ones from the system cost more than the copy.
        room = pa.allocate_buffer(len(values) * (_INT_SIZE + first))
        body = np.frombuffer(room, dtype=np.uint8).reshape(len(values), _INT_SIZE + first)
        body[:, :_INT_SIZE] = np.frombuffer(_INT.pack(first), dtype=np.uint8)
        body[:, _INT_SIZE:] = data.reshape(len(values), first)
        return memoryview(body.reshape(-1).data), bounds.tolist()
    prefixes = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(_INT_SIZE), len(values), [None, pa.py_buffer(lengths.astype(">i4").tobytes())]
    )
    if wide or int(bounds[-1]) > _INT32_MAX:
        joined = pc.binary_join_element_wise(
            prefixes.cast(pa.large_binary()),
            values.cast(pa.large_binary()),
            pa.scalar(b"", pa.large_binary()),
        )
    else:
        joined = pc.binary_join_element_wise(prefixes.cast(pa.binary()), values, b"")
    data_buffer = joined.buffers()[2]
    body_view = memoryview(data_buffer if data_buffer is not None else b"").cast("B")
    return body_view, bounds.tolist()


@dataclass(frozen=True, slots=True)
class DecodedChangeSet:
    """
    A change set read back.

    Args:
        batch: All changes in file order (metadata first).
        end: Payload position just behind the set.
    """

    batch: ChangeBatch
    end: int


def decode_change_set(payload: Buffer, offset: int, *, where: str = "") -> DecodedChangeSet:
    """
    Decode the set that starts at *offset* of an uncompressed payload.

    Args:
        payload: Payload bytes, without the flag byte.
        offset: Where the set starts, 0 to the payload's length.
        where: Name of the object, for messages.

    Raises:
        CorruptionError: Counts or lengths do not fit the payload.
    """
    view = memoryview(payload)
    if (uniform := _decode_uniform_set(view, offset)) is not None:
        return uniform
    position = offset
    (num_groups,) = _unpack(_INT, view, position, where, "the number of groups")
    position += _INT_SIZE
    if not 0 <= num_groups <= (len(view) - position) // _GROUP.size:
        _damaged(where, offset, f"{num_groups} groups cannot fit")
    key_groups: list[int] = []
    counts: list[int] = []
    parts: list[pa.Array[Any]] = []
    for _ in range(num_groups):
        count, key_group = _unpack(_GROUP, view, position, where, "a group header")
        start = position + _GROUP.size
        if not 0 <= count <= (len(view) - start) // _INT_SIZE:
            _damaged(where, position, f"{count} changes cannot fit")
        if key_group < METADATA_KEY_GROUP:
            _damaged(where, position, f"key group {key_group} is impossible")
        values, position = _decode_group(view, start, count, where)
        key_groups.append(key_group)
        counts.append(count)
        parts.append(values)
    column = np.repeat(np.asarray(key_groups, np.int32), np.asarray(counts, np.int64))
    return DecodedChangeSet(ChangeBatch(column, _concat(parts)), position)


def group_entries(batch: ChangeBatch) -> tuple[GroupEntry, ...]:
    """Return the groups of a set that was read back, in file order."""
    if not len(batch):
        return ()
    edges = np.flatnonzero(np.diff(batch.key_groups)) + 1
    starts = np.concatenate(([0], edges))
    ends = np.append(edges, len(batch))
    lengths = pc.binary_length(batch.values).to_numpy(zero_copy_only=False).astype(np.int64)
    sums = np.add.reduceat(lengths, starts) + _INT_SIZE * (ends - starts) + _GROUP.size
    return tuple(
        GroupEntry(*fields)
        for fields in zip(
            batch.key_groups[starts].tolist(), (ends - starts).tolist(), sums.tolist(), strict=True
        )
    )


def _decode_uniform_set(view: memoryview, offset: int) -> DecodedChangeSet | None:
    """
    Decode a set whose values all have one length, or return None if they do not seem to.

    The walk over the groups trusts the first length; afterwards every length is compared with it
    at once.  If all agree, each change was where the walk thought it was.  Whatever looks odd is
    left to the careful way, which says what is wrong.
    """
    limit = len(view)
    if offset < 0 or offset + _INT_SIZE + _GROUP.size + _INT_SIZE > limit:
        return None
    (num_groups,) = _INT.unpack_from(view, offset)
    (length,) = _INT.unpack_from(view, offset + _INT_SIZE + _GROUP.size)
    if length <= 0 or num_groups <= 0:
        return None
    stride = _INT_SIZE + length
    key_groups, counts, parts = [], [], []
    position = offset + _INT_SIZE
    for _ in range(num_groups):
        start = position + _GROUP.size
        if start > limit:
            return None
        count, key_group = _GROUP.unpack_from(view, position)
        position = start + stride * count
        if count <= 0 or key_group < METADATA_KEY_GROUP or position > limit:
            return None
        key_groups.append(key_group)
        counts.append(count)
        parts.append(view[start:position])
    total = sum(counts)
    if total * length > _INT32_MAX:
        return None
    rows = np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(total, stride)
    if not (rows[:, :_INT_SIZE] == np.frombuffer(_INT.pack(length), dtype=np.uint8)).all():
        return None
    data = np.ascontiguousarray(rows[:, _INT_SIZE:])
    offsets = np.arange(total + 1, dtype=np.int32) * np.int32(length)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.binary(), total, buffers)
    column = np.repeat(np.asarray(key_groups, np.int32), np.asarray(counts, np.int64))
    return DecodedChangeSet(ChangeBatch(column, values), position)


def _concat(parts: list[pa.Array[Any]]) -> pa.Array[Any]:
    if len(parts) == 1:
        return parts[0]
    if sum(part.nbytes for part in parts) > _INT32_MAX:
        parts = [part.cast(pa.large_binary()) for part in parts]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


def _decode_group(
    view: memoryview, start: int, count: int, where: str
) -> tuple[pa.Array[Any], int]:
    """Return the values of one group and the position behind it."""
    if count == 0:
        return pa.array([], pa.binary()), start
    (first,) = _unpack(_INT, view, start, where, "a length")
    stride = _INT_SIZE + first
    end = start + stride * count
    if first > 0 and end <= len(view):
        rows = np.frombuffer(view[start:end], dtype=np.uint8).reshape(count, stride)
        # If every length at this stride equals the first, each is where the one before it says.
        lengths = np.ascontiguousarray(rows[:, :_INT_SIZE]).view(">i4").reshape(count)
        if (lengths == first).all():
            data = np.ascontiguousarray(rows[:, _INT_SIZE:]).reshape(-1)
            wide = data.nbytes > _INT32_MAX
            offsets = np.arange(count + 1, dtype=np.int64 if wide else np.int32) * first
            kind = pa.large_binary() if wide else pa.binary()
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            return pa.Array.from_buffers(kind, count, buffers), end
    return _decode_varied_group(view, start, count, where)


def _decode_varied_group(
    view: memoryview, start: int, count: int, where: str
) -> tuple[pa.Array[Any], int]:
    limit = len(view)
    unpack = _INT.unpack_from
    positions = [start]
    position = start
    for _ in range(count):
        if position + _INT_SIZE > limit:
            _damaged(where, position, "the payload ends inside a change")
        (length,) = unpack(view, position)
        position += _INT_SIZE + length
        if length < 0 or position > limit:
            _damaged(where, position, f"a change of {length} bytes cannot fit")
        positions.append(position)
    wide = position - start > _INT32_MAX
    offsets = np.asarray(positions, np.int64) - start
    buffers = [
        None,
        pa.py_buffer(offsets if wide else offsets.astype(np.int32)),
        pa.py_buffer(view[start:position]),
    ]
    prefixed = pa.Array.from_buffers(pa.large_binary() if wide else pa.binary(), count, buffers)
    # The kernel reserves `stop` bytes for each value, so it must not be larger than needed.
    longest = int(np.diff(offsets).max())
    return pc.binary_slice(prefixed, _INT_SIZE, longest), position


def iterate_change_set(payload: Buffer, offset: int, *, where: str = "") -> Iterator[StateChange]:
    """
    Yield the changes of the set at *offset* one by one, holding one change at a time.

    Raises:
        CorruptionError: Counts or lengths do not fit the payload.
    """
    view = memoryview(payload)
    limit = len(view)
    (num_groups,) = _unpack(_INT, view, offset, where, "the number of groups")
    position = offset + _INT_SIZE
    if num_groups < 0:
        _damaged(where, offset, f"{num_groups} groups are impossible")
    unpack = _INT.unpack_from
    for _ in range(num_groups):
        count, key_group = _unpack(_GROUP, view, position, where, "a group header")
        position += _GROUP.size
        if count < 0 or key_group < METADATA_KEY_GROUP:
            _damaged(where, position, f"group of {count} changes in key group {key_group}")
        for _ in range(count):
            if position + _INT_SIZE > limit:
                _damaged(where, position, "the payload ends inside a change")
            (length,) = unpack(view, position)
            start = position + _INT_SIZE
            position = start + length
            if length < 0 or position > limit:
                _damaged(where, start, f"a change of {length} bytes cannot fit")
            yield StateChange(key_group, bytes(view[start:position]))


def _unpack(
    layout: struct.Struct, view: memoryview, position: int, where: str, what: str
) -> tuple[Any, ...]:
    if position < 0 or position + layout.size > len(view):
        _damaged(where, position, f"the payload ends ({len(view)} bytes) inside {what}")
    return layout.unpack_from(view, position)


def _damaged(where: str, offset: int, reason: str) -> None:
    raise CorruptionError(
        f"damaged change set in {where or 'payload'} at payload offset {offset}: {reason}",
        path=where,
        offset=offset,
    )
