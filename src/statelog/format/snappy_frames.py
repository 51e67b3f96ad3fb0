"""
The Snappy framing format, as Flink writes and reads it.

::

    stream := ff 06 00 00 "sNaPpY"  chunk*
    chunk  := type:1  length:3 (little-endian, of what follows)  data
    type   := 00 compressed | 01 stored       data = masked CRC-32C:4 (little-endian), block
              80..fd skippable                data of other programs

A block contains 65536 uncompressed bytes (the last one fewer); it is stored when compression leaves
more than 0.85 of it.  The checksum is over the uncompressed block.  Flink does not verify it;
statelog does.  Source: the framing format's description, and xerial's SnappyFramedOutputStream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import cramjam
import google_crc32c
import numpy as np

from statelog.errors import CorruptionError

STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
BLOCK_SIZE: Final = 65536
MIN_COMPRESSION_RATIO: Final = 0.85
MAX_CHUNK_LENGTH: Final = 2**24 - 1
SKIPPABLE_CHUNK: Final = 0x80
_COMPRESSED: Final = 0x00
_STORED: Final = 0x01
_HEADER_SIZE: Final = 4
_CRC_SIZE: Final = 4
_MASK_DELTA: Final = 0xA282EAD8


@dataclass(frozen=True, slots=True)
class FramedPayload:
    """
    A payload that is split into frames.

    Args:
        buffers: The stream, in pieces.
        chunk_positions: Where each block's chunk starts, counted from the stream's first byte.
        size_bytes: Length of the stream.
    """

    buffers: tuple[bytes, ...]
    chunk_positions: tuple[int, ...]
    size_bytes: int


def masked_crc32c(block: bytes | memoryview) -> int:
    """Return the CRC-32C of *block* in the masked form that the framing format uses."""
    crc: int = google_crc32c.value(block if isinstance(block, bytes) else np.asarray(block))
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def skippable_chunk(data: bytes) -> bytes:
    """Wrap *data* in a chunk that every reader of the format skips."""
    return bytes((SKIPPABLE_CHUNK,)) + len(data).to_bytes(3, "little") + data


def compress_frames(payload: bytes | memoryview) -> FramedPayload:
    """Compress *payload* to a framed stream."""
    view = memoryview(payload)
    pieces: list[bytes] = [STREAM_IDENTIFIER]
    positions: list[int] = []
    position = len(STREAM_IDENTIFIER)
    for start in range(0, len(view), BLOCK_SIZE):
        block = view[start : start + BLOCK_SIZE]
        body = bytes(cramjam.snappy.compress_raw(block))
        kind = _COMPRESSED
        if len(body) > len(block) * MIN_COMPRESSION_RATIO:
            kind = _STORED
            body = bytes(block)
        header = bytes((kind,)) + (len(body) + _CRC_SIZE).to_bytes(3, "little")
        piece = header + masked_crc32c(block).to_bytes(4, "little") + body
        pieces.append(piece)
        positions.append(position)
        position += len(piece)
    return FramedPayload(tuple(pieces), tuple(positions), position)


def decompress_frames(
    stream: bytes | memoryview, *, where: str = "", max_size: int | None = None
) -> bytes:
    """
    Return the payload of a framed stream, verifying every checksum.

    Memory stays within a small multiple of the stream: a forged length is refused before anything
    is allocated for it.
    """
    view = memoryview(stream)
    blocks: list[bytes | memoryview] = []
    position = size = 0
    while position < len(view) and (max_size is None or size < max_size):
        if position + _HEADER_SIZE > len(view):
            _damaged(where, position, "the stream ends inside a chunk header")
        kind = view[position]
        length = int.from_bytes(view[position + 1 : position + _HEADER_SIZE], "little")
        start = position + _HEADER_SIZE
        end = start + length
        if end > len(view):
            _damaged(where, position, f"a chunk of {length} bytes is truncated")
        if kind in (_COMPRESSED, _STORED):
            blocks.append(_block(kind, view[start:end], where, position))
            size += len(blocks[-1])
        elif kind == 0xFF:
            if bytes(view[position:end]) != STREAM_IDENTIFIER:
                _damaged(where, position, "the Snappy stream identifier is missing")
        elif kind < SKIPPABLE_CHUNK:
            _damaged(where, position, f"unknown chunk type 0x{kind:02x}, which must not be skipped")
        position = end
    return b"".join(blocks)


def _block(kind: int, data: memoryview, where: str, position: int) -> bytes | memoryview:
    if len(data) < _CRC_SIZE:
        _damaged(where, position, "a data chunk has no checksum")
    expected = int.from_bytes(data[:_CRC_SIZE], "little")
    body = data[_CRC_SIZE:]
    block: bytes | memoryview = body
    if kind == _COMPRESSED:
        if (declared := _declared_length(body)) > MAX_CHUNK_LENGTH:
            _damaged(where, position, f"a block claims {declared} bytes")
        try:
            block = memoryview(cramjam.snappy.decompress_raw(body))
        except cramjam.DecompressionError as error:
            _damaged(where, position, f"a block does not decompress ({error})")
    if masked_crc32c(block) != expected:
        _damaged(where, position, "a block's checksum does not match")
    return block


def _declared_length(body: memoryview) -> int:
    """Return the length that a raw Snappy block declares in a varint of at most five bytes."""
    length = 0
    for index, byte in enumerate(body[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    return length


def _damaged(where: str, position: int, reason: str) -> None:
    raise CorruptionError(
        f"damaged Snappy stream in {where or 'payload'} at byte {position}: {reason}",
        path=where,
        offset=position,
    )
