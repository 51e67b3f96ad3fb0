"""
Decode a change set in Flink's layout, in columns or change by change.

All integers are big-endian, signed, 32 bits::

    changeSet := numGroups  group{numGroups}
    group     := numChanges  keyGroup  change{numChanges}     count first, then the key group
    change    := length  bytes

The metadata group (key group -1) comes first where there is one.  Data groups are written in
ascending order; readers accept any order.  Inside a group, changes keep their append order.
`change_set_encoder` writes it.  Here every length is checked before it is used, and decoding ends
exactly at the size of the set.
Source: Flink, StateChangeFormat.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import CorruptionError
from statelog.format.buffers import Buffer
from statelog.format.trailer import GroupIndex
from statelog.model import METADATA_KEY_GROUP, ChangeBatch
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
    A decoded change set.

    Args:
        batch: All changes in file order (metadata first).
        end: Payload position just behind the set.
    """

    batch: ChangeBatch
    end: int


def decode_change_set(
    payload: Buffer, offset: int, *, size_bytes: int | None = None, where: str = ""
) -> DecodedChangeSet:
    """Decode the change set that starts at *offset* in an uncompressed payload."""
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
    Decode a set that has only a few changes; return it and its end.

    None for a larger set, and for one that looks damaged: the general decoder reports what is
    wrong.
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
    """Decode any change set; if it is damaged, raise an error that describes the damage."""
    position = offset
    (num_groups,) = _unpack(INT, view, position, where, "the number of groups")
    position += INT_SIZE
    if not 0 <= num_groups <= (len(view) - position) // GROUP.size:
        _damaged(where, offset, f"{num_groups} groups do not fit into the rest of the payload")
    key_groups: list[int] = []
    counts: list[int] = []
    parts: list[pa.Array] = []
    for _ in range(num_groups):
        count, key_group = _unpack(GROUP, view, position, where, "a group header")
        start = position + GROUP.size
        if not 0 <= count <= (len(view) - start) // INT_SIZE:
            _damaged(where, position, f"{count} changes do not fit into the rest of the payload")
        if key_group < METADATA_KEY_GROUP:
            _damaged(where, position, f"key group {key_group} is below {METADATA_KEY_GROUP}")
        values, position = _decode_group(view, start, count, where)
        key_groups.append(key_group)
        counts.append(count)
        parts.append(values)
    column = np.repeat(np.asarray(key_groups, np.int32), np.asarray(counts, np.int64))
    return DecodedChangeSet(ChangeBatch(column, joined_values(parts)), position)


def group_index(batch: ChangeBatch) -> GroupIndex:
    """Return the groups of a decoded set, in file order."""
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
    Decode a set whose values all have the same length; return None for any other set.

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
    Decode a set with a single change per group; return None for any other set.

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
    """Return the values of one group, and the position after the group."""
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
            _damaged(
                where,
                position,
                f"a change of {length} bytes does not fit into the rest of the payload",
            )
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
    """Reject a change set that does not end at the recorded position."""
    if size_bytes is not None and end != offset + size_bytes:
        _damaged(
            where,
            offset,
            f"its changes end after {end - offset} bytes, but {size_bytes} are recorded",
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
