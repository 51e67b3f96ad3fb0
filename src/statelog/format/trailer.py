"""
The trailer of a changelog file: an index of its change sets, other sections, a checksum.

::

    trailer := section*  footer                 plain file: after the last change set
                                                framed: inside one skippable chunk at the end
    section := tag:4  length:u32  body
    footer  := sections_length:u32  trailer_crc32c:u32  payload_length:u64  payload_crc32c:u32
               version:u16  reserved:u16  "STATELOG"                             32 bytes
    group   := key_group:i32  count:u32  size_bytes:u64                          16 bytes, of one set

All integers are big-endian.  The checksum covers the sections and the footer (with the checksum
itself as zero).  The last eight bytes are the mark by which a file of statelog is known.  A set can
have thousands of groups, and an upload thousands of sets, so groups stay packed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, overload

import numpy as np
import numpy.typing as npt

from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.format.buffers import Buffer, checksum
from statelog.format.snappy_frames import skippable_chunk

_ROW: Final = struct.Struct(">iIQ")
_ENTRY: Final = np.dtype([("key_group", ">i4"), ("count", ">u4"), ("size_bytes", ">u8")])

FORMAT_VERSION: Final = 1
MAGIC: Final = b"STATELOG"
FOOTER: Final = struct.Struct(">IIQIHH8s")
SETS_TAG: Final = b"SETS"
FRAMES_TAG: Final = b"FRAM"
_SECTION: Final = struct.Struct(">4sI")
_COUNT: Final = struct.Struct(">I")
_SET: Final = struct.Struct(">QQII")
SET_SIZE: Final = _SET.size
"""Bytes of a change set in the index, without its groups."""
_NO_GROUP_INDEX: Final = 0xFFFFFFFF
_SKIPPABLE_HEADER_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group in an encoded set: its key group, number of changes, and encoded bytes."""

    key_group: int
    count: int
    size_bytes: int


class GroupIndex(Sequence[GroupEntry]):
    """The groups of one change set, in file order."""

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
        """Create an index from columns of equal length."""
        rows = np.empty(len(key_groups), _ENTRY)
        rows["key_group"] = key_groups
        rows["count"] = counts
        rows["size_bytes"] = sizes_bytes
        return cls(rows.tobytes())

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, int, int]]) -> Self:
        """Create an index from entries of key group, count and size in bytes."""
        return cls(b"".join([_ROW.pack(*row) for row in rows]))

    @classmethod
    def unpack(cls, data: bytes, position: int, count: int) -> Self:
        """Decode *count* groups at *position* in *data*."""
        packed = data[position : position + count * cls.ENTRY_SIZE]
        if len(packed) != count * cls.ENTRY_SIZE:
            raise ValueError(f"{count} key groups need more bytes than the section has left")
        return cls(packed)

    @property
    def size_bytes(self) -> int:
        """The number of encoded bytes of all groups."""
        return int(np.frombuffer(self._packed, _ENTRY)["size_bytes"].sum())

    def pack(self) -> bytes:
        """Return the bytes of the index."""
        return self._packed

    def __len__(self) -> int:
        return len(self._packed) // self.ENTRY_SIZE

    @overload
    def __getitem__(self, index: int) -> GroupEntry: ...
    @overload
    def __getitem__(self, index: slice) -> GroupIndex: ...
    def __getitem__(self, index: int | slice) -> GroupEntry | GroupIndex:
        rows = np.frombuffer(self._packed, _ENTRY)
        if isinstance(index, slice):
            return GroupIndex(rows[index].tobytes())
        return GroupEntry(*rows[index].tolist())

    def __iter__(self) -> Iterator[GroupEntry]:
        return (GroupEntry(*row) for row in _ROW.iter_unpack(self._packed))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupIndex) and self._packed == other._packed

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GroupIndex({list(self)!r})"


@dataclass(frozen=True, slots=True)
class SetEntry:
    """
    A change set in a file.

    Args:
        offset: Uncompressed payload bytes before it.
        size_bytes: Its encoded length.
        crc32c: Checksum over its encoded bytes.
        groups: Its groups in file order; empty where the index leaves them out.
    """

    offset: int
    size_bytes: int
    crc32c: int
    groups: GroupIndex = field(default_factory=GroupIndex)


@dataclass(frozen=True, slots=True)
class Trailer:
    """
    The trailer of a file, which follows its payload.

    Args:
        payload_length: Uncompressed payload bytes.
        payload_crc32c: Checksum over them.
        sets: The index.
        sections: All sections by tag.
        start: File position of the first byte after the payload (with framing: of the skippable
            chunk).
    """

    payload_length: int
    payload_crc32c: int
    sets: tuple[SetEntry, ...]
    sections: Mapping[bytes, bytes] = field(repr=False)
    start: int


def pack_trailer(
    sections: Mapping[bytes, bytes], payload_length: int, payload_crc32c: int
) -> bytes:
    """Encode a trailer with these sections for a payload of this length and checksum."""
    body = b"".join(_SECTION.pack(tag, len(content)) + content for tag, content in sections.items())
    fields = (payload_length, payload_crc32c, FORMAT_VERSION, 0, MAGIC)
    return body + FOOTER.pack(len(body), _checksum(body, *fields), *fields)


def _checksum(body: Buffer, *fields: int | bytes) -> int:
    """Compute the checksum of a trailer from its sections and the *fields* that follow."""
    return checksum([body, FOOTER.pack(len(body), 0, *fields)])


def pack_sets(sets: Sequence[SetEntry], with_groups: bool = True) -> bytes:
    """Encode the index, without the groups if they do not fit."""
    pieces = [_COUNT.pack(len(sets))]
    for entry in sets:
        count = len(entry.groups) if with_groups else _NO_GROUP_INDEX
        pieces.append(_SET.pack(entry.offset, entry.size_bytes, entry.crc32c, count))
        if with_groups:
            pieces.append(entry.groups.pack())
    return b"".join(pieces)


def _unpack_sets(body: bytes) -> tuple[SetEntry, ...]:
    (num_sets,) = _COUNT.unpack_from(body, 0)
    position = _COUNT.size
    sets = []
    for _ in range(num_sets):
        offset, size, crc, num_groups = _SET.unpack_from(body, position)
        position += _SET.size
        groups = GroupIndex()
        if num_groups != _NO_GROUP_INDEX:
            groups = GroupIndex.unpack(body, position, num_groups)
            position += num_groups * GroupIndex.ENTRY_SIZE
        sets.append(SetEntry(offset, size, crc, groups))
    return tuple(sets)


def read_trailer(data: Buffer, *, where: str = "") -> Trailer | None:
    """Return the trailer of a file, or None."""
    view = memoryview(data)
    if len(view) < FOOTER.size or bytes(view[-len(MAGIC) :]) != MAGIC:
        return None
    length, crc, payload_length, payload_crc, version, reserved, _ = FOOTER.unpack(
        view[-FOOTER.size :]
    )
    if version > FORMAT_VERSION:
        raise IncompatibleFormatError(
            f"{where or 'file'} has format version {version}; this version of statelog reads up to "
            f"{FORMAT_VERSION}. Nothing is damaged: upgrade statelog",
            path=where,
        )
    start = len(view) - FOOTER.size - length
    if start < 0:
        raise damaged(where, "the trailer is longer than the file")
    body = bytes(view[start : len(view) - FOOTER.size])
    if _checksum(body, payload_length, payload_crc, version, reserved, MAGIC) != crc:
        raise damaged(where, "the trailer's checksum does not match")
    sections: dict[bytes, bytes] = {}
    position = 0
    try:
        while position < length:
            tag, size = _SECTION.unpack_from(body, position)
            position += _SECTION.size
            sections[tag] = body[position : position + size]
            position += size
        sets = _unpack_sets(sections[SETS_TAG])
    except (struct.error, KeyError, ValueError) as error:
        raise damaged(where, "the trailer's index cannot be read") from error
    if FRAMES_TAG in sections:
        header = skippable_chunk(b"")[:1] + (length + FOOTER.size).to_bytes(3, "little")
        start -= _SKIPPABLE_HEADER_SIZE
        # No checksum covers these four bytes, and Flink's reader fails if they are wrong.
        if start >= 0 and bytes(view[start : start + _SKIPPABLE_HEADER_SIZE]) != header:
            raise damaged(where, "the trailer's chunk header is wrong")
    return Trailer(payload_length, payload_crc, sets, sections, start)


def check_mark(data: Buffer, *, where: str = "") -> None:
    """
    Reject a file whose trailer is intact except for its mark.

    To `read_trailer` such a file is Flink's: its change sets are read all the same, verified by the
    checksums of their handles.  Call this where there are no handles, or where every byte counts.
    """
    view = memoryview(data)
    if len(view) < FOOTER.size or bytes(view[-len(MAGIC) :]) == MAGIC:
        return
    length, crc, *fields, _ = FOOTER.unpack(view[-FOOTER.size :])
    start = len(view) - FOOTER.size - length
    if start >= 0 and _checksum(view[start : -FOOTER.size], *fields, MAGIC) == crc:
        raise damaged(
            where,
            "its last eight bytes are not statelog's mark, although the rest of its trailer is intact; "
            "a checkpoint that needs its change sets can still be restored",
        )


def damaged(where: str, reason: str) -> CorruptionError:
    """Return the error for a damaged file."""
    return CorruptionError(f"damaged changelog file {where}: {reason}", path=where)
