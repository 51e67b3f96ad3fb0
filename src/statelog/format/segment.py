"""
A changelog file: Flink's bytes, then a trailer that Flink's reader ignores.

::

    file    := flag:1  payload  trailer
    flag    := 00 plain | 01 Snappy-framed
    payload := changeSet*                       (format/change_set.py), framed if flag is 01
    trailer := index, other sections, checksum  (format/trailer.py)
                                                plain file: after the last change set
                                                framed: inside one skippable chunk at the end

Every offset and length counts *uncompressed* payload bytes without the flag, as Flink's handles
do.  A file without the trailer's last eight bytes is a plain file of Flink: readable, but with
nothing to verify beyond its structure and Snappy's checksums.

The format is documented in docs/reference/formats/segment.md.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from statelog.errors import CorruptionError, UsageError
from statelog.format.buffers import Buffer, checksum
from statelog.format.change_set import decode_change_set
from statelog.format.change_set_encoder import EncodedChangeSet, encode_change_set
from statelog.format.snappy_frames import (
    BLOCK_SIZE,
    MAX_CHUNK_LENGTH,
    STREAM_IDENTIFIER,
    compress_frames,
    decompress_frames,
    skippable_chunk,
)
from statelog.format.trailer import (
    FRAMES_TAG,
    SET_SIZE,
    SETS_TAG,
    GroupIndex,
    SetEntry,
    Trailer,
    check_mark,
    damaged,
    pack_sets,
    pack_trailer,
    read_trailer,
)
from statelog.model import ChangeBatch, StateChangeSet

PLAIN: Final = 0
SNAPPY_FRAMED: Final = 1
_FRAMES: Final = struct.Struct(">II")
_TRAILER_REST: Final = 4096
"""Bytes reserved for the footer, the heads of the sections, and small sections."""
_FEW_PIECES: Final = 512
_TINY_BYTES: Final = 4096
_PLAIN_INDEX_MAX: Final = 2**31
"""The lengths in the trailer of a plain file have 32 bits."""


class SegmentWriter:
    """Writes change sets to a file in memory."""

    def __init__(self, *, compress: bool = False) -> None:
        self._compress = compress
        self._payload: list[Buffer] = []
        self._payload_crc = 0
        self._size = 0
        self._sets: list[SetEntry] = []
        self._num_groups = 0

    @property
    def payload_size(self) -> int:
        """Uncompressed payload bytes so far, which is the `size` in a handle to this file."""
        return self._size

    @property
    def num_sets(self) -> int:
        """The number of change sets added so far."""
        return len(self._sets)

    def has_room_for(self, encoded: EncodedChangeSet) -> bool:
        """Return whether the trailer can hold one more set; an empty file always can."""
        if not self._sets:
            return True
        index = SET_SIZE * (len(self._sets) + 1)
        if self._compress:  # groups may be left out; the frames may not
            frames = 8 * ((self._size + encoded.size_bytes) // BLOCK_SIZE + 1)
            return index + frames + _TRAILER_REST <= MAX_CHUNK_LENGTH
        groups = GroupIndex.ENTRY_SIZE * (self._num_groups + len(encoded.groups))
        return index + groups + _TRAILER_REST <= _PLAIN_INDEX_MAX

    def add(self, change_set: StateChangeSet | Sequence[ChangeBatch]) -> SetEntry:
        """Append one change set and return its offset."""
        return self.add_encoded(encode_change_set(change_set))

    def add_encoded(self, encoded: EncodedChangeSet) -> SetEntry:
        """Append a change set that is already encoded, and return its offset."""
        entry = SetEntry(self._size, encoded.size_bytes, encoded.crc32c, encoded.groups)
        self._payload.extend(encoded.buffers)
        self._payload_crc = (
            checksum(encoded.buffers, self._payload_crc) if self._size else encoded.crc32c
        )
        self._size += encoded.size_bytes
        self._num_groups += len(encoded.groups)
        self._sets.append(entry)
        return entry

    def finish(self, sections: Mapping[bytes, bytes] | None = None) -> list[Buffer]:
        """Return the whole file as consecutive pieces."""
        extra = dict(sections or {})
        if not self._compress:
            index = {SETS_TAG: pack_sets(self._sets)}
            return [b"\x00", *_gathered(self._payload), self._trailer({**index, **extra})]
        framed = compress_frames(b"".join(self._payload))
        frames = _FRAMES.pack(BLOCK_SIZE, len(framed.chunk_positions)) + struct.pack(
            f">{len(framed.chunk_positions)}Q", *framed.chunk_positions
        )
        for with_groups in (True, False):
            index = {SETS_TAG: pack_sets(self._sets, with_groups), FRAMES_TAG: frames}
            trailer = self._trailer({**index, **extra})
            if len(trailer) <= MAX_CHUNK_LENGTH:
                return [b"\x01", *framed.buffers, skippable_chunk(trailer)]
        raise UsageError(
            f"a trailer of {len(trailer)} bytes exceeds the limit of a Snappy-framed file (16 MiB); "
            "write the file without compression, or store less in its sections"
        )

    def _trailer(self, sections: Mapping[bytes, bytes]) -> bytes:
        return pack_trailer(sections, self._size, self._payload_crc)


def _gathered(pieces: list[Buffer]) -> list[Buffer]:
    """Join tiny *pieces*, because the store handles each piece separately."""
    if len(pieces) <= _FEW_PIECES:
        return pieces
    gathered: list[Buffer] = []
    for tiny, run in itertools.groupby(pieces, lambda piece: len(piece) < _TINY_BYTES):
        run_pieces = list(run)
        gathered += [b"".join(run_pieces)] if tiny else run_pieces
    return gathered


@dataclass(frozen=True, slots=True)
class Segment:
    """
    A file that has been read completely and verified.

    Args:
        payload: Uncompressed payload.
        trailer: None for a file that statelog did not write.
        compressed: Whether the file is Snappy-framed.
        where: Name of the object, for messages.
    """

    payload: memoryview = field(repr=False)
    trailer: Trailer | None
    compressed: bool
    where: str

    def set_offsets(self) -> list[int]:
        """Return the offsets of all change sets in file order."""
        return [offset for offset, _ in self.set_ranges()]

    def sets_by_offset(self) -> dict[int, SetEntry]:
        """Return the index in the trailer by payload offset; empty for a file without a trailer."""
        return (
            {}
            if self.trailer is None
            else {change_set.offset: change_set for change_set in self.trailer.sets}
        )

    def set_ranges(self) -> list[tuple[int, int]]:
        """Return the offset and encoded length of all change sets; decode without an index."""
        if self.trailer is not None:
            return [(entry.offset, entry.size_bytes) for entry in self.trailer.sets]
        ranges = []
        position = 0
        while position < len(self.payload):
            end = decode_change_set(self.payload, position, where=self.where).end
            ranges.append((position, end - position))
            position = end
        return ranges


def parse_segment(data: Buffer, *, where: str = "") -> Segment:
    """Parse a whole file, and verify all of its checksums."""
    view = memoryview(data)
    if len(view) == 0:
        raise damaged(where, "the file is empty")
    trailer = read_trailer(view, where=where)
    end = len(view) if trailer is None else trailer.start
    flag = view[0]
    if flag not in (PLAIN, SNAPPY_FRAMED):
        raise damaged(
            where, f"the flag byte 0x{flag:02x} stands for neither plain nor Snappy-framed data"
        )
    if end < 1:
        raise damaged(where, "the trailer overlaps the flag byte")
    if flag == SNAPPY_FRAMED:
        # A damaged identifier may look like a chunk to skip; Flink's reader would refuse the file.
        if bytes(view[1 : min(end, 1 + len(STREAM_IDENTIFIER))]) != STREAM_IDENTIFIER:
            raise damaged(where, "a Snappy stream does not start at byte 1")
        limit = None if trailer is None else trailer.payload_length + 1
        payload = memoryview(decompress_frames(view[1:end], where=where, max_size=limit))
    else:
        payload = view[1:end]
    if trailer is not None:
        if len(payload) != trailer.payload_length:
            raise damaged(
                where, f"{len(payload)} payload bytes instead of {trailer.payload_length}"
            )
        if checksum([payload]) != trailer.payload_crc32c:
            raise _damaged_payload(where, payload, trailer)
    return Segment(payload, trailer, flag == SNAPPY_FRAMED, where)


def parse_whole_file(data: Buffer, *, where: str = "") -> Segment:
    """Parse a whole file like `parse_segment`, and also check its mark."""
    segment = parse_segment(data, where=where)
    check_mark(data, where=where)
    return segment


def verify_set(encoded: Buffer, crc32c: int, *, where: str = "", offset: int = 0) -> None:
    """Verify the bytes of a change set."""
    if checksum([encoded]) != crc32c:
        raise CorruptionError(
            f"damaged change set in {where or 'file'} at payload offset {offset}: its checksum does "
            "not match",
            path=where,
            offset=offset,
        )


def _damaged_payload(where: str, payload: memoryview, trailer: Trailer) -> CorruptionError:
    """Return the error for a payload with a wrong checksum, naming the first damaged set."""
    for change_set in trailer.sets:
        if (
            checksum([payload[change_set.offset : change_set.offset + change_set.size_bytes]])
            != change_set.crc32c
        ):
            return CorruptionError(
                f"damaged changelog file {where}: the payload's checksum does not match; the damage is in "
                f"the change set at payload offset {change_set.offset} ({change_set.size_bytes} bytes)",
                path=where,
                offset=change_set.offset,
            )
    return damaged(where, "the payload's checksum does not match")
