"""A second reader of change sets, change by change: what the columns are compared with."""

import struct
from collections.abc import Iterator

from statelog.errors import CorruptionError
from statelog.model import METADATA_KEY_GROUP, StateChange

_INT = struct.Struct(">i")
_GROUP = struct.Struct(">ii")


def iterate_change_set(
    payload: bytes | memoryview, offset: int, *, size_bytes: int | None = None
) -> Iterator[StateChange]:
    """Yield the changes of the set at *offset*; raises `CorruptionError` if the bytes are none."""
    view = memoryview(payload)
    (num_groups,) = _unpack(_INT, view, offset)
    position = offset + _INT.size
    if num_groups < 0:
        _damaged(offset, f"{num_groups} groups are impossible")
    for _ in range(num_groups):
        count, key_group = _unpack(_GROUP, view, position)
        position += _GROUP.size
        if count < 0 or key_group < METADATA_KEY_GROUP:
            _damaged(position, f"group of {count} changes in key group {key_group}")
        for _ in range(count):
            (length,) = _unpack(_INT, view, position)
            start = position + _INT.size
            position = start + length
            if length < 0 or position > len(view):
                _damaged(start, f"a change of {length} bytes cannot fit")
            yield StateChange(key_group, bytes(view[start:position]))
    if size_bytes is not None and position != offset + size_bytes:
        _damaged(offset, f"its end is {position - offset}, and {size_bytes} are recorded for it")


def _unpack(layout: struct.Struct, view: memoryview, position: int) -> tuple[int, ...]:
    if position < 0 or position + layout.size > len(view):
        _damaged(position, "the payload ends")
    return layout.unpack_from(view, position)


def _damaged(offset: int, reason: str) -> None:
    raise CorruptionError(f"damaged change set at payload offset {offset}: {reason}")
