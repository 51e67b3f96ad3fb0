"""
One change set as bytes: Flink's layout, its encoder and its decoder, in columns or one by one.

All integers are big-endian, signed, 32 bits::

    changeSet := numGroups  group{numGroups}
    group     := numChanges  keyGroup  change{numChanges}     count first, then the key group
    change    := length  bytes

The metadata group (key group -1) comes first where there is one.  Data groups are written in
ascending order; readers accept any order.  Inside a group, changes keep their append order.
Small groups of values of one length are scattered into one array; large groups are joined.
Every length is checked before it is used, and decoding ends exactly at the size of the set.
Source: Flink, StateChangeFormat.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import CorruptionError, InvariantError
from statelog.format.buffers import Buffer, checksum
from statelog.format.trailer import GroupIndex
from statelog.model import METADATA_KEY_GROUP, ChangeBatch, StateChangeSet
from statelog.model.state_change import INT32_MAX, ChangeRows, joined_values

INT: Final = struct.Struct(">i")
GROUP: Final = struct.Struct(">ii")
LONE_CHANGE: Final = struct.Struct(">iii")
"""A group of one change: count, key group and length, before the bytes."""
INT_SIZE: Final = INT.size

_FEW_CHANGES: Final = 16
"""Up to this many changes are decoded faster one by one than in columns."""
_FEW_CHANGES_BYTES: Final = 65_536


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
    """Decode the set that starts at *offset* of an uncompressed payload."""
    view = memoryview(payload)
    if (few := _decode_rows(view, offset)) is not None:
        decoded = DecodedChangeSet(*few)
    else:
        decoded = (
            _decode_uniform_set(view, offset)
            or _decode_lone_changes(view, offset)
            or _decode_set(view, offset, where)
        )
    _check_end(decoded.end, offset, size_bytes, where)
    return decoded


def _decode_rows(view: memoryview, offset: int) -> tuple[ChangeRows, int] | None:
    """
    Decode a set of few changes; return it and its end.

    None for a larger set, and for one that looks damaged: the general decoder reports what is wrong.
    """
    limit = len(view)
    position = offset + INT_SIZE
    if offset < 0 or position > limit:
        return None
    (num_groups,) = INT.unpack_from(view, offset)
    if not 0 < num_groups <= _FEW_CHANGES:
        return None
    key_groups: list[int] = []
    values: list[bytes] = []
    for _ in range(num_groups):
        if position + GROUP.size > limit:
            return None
        count, key_group = GROUP.unpack_from(view, position)
        position += GROUP.size
        if not 0 < count <= _FEW_CHANGES - len(values) or key_group < METADATA_KEY_GROUP:
            return None
        for _ in range(count):
            if position + INT_SIZE > limit:
                return None
            (length,) = INT.unpack_from(view, position)
            start = position + INT_SIZE
            position = start + length
            if length < 0 or position > limit or position - offset > _FEW_CHANGES_BYTES:
                return None
            values.append(bytes(view[start:position]))
        key_groups += [key_group] * count
    return ChangeRows(tuple(key_groups), tuple(values)), position


def _decode_set(view: memoryview, offset: int, where: str) -> DecodedChangeSet:
    """Decode any set; raise an error that describes the damage."""
    position = offset
    (num_groups,) = _unpack(INT, view, position, where, "the number of groups")
    position += INT_SIZE
    if not 0 <= num_groups <= (len(view) - position) // GROUP.size:
        _damaged(where, offset, f"{num_groups} groups cannot fit")
    key_groups: list[int] = []
    counts: list[int] = []
    parts: list[pa.Array] = []
    for _ in range(num_groups):
        count, key_group = _unpack(GROUP, view, position, where, "a group header")
        start = position + GROUP.size
        if not 0 <= count <= (len(view) - start) // INT_SIZE:
            _damaged(where, position, f"{count} changes cannot fit")
        if key_group < METADATA_KEY_GROUP:
            _damaged(where, position, f"key group {key_group} is impossible")
        values, position = _decode_group(view, start, count, where)
        key_groups.append(key_group)
        counts.append(count)
        parts.append(values)
    column = np.repeat(np.asarray(key_groups, np.int32), np.asarray(counts, np.int64))
    return DecodedChangeSet(ChangeBatch(column, joined_values(parts)), position)


def group_index(batch: ChangeBatch) -> GroupIndex:
    """Return the groups of a set that was read back, in file order."""
    if not len(batch):
        return GroupIndex()
    edges = np.flatnonzero(np.diff(batch.key_groups)) + 1
    starts = np.concatenate(([0], edges))
    counts = np.append(edges, len(batch)) - starts
    lengths = pc.binary_length(batch.values).to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = np.add.reduceat(lengths, starts) + INT_SIZE * counts + GROUP.size
    return GroupIndex.of(batch.key_groups[starts], counts, sizes)


def _decode_uniform_set(view: memoryview, offset: int) -> DecodedChangeSet | None:
    """
    Decode a set whose values all have one length; None for any other set.

    The walk over the groups assumes the first length; afterwards every length is compared with it
    at once.  If all are equal, each change was where the walk assumed it.  A set that looks damaged
    is None too: the general decoder reports what is wrong with it.
    """
    limit = len(view)
    if offset < 0 or offset + INT_SIZE + GROUP.size + INT_SIZE > limit:
        return None
    (num_groups,) = INT.unpack_from(view, offset)
    (length,) = INT.unpack_from(view, offset + INT_SIZE + GROUP.size)
    if length <= 0 or num_groups <= 0:
        return None
    stride = INT_SIZE + length
    key_groups = []
    counts = []
    parts = []
    position = offset + INT_SIZE
    for _ in range(num_groups):
        start = position + GROUP.size
        if start > limit:
            return None
        count, key_group = GROUP.unpack_from(view, position)
        position = start + stride * count
        if count <= 0 or key_group < METADATA_KEY_GROUP or position > limit:
            return None
        key_groups.append(key_group)
        counts.append(count)
        parts.append(view[start:position])
    total = sum(counts)
    if total * length > INT32_MAX:
        return None
    rows = np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(total, stride)
    if not (rows[:, :INT_SIZE] == np.frombuffer(INT.pack(length), dtype=np.uint8)).all():
        return None
    data = np.ascontiguousarray(rows[:, INT_SIZE:])
    offsets = np.arange(total + 1, dtype=np.int32) * np.int32(length)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.binary(), total, buffers)
    column = np.repeat(np.asarray(key_groups, np.int32), np.asarray(counts, np.int64))
    return DecodedChangeSet(ChangeBatch(column, values), position)


def _decode_lone_changes(view: memoryview, offset: int) -> DecodedChangeSet | None:
    """
    Decode a set whose groups have one change each; None for any other set.

    Spark's tasks write such sets: all changes of a variable in a key group are one Arrow batch.  A
    set that looks damaged is None too, as for `_decode_uniform_set`.
    """
    limit = len(view)
    if offset < 0 or offset + INT_SIZE > limit:
        return None
    (num_groups,) = INT.unpack_from(view, offset)
    key_groups = []
    ends = [0]
    parts = []
    position = offset + INT_SIZE
    size = 0
    for _ in range(num_groups):
        start = position + LONE_CHANGE.size
        if start > limit:
            return None
        count, key_group, length = LONE_CHANGE.unpack_from(view, position)
        position = start + length
        if count != 1 or key_group < METADATA_KEY_GROUP or length < 0 or position > limit:
            return None
        size += length
        key_groups.append(key_group)
        ends.append(size)
        parts.append(view[start:position])
    if not parts or size > INT32_MAX:
        return None
    offsets = pa.py_buffer(np.array(ends, np.int32))
    buffers = [None, offsets, pa.py_buffer(b"".join(parts))]
    values = pa.Array.from_buffers(pa.binary(), len(parts), buffers)
    return DecodedChangeSet(ChangeBatch(np.array(key_groups, np.int32), values), position)


def _decode_group(view: memoryview, start: int, count: int, where: str) -> tuple[pa.Array, int]:
    """Return the values of one group and the position after it."""
    if count == 0:
        return pa.array([], pa.binary()), start
    (first,) = _unpack(INT, view, start, where, "a length")
    stride = INT_SIZE + first
    end = start + stride * count
    if first > 0 and end <= len(view):
        rows = np.frombuffer(view[start:end], dtype=np.uint8).reshape(count, stride)
        # If every length at this stride equals the first, the stride was right for each of them.
        lengths = np.ascontiguousarray(rows[:, :INT_SIZE]).view(">i4").reshape(count)
        if (lengths == first).all():
            data = np.ascontiguousarray(rows[:, INT_SIZE:]).reshape(-1)
            wide = data.nbytes > INT32_MAX
            offsets = np.arange(count + 1, dtype=np.int64 if wide else np.int32) * first
            kind = pa.large_binary() if wide else pa.binary()
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            return pa.Array.from_buffers(kind, count, buffers), end
    return _decode_varied_group(view, start, count, where)


def _decode_varied_group(
    view: memoryview, start: int, count: int, where: str
) -> tuple[pa.Array, int]:
    limit = len(view)
    unpack = INT.unpack_from
    positions = [start]
    position = start
    for _ in range(count):
        if position + INT_SIZE > limit:
            _damaged(where, position, "the payload ends inside a change")
        (length,) = unpack(view, position)
        position += INT_SIZE + length
        if length < 0 or position > limit:
            _damaged(where, position, f"a change of {length} bytes cannot fit")
        positions.append(position)
    wide = position - start > INT32_MAX
    offsets = np.asarray(positions, np.int64) - start
    buffers = [
        None,
        pa.py_buffer(offsets if wide else offsets.astype(np.int32)),
        pa.py_buffer(view[start:position]),
    ]
    prefixed = pa.Array.from_buffers(pa.large_binary() if wide else pa.binary(), count, buffers)
    # The kernel reserves `stop` bytes for each value, so it must not be larger than needed.
    longest = int(np.diff(offsets).max())
    return pc.binary_slice(prefixed, INT_SIZE, longest), position


def _check_end(end: int, offset: int, size_bytes: int | None, where: str) -> None:
    """Refuse a set whose end is not the recorded one."""
    if size_bytes is not None and end != offset + size_bytes:
        _damaged(
            where,
            offset,
            f"its changes end after {end - offset} bytes, and {size_bytes} are recorded for it",
        )


def _unpack(
    layout: struct.Struct, view: memoryview, position: int, where: str, what: str
) -> tuple[int, ...]:
    if position < 0 or position + layout.size > len(view):
        _damaged(where, position, f"the payload ends ({len(view)} bytes) inside {what}")
    return layout.unpack_from(view, position)


def _damaged(where: str, offset: int, reason: str) -> None:
    raise CorruptionError(
        f"damaged change set in {where or 'payload'} at payload offset {offset}: {reason}",
        path=where,
        offset=offset,
    )


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


def encode_change_set(
    change_set: StateChangeSet | Sequence[ChangeBatch],
) -> EncodedChangeSet:
    """Encode the changes of one set."""
    batches = change_set.batches if isinstance(change_set, StateChangeSet) else change_set
    _check_columns(batches)
    batches = [batch for batch in batches if len(batch)]
    value_bytes = sum(batch.size_bytes for batch in batches)
    if isinstance(change_set, StateChangeSet) and value_bytes != change_set.size_bytes:
        raise InvariantError(
            f"set {change_set.sqn.value} of writer {change_set.log_id} declares "
            f"{change_set.size_bytes} value bytes and has {value_bytes}; nothing is written"
        )
    if not batches:
        return _finish([INT.pack(0)], INT_SIZE, GroupIndex())
    if all(isinstance(batch, ChangeRows) for batch in batches):
        whole, groups = _encode_rows(batches)
        return _finish([whole], len(whole), groups)
    columns = [batch.key_groups for batch in batches]
    key_groups = columns[0] if len(columns) == 1 else np.concatenate(columns)
    arrays = [batch.values for batch in batches]
    order: npt.NDArray[np.int64] | None = None
    if (key_groups[1:] < key_groups[:-1]).any():
        # int16 makes numpy's stable sort a radix sort; key groups never exceed 32767.
        order = key_groups.astype(np.int16).argsort(kind="stable")
        key_groups = key_groups[order]
    edges = (key_groups[1:] != key_groups[:-1]).nonzero()[0] + 1
    starts = np.concatenate(([0], edges, [len(key_groups)]))
    present = key_groups[starts[:-1]]
    counts = starts[1:] - starts[:-1]
    length = _common_length(arrays)
    if value_bytes // len(present) < _SMALL_GROUP_BYTES:
        if length and length % INT_SIZE == 0:
            return _encode_small_rows(arrays, order, length, present, starts)
        return _encode_small_groups(_in_order(arrays, order), present, starts)
    if order is None and len(present) == len(key_groups):
        return _encode_lone_changes(arrays, present)
    if length:
        body = _scattered(arrays, order, length)
        bounds = (starts * (INT_SIZE + length)).tolist()
    else:
        values = _in_order(arrays, order)
        lengths, sums = _lengths(values)
        bounds = (sums[starts] + INT_SIZE * starts).tolist()
        prefixes = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(INT_SIZE), len(values), [None, pa.py_buffer(lengths.astype(">i4"))]
        )
        body = _woven(prefixes, values, bounds[-1])
    headers = np.stack([counts, present], axis=1).astype(">i4").tobytes()
    pieces: list[Buffer] = [INT.pack(len(present))]
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        pieces.append(headers[index * GROUP.size : (index + 1) * GROUP.size])
        pieces.append(body[start:end])
    size_bytes = INT_SIZE + len(headers) + bounds[-1]
    return _finish(pieces, size_bytes, GroupIndex.of(present, counts, np.diff(bounds) + GROUP.size))


def _check_columns(batches: Sequence[ChangeBatch]) -> None:
    for batch in batches:
        if len(batch.key_groups) != len(batch.values):
            raise InvariantError(
                f"a change set has {len(batch.key_groups)} key groups and {len(batch.values)} "
                "values; nothing is written"
            )


def _encode_rows(batches: Iterable[ChangeBatch]) -> tuple[bytes, GroupIndex]:
    """Return the bytes of a change set, and its groups."""
    groups: dict[int, list[bytes]] = {}
    for batch in batches:
        for key_group, value in batch:
            groups.setdefault(key_group, []).append(value)
    pieces = [INT.pack(len(groups))]
    index = []
    for key_group in sorted(groups):
        values = groups[key_group]
        pieces.append(GROUP.pack(len(values), key_group))
        size = GROUP.size + INT_SIZE * len(values)
        for value in values:
            pieces += (INT.pack(len(value)), value)
            size += len(value)
        index.append((key_group, len(values), size))
    return b"".join(pieces), GroupIndex.of_rows(index)


def _encode_lone_changes(
    arrays: Sequence[pa.Array], present: npt.NDArray[np.int32]
) -> EncodedChangeSet:
    """
    Encode groups of one change each, in order: every value is copied once, to its place.

    Spark's tasks write such sets: all changes of a variable in a key group are one Arrow batch.
    """
    key_groups = iter(present.tolist())
    pieces: list[Buffer] = [INT.pack(len(present))]
    lengths = []
    for values in arrays:
        data = _data(values).data
        for start, end in itertools.pairwise(_lengths(values)[1].tolist()):
            pieces += (LONE_CHANGE.pack(1, next(key_groups), end - start), data[start:end])
            lengths.append(end - start)
    whole = b"".join(pieces)
    sizes = np.array(lengths, np.int64) + LONE_CHANGE.size
    return _finish([whole], len(whole), GroupIndex.of(present, np.ones_like(sizes), sizes))


def _encode_small_groups(
    values: pa.Array, present: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]
) -> EncodedChangeSet:
    """Encode with headers and lengths as one column: no step for each group."""
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
    offsets[1:] = (at_length + 1) * INT_SIZE
    prefixes = pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(words)]
    )
    sizes = np.diff(sums[starts]) + INT_SIZE * counts
    size_bytes = int(sizes.sum()) + GROUP.size * len(present)
    pieces: list[Buffer] = [INT.pack(len(present)), _woven(prefixes, values, size_bytes)]
    return _finish(
        pieces, INT_SIZE + size_bytes, GroupIndex.of(present, counts, sizes + GROUP.size)
    )


def _encode_small_rows(
    arrays: Sequence[pa.Array],
    order: npt.NDArray[np.int64] | None,
    length: int,
    present: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
) -> EncodedChangeSet:
    """
    Encode values of one length, a multiple of four, with headers between them.

    Every value is copied once, from the caller's array to the buffer that is written.
    """
    value_words = length // INT_SIZE
    counts = starts[1:] - starts[:-1]
    ordinals = np.arange(len(present))
    at_header = starts[:-1] * (1 + value_words) + 2 * ordinals
    at_length = np.arange(starts[-1]) * (1 + value_words) + (2 * ordinals + 2).repeat(counts)
    num_words = int(starts[-1]) * (1 + value_words) + 2 * len(present)
    # Arrow's memory pool keeps its pages; fresh ones from the system cost more than the copy.
    buffer = pa.allocate_buffer(num_words * INT_SIZE)
    words = np.frombuffer(buffer, dtype=">i4")
    words[at_header] = counts
    words[at_header + 1] = present
    words[at_length] = length
    places = at_length
    if order is not None:
        places = np.empty(len(at_length), dtype=np.int64)
        places[order] = at_length
    # Item i of this view is the value whose length is at word i: the items overlap, the values do not.
    value = np.dtype((np.void, length))
    values_at = np.ndarray(num_words - value_words, value, buffer, INT_SIZE, INT_SIZE)
    row = 0
    for values in arrays:
        values_at[places[row : row + len(values)]] = _data(values).view(value)
        row += len(values)
    sizes = counts * ((1 + value_words) * INT_SIZE) + GROUP.size
    pieces: list[Buffer] = [INT.pack(len(present)), memoryview(buffer).cast("B")]
    return _finish(pieces, INT_SIZE + len(buffer), GroupIndex.of(present, counts, sizes))


def _finish(pieces: list[Buffer], size: int, groups: GroupIndex) -> EncodedChangeSet:
    written = sum(map(len, pieces))
    if written != size:
        raise InvariantError(
            f"a change set of {size} bytes was encoded in {written}; nothing is written"
        )
    return EncodedChangeSet(tuple(pieces), size, checksum(pieces), groups)


def _offsets(values: pa.Array) -> npt.NDArray[np.int32 | np.int64]:
    wide = pa.types.is_large_binary(values.type)
    kind = np.int64 if wide else np.int32
    offsets: npt.NDArray[np.int32 | np.int64] = np.frombuffer(values.buffers()[1], dtype=kind)
    return offsets[values.offset : values.offset + len(values) + 1]


def _data(values: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all values, one after another."""
    offsets = _offsets(values)
    start = int(offsets[0])
    end = int(offsets[-1])
    return np.frombuffer(values.buffers()[2], dtype=np.uint8)[start:end]


def _lengths(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the length of each value, and their running sums."""
    offsets = _offsets(values).astype(np.int64)
    return np.diff(offsets), offsets - offsets[0]


def _common_length(arrays: Sequence[pa.Array]) -> int:
    """Return the common length of all values, or 0."""
    first = -1
    for values in arrays:
        offsets = _offsets(values)
        if first < 0:
            first = int(offsets[1]) - int(offsets[0])
        if (offsets[1:] - offsets[:-1] != first).any():
            return 0
    return first


def _in_order(arrays: Sequence[pa.Array], order: npt.NDArray[np.int64] | None) -> pa.Array:
    """Return all values as one array, in *order*."""
    values = joined_values(arrays)
    return values if order is None else values.take(pa.array(order))


def _scattered(
    arrays: Sequence[pa.Array], order: npt.NDArray[np.int64] | None, length: int
) -> memoryview:
    """
    Return values of one length, in *order*, each with its length before it.

    Every value is copied once, from the caller's array to the buffer that is written.
    """
    total = sum(len(array) for array in arrays)
    # Arrow's memory pool keeps its pages; fresh ones from the system cost more than the copy.
    buffer = pa.allocate_buffer(total * (INT_SIZE + length))
    body = np.frombuffer(buffer, dtype=np.uint8).reshape(total, INT_SIZE + length)
    body[:, :INT_SIZE] = np.frombuffer(INT.pack(length), dtype=np.uint8)
    row = 0
    if order is not None:
        places = np.empty(total, dtype=np.int64)
        places[order] = np.arange(total)
    for values in arrays:
        rows = slice(row, row + len(values))
        data = _data(values).reshape(-1, length)
        body[rows if order is None else places[rows], INT_SIZE:] = data
        row += len(values)
    return memoryview(body.reshape(-1).data)


def _woven(prefixes: pa.Array, values: pa.Array, size_bytes: int) -> memoryview:
    """Return prefix and value of every row, one after another."""
    wide = pa.types.is_large_binary(values.type) or size_bytes > INT32_MAX
    kind = pa.large_binary() if wide else pa.binary()
    woven = pc.binary_join_element_wise(
        prefixes.cast(kind), values.cast(kind), pa.scalar(b"", kind)
    )
    buffer = woven.buffers()[2]
    return memoryview(buffer if buffer is not None else b"").cast("B")[:size_bytes]
