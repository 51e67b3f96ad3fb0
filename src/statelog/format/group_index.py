"""
The groups of one change set in the trailer's index: key group, changes, bytes.

::

    group := key_group:i32  count:u32  size_bytes:u64            16 bytes, big-endian

A set can have thousands of groups, and an upload thousands of sets, so they stay packed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self, overload

import numpy as np
import numpy.typing as npt

_ROW: Final = struct.Struct(">iIQ")
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
        packed: The bytes of the index, in the layout of the file.
    """

    ENTRY_SIZE: Final = _ENTRY.itemsize
    """Bytes of one group in the index."""

    __slots__ = ("_packed",)

    def __init__(self, packed: bytes = b"") -> None:
        self._packed = packed

    @classmethod
    def of(
        cls,
        key_groups: npt.NDArray[np.generic],
        counts: npt.NDArray[np.generic],
        sizes_bytes: npt.NDArray[np.generic],
    ) -> Self:
        """Return the index with these columns."""
        rows = np.empty(len(key_groups), _ENTRY)
        rows["key_group"] = key_groups
        rows["count"] = counts
        rows["size_bytes"] = sizes_bytes
        return cls(rows.tobytes())

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, int, int]]) -> Self:
        """Return the index with these entries: key group, count, size in bytes."""
        return cls(b"".join([_ROW.pack(*row) for row in rows]))

    @classmethod
    def unpack(cls, data: bytes, position: int, count: int) -> Self:
        """
        Return the *count* groups at *position* of *data*.

        Raises:
            ValueError: *data* ends before.
        """
        packed = data[position : position + count * cls.ENTRY_SIZE]
        if len(packed) != count * cls.ENTRY_SIZE:
            raise ValueError(f"{count} groups do not fit")
        return cls(packed)

    @property
    def size_bytes(self) -> int:
        """Encoded bytes of all groups."""
        return int(np.frombuffer(self._packed, _ENTRY)["size_bytes"].sum())

    def pack(self) -> bytes:
        """Return the bytes of the index."""
        return self._packed

    def __len__(self) -> int:
        return len(self._packed) // self.ENTRY_SIZE

    @overload
    def __getitem__(self, at: int) -> GroupEntry: ...
    @overload
    def __getitem__(self, at: slice) -> GroupIndex: ...
    def __getitem__(self, at: int | slice) -> GroupEntry | GroupIndex:
        rows = np.frombuffer(self._packed, _ENTRY)
        if isinstance(at, slice):
            return GroupIndex(rows[at].tobytes())
        return GroupEntry(*rows[at].tolist())

    def __iter__(self) -> Iterator[GroupEntry]:
        return (GroupEntry(*row) for row in _ROW.iter_unpack(self._packed))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupIndex) and self._packed == other._packed

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GroupIndex({list(self)!r})"
