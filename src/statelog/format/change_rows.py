"""
Encode and decode change sets of few changes, one change at a time.

For few changes, columns cost more than they save.  The layout is in `change_set_layout.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from statelog.format.group_index import GroupIndex
from statelog.model import METADATA_KEY_GROUP, ChangeBatch
from statelog.model.state_change import ChangeRows

_INT: Final = struct.Struct(">i")
_GROUP: Final = struct.Struct(">ii")
_INT_SIZE: Final = _INT.size
_FEW_CHANGES: Final = 16
"""Up to this many changes are decoded faster one by one than in columns."""
_FEW_CHANGES_BYTES: Final = 65_536


def encode_rows(batches: Iterable[ChangeBatch]) -> tuple[bytes, GroupIndex]:
    """Return the bytes of a change set, and its groups."""
    groups: dict[int, list[bytes]] = {}
    for batch in batches:
        for key_group, value in batch:
            groups.setdefault(key_group, []).append(value)
    pieces = [_INT.pack(len(groups))]
    index = []
    for key_group in sorted(groups):
        values = groups[key_group]
        pieces.append(_GROUP.pack(len(values), key_group))
        size = _GROUP.size + _INT_SIZE * len(values)
        for value in values:
            pieces += (_INT.pack(len(value)), value)
            size += len(value)
        index.append((key_group, len(values), size))
    return b"".join(pieces), GroupIndex.of_rows(index)


def decode_rows(view: memoryview, offset: int) -> tuple[ChangeRows, int] | None:
    """
    Decode a set of few changes; return it and its end.

    The result is None for a larger set.  A set that looks damaged is None too: the general decoder reports what is wrong with it.
    """
    limit = len(view)
    position = offset + _INT_SIZE
    if offset < 0 or position > limit:
        return None
    (num_groups,) = _INT.unpack_from(view, offset)
    if not 0 < num_groups <= _FEW_CHANGES:
        return None
    key_groups: list[int] = []
    values: list[bytes] = []
    for _ in range(num_groups):
        if position + _GROUP.size > limit:
            return None
        count, key_group = _GROUP.unpack_from(view, position)
        position += _GROUP.size
        if not 0 < count <= _FEW_CHANGES - len(values) or key_group < METADATA_KEY_GROUP:
            return None
        for _ in range(count):
            if position + _INT_SIZE > limit:
                return None
            (length,) = _INT.unpack_from(view, position)
            start = position + _INT_SIZE
            position = start + length
            if length < 0 or position > limit or position - offset > _FEW_CHANGES_BYTES:
                return None
            values.append(bytes(view[start:position]))
        key_groups += [key_group] * count
    return ChangeRows(tuple(key_groups), tuple(values)), position
