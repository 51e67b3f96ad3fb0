"""
One change set as bytes: Flink's layout, and the codec for sets of few changes.

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
from collections.abc import Iterable
from typing import Final

from statelog.format.trailer import GroupIndex
from statelog.model import METADATA_KEY_GROUP, ChangeBatch
from statelog.model.state_change import ChangeRows

INT: Final = struct.Struct(">i")
GROUP: Final = struct.Struct(">ii")
LONE_CHANGE: Final = struct.Struct(">iii")
"""A group of one change: count, key group and length, before the bytes."""
INT_SIZE: Final = INT.size

# Sets of few changes, one change at a time: for them columns cost more than they save.

_FEW_CHANGES: Final = 16
"""Up to this many changes are decoded faster one by one than in columns."""
_FEW_CHANGES_BYTES: Final = 65_536


def encode_rows(batches: Iterable[ChangeBatch]) -> tuple[bytes, GroupIndex]:
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


def decode_rows(view: memoryview, offset: int) -> tuple[ChangeRows, int] | None:
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
