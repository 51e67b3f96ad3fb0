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

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import CorruptionError, check
from statelog.format.group_index import GroupIndex
from statelog.model import METADATA_KEY_GROUP, ChangeBatch, StateChange, StateChangeSet

Buffer = bytes | memoryview
_INT: Final = struct.Struct(">i")
_GROUP: Final = struct.Struct(">ii")
_INT_SIZE: Final = _INT.size
_INT32_MAX: Final = 2**31 - 1
_SMALL_GROUP_BYTES: Final = 4096
"""Below this average, a step for each group costs more than one more pass over the values."""


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
    groups: GroupIndex


def checksum(buffers: Sequence[Buffer], initial: int = 0) -> int:
    """Return the CRC-32C over *buffers* one after another, continuing from *initial*."""
    crc = initial
    for buffer in buffers:
        crc = google_crc32c.extend(crc, buffer if isinstance(buffer, bytes) else np.asarray(buffer))
    return crc


def joined(pieces: Sequence[Buffer | bytearray]) -> memoryview:
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

    Raises:
        InvariantError: Columns differ in length, or the set does not have the size it declares.
    """
    batches = change_set.batches if isinstance(change_set, StateChangeSet) else change_set
    _check_columns(batches)
    if isinstance(change_set, StateChangeSet):
        value_bytes = sum(batch.size_bytes for batch in batches)
        check(
            value_bytes == change_set.size_bytes,
            f"set {change_set.sqn.value} of writer {change_set.log_id} declares "
            f"{change_set.size_bytes} value bytes and has {value_bytes}; nothing is written",
        )
    batches = [batch for batch in batches if len(batch)]
    if not batches:
        return _finish([_INT.pack(0)], _INT_SIZE, GroupIndex())
    key_groups = np.concatenate([batch.key_groups for batch in batches])
    arrays = [batch.values for batch in batches]
    order: npt.NDArray[np.int64] | None = None
    if np.any(key_groups[1:] < key_groups[:-1]):
        # int16 makes numpy's stable sort a radix sort; key groups never exceed 32767.
        order = np.argsort(key_groups.astype(np.int16), kind="stable")
        key_groups = key_groups[order]
    edges = np.flatnonzero(key_groups[1:] != key_groups[:-1]) + 1
    starts = np.concatenate(([0], edges, [len(key_groups)]))
    present, counts = key_groups[starts[:-1]], np.diff(starts)
    value_bytes = sum(_value_bytes(array) for array in arrays)
    length = _common_length(arrays)
    if value_bytes // len(present) < _SMALL_GROUP_BYTES:
        if length and length % _INT_SIZE == 0:
            return _encode_small_rows(_scattered(arrays, order, length), length, present, starts)
        return _encode_small_groups(_in_order(arrays, order), present, starts)
    if length:
        body = _scattered(arrays, order, length)
        bounds = (starts * (_INT_SIZE + length)).tolist()
    else:
        values = _in_order(arrays, order)
        lengths, sums = _lengths(values)
        bounds = (sums[starts] + _INT_SIZE * starts).tolist()
        prefixes = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_INT_SIZE), len(values), [None, pa.py_buffer(lengths.astype(">i4"))]
        )
        body = _woven(prefixes, values, bounds[-1])
    headers = np.stack([counts, present], axis=1).astype(">i4").tobytes()
    pieces: list[Buffer] = [_INT.pack(len(present))]
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        pieces.append(headers[index * _GROUP.size : (index + 1) * _GROUP.size])
        pieces.append(body[start:end])
    size_bytes = _INT_SIZE + len(headers) + bounds[-1]
    return _finish(
        pieces, size_bytes, GroupIndex.of(present, counts, np.diff(bounds) + _GROUP.size)
    )


def _encode_small_groups(
    values: pa.Array[Any], present: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]
) -> EncodedChangeSet:
    """Encode with group headers and lengths as one column before the values: no step per group."""
    lengths, sums = _lengths(values)
    counts = np.diff(starts)
    ordinals = np.arange(len(present))
    at_length = np.arange(len(values)) + 2 * (np.repeat(ordinals, counts) + 1)
    at_header = starts[:-1] + 2 * ordinals
    words = np.empty(len(values) + 2 * len(present), dtype=">i4")
    words[at_length] = lengths
    words[at_header] = counts
    words[at_header + 1] = present
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    offsets[1:] = (at_length + 1) * _INT_SIZE
    prefixes = pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(words)]
    )
    sizes = np.diff(sums[starts]) + _INT_SIZE * counts
    size_bytes = int(sizes.sum()) + _GROUP.size * len(present)
    pieces: list[Buffer] = [_INT.pack(len(present)), _woven(prefixes, values, size_bytes)]
    return _finish(
        pieces, _INT_SIZE + size_bytes, GroupIndex.of(present, counts, sizes + _GROUP.size)
    )


def _encode_small_rows(
    body: memoryview,
    length: int,
    present: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
) -> EncodedChangeSet:
    """Encode rows of one length, a multiple of four: headers go between them, word by word."""
    rows = np.frombuffer(body, dtype=">i4")
    row_words = 1 + length // _INT_SIZE
    counts = np.diff(starts)
    at_header = starts[:-1] * row_words + 2 * np.arange(len(present))
    room = pa.allocate_buffer((len(rows) + 2 * len(present)) * _INT_SIZE)
    words = np.frombuffer(room, dtype=">i4")
    is_row = np.ones(len(words), dtype=bool)
    is_row[at_header] = is_row[at_header + 1] = False
    words[is_row] = rows
    words[at_header] = counts
    words[at_header + 1] = present
    index = GroupIndex.of(present, counts, counts * row_words * _INT_SIZE + _GROUP.size)
    pieces: list[Buffer] = [_INT.pack(len(present)), memoryview(room).cast("B")]
    return _finish(pieces, _INT_SIZE + len(room), index)


def _check_columns(batches: Sequence[ChangeBatch]) -> None:
    for batch in batches:
        check(
            len(batch.key_groups) == len(batch.values),
            f"{len(batch.key_groups)} key groups beside {len(batch.values)} values in a change "
            "set; nothing is written",
        )


def _finish(pieces: list[Buffer], size: int, groups: GroupIndex) -> EncodedChangeSet:
    written = sum(map(len, pieces))
    check(written == size, f"a change set of {size} bytes has {written}; nothing is written")
    return EncodedChangeSet(tuple(pieces), size, checksum(pieces), groups)


def _offsets(values: pa.Array[Any]) -> npt.NDArray[Any]:
    wide = pa.types.is_large_binary(values.type)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64 if wide else np.int32)
    return offsets[values.offset : values.offset + len(values) + 1]


def _value_bytes(values: pa.Array[Any]) -> int:
    offsets = _offsets(values)
    return int(offsets[-1]) - int(offsets[0])


def _lengths(values: pa.Array[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the length of each value, and the summed lengths before each and after the last."""
    offsets = _offsets(values).astype(np.int64)
    return np.diff(offsets), offsets - offsets[0]


def _common_length(arrays: Sequence[pa.Array[Any]]) -> int:
    """Return the length that all values have, or 0 if they differ (or are empty)."""
    first = int(np.diff(_offsets(arrays[0])[:2])[0])
    same = all((np.diff(_offsets(values)) == first).all() for values in arrays)
    return first if same else 0


def _in_order(
    arrays: Sequence[pa.Array[Any]], order: npt.NDArray[np.int64] | None
) -> pa.Array[Any]:
    """Return all values as one array, in *order*."""
    wide = any(pa.types.is_large_binary(array.type) for array in arrays)
    if wide or sum(_value_bytes(array) for array in arrays) > _INT32_MAX:
        arrays = [array.cast(pa.large_binary()) for array in arrays]
    values = arrays[0] if len(arrays) == 1 else pa.concat_arrays(list(arrays))
    return values if order is None else values.take(pa.array(order))


def _scattered(
    arrays: Sequence[pa.Array[Any]], order: npt.NDArray[np.int64] | None, length: int
) -> memoryview:
    """
    Return values of one length, in *order*, each with its length before it.

    Every value is copied once, from where the caller left it to where it is written from.
    """
    total = sum(len(array) for array in arrays)
    # Arrow's memory pool keeps its pages; fresh ones from the system cost more than the copy.
    room = pa.allocate_buffer(total * (_INT_SIZE + length))
    body = np.frombuffer(room, dtype=np.uint8).reshape(total, _INT_SIZE + length)
    body[:, :_INT_SIZE] = np.frombuffer(_INT.pack(length), dtype=np.uint8)
    row = 0
    if order is not None:
        places = np.empty(total, dtype=np.int64)
        places[order] = np.arange(total)
    for values in arrays:
        start, end = (int(each) for each in _offsets(values)[[0, -1]])
        data = np.frombuffer(values.buffers()[2], dtype=np.uint8)[start:end]
        rows = slice(row, row + len(values))
        body[rows if order is None else places[rows], _INT_SIZE:] = data.reshape(-1, length)
        row += len(values)
    return memoryview(body.reshape(-1).data)


def _woven(prefixes: pa.Array[Any], values: pa.Array[Any], size_bytes: int) -> memoryview:
    """Return prefix and value of every row, one after another, *size_bytes* in all."""
    wide = pa.types.is_large_binary(values.type) or size_bytes > _INT32_MAX
    kind = pa.large_binary() if wide else pa.binary()
    woven = pc.binary_join_element_wise(
        prefixes.cast(kind), values.cast(kind), pa.scalar(b"", kind)
    )
    buffer = woven.buffers()[2]
    return memoryview(buffer if buffer is not None else b"").cast("B")[:size_bytes]


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


def decode_change_set(
    payload: Buffer, offset: int, *, size_bytes: int | None = None, where: str = ""
) -> DecodedChangeSet:
    """
    Decode the set that starts at *offset* of an uncompressed payload.

    Args:
        payload: Payload bytes, without the flag byte.
        offset: Where the set starts, 0 to the payload's length.
        size_bytes: Encoded length of the set, where it is known; the set must end exactly there.
        where: Name of the object, for messages.

    Raises:
        CorruptionError: Counts or lengths do not fit the payload, or the set has another size.
    """
    view = memoryview(payload)
    decoded = _decode_uniform_set(view, offset) or _decode_set(view, offset, where)
    _check_end(decoded.end, offset, size_bytes, where)
    return decoded


def _decode_set(view: memoryview, offset: int, where: str) -> DecodedChangeSet:
    """Decode any set, and say what is wrong with a damaged one."""
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


def group_index(batch: ChangeBatch) -> GroupIndex:
    """Return the groups of a set that was read back, in file order."""
    if not len(batch):
        return GroupIndex()
    edges = np.flatnonzero(np.diff(batch.key_groups)) + 1
    starts = np.concatenate(([0], edges))
    counts = np.append(edges, len(batch)) - starts
    lengths = pc.binary_length(batch.values).to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = np.add.reduceat(lengths, starts) + _INT_SIZE * counts + _GROUP.size
    return GroupIndex.of(batch.key_groups[starts], counts, sizes)


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


def iterate_change_set(
    payload: Buffer, offset: int, *, size_bytes: int | None = None, where: str = ""
) -> Iterator[StateChange]:
    """
    Yield the changes of the set at *offset* one by one, holding one change at a time.

    Args:
        payload: As for `decode_change_set`.
        offset: Likewise.
        size_bytes: Likewise; found out after the last change.
        where: Likewise.

    Raises:
        CorruptionError: Counts or lengths do not fit the payload, or the set has another size.
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
    _check_end(position, offset, size_bytes, where)


def _check_end(end: int, offset: int, size_bytes: int | None, where: str) -> None:
    """Refuse a set whose changes end before or behind the end that is recorded for it."""
    if size_bytes is not None and end != offset + size_bytes:
        _damaged(
            where,
            offset,
            f"its changes end after {end - offset} bytes, and {size_bytes} are recorded for it",
        )


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
