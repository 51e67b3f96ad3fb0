"""
The groups of one change set, as the trailer's index holds them: key group, changes, bytes.

::

    group := key_group:i32  count:u32  size_bytes:u64            16 bytes, big-endian

A set can have thousands of groups, and each upload makes an index, so they stay in columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, overload

import numpy as np
import numpy.typing as npt

_ENTRY: Final = np.dtype([("key_group", ">i4"), ("count", ">u4"), ("size_bytes", ">u8")])


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group inside an encoded set: its key group, number of changes, and encoded bytes."""

    key_group: int
    count: int
    size_bytes: int


class GroupIndex(Sequence[GroupEntry]):
    """
    The groups of one set in file order.

    Args:
        rows: One entry a group, in the layout of the file.
    """

    ENTRY_SIZE: Final = _ENTRY.itemsize
    """Bytes of one group in the index."""

    __slots__ = ("_rows",)

    def __init__(self, rows: npt.NDArray[Any] | None = None) -> None:
        self._rows = np.empty(0, _ENTRY) if rows is None else rows

    @classmethod
    def of(
        cls,
        key_groups: npt.NDArray[Any],
        counts: npt.NDArray[Any],
        sizes_bytes: npt.NDArray[Any],
    ) -> Self:
        """Return the index with these columns."""
        rows = np.empty(len(key_groups), _ENTRY)
        rows["key_group"] = key_groups
        rows["count"] = counts
        rows["size_bytes"] = sizes_bytes
        return cls(rows)

    @classmethod
    def unpack(cls, data: bytes, position: int, count: int) -> Self:
        """Return the *count* groups at *position* of *data*, which must be long enough."""
        return cls(np.frombuffer(data, _ENTRY, count, position))

    def pack(self) -> bytes:
        """Return the bytes of the index."""
        return self._rows.tobytes()

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> GroupEntry: ...
    @overload
    def __getitem__(self, at: slice) -> GroupIndex: ...
    def __getitem__(self, at: int | slice) -> GroupEntry | GroupIndex:
        if isinstance(at, slice):
            return GroupIndex(self._rows[at])
        return GroupEntry(*self._rows[at].tolist())

    def __iter__(self) -> Iterator[GroupEntry]:
        return (GroupEntry(*row) for row in self._rows.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupIndex) and np.array_equal(self._rows, other._rows)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GroupIndex({list(self)!r})"
