"""
Join and checksum buffers, and define the limits for decoding stored data.

An object in storage is input: it may declare more than it holds.  Each decoder compares what an
object declares with these bounds first, before it allocates memory.  So the memory for reading an
object is at most a stated multiple of its size.  Writers keep within the same bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa

from statelog.errors import CorruptionError

Buffer = bytes | bytearray | memoryview
Buffers = Buffer | Sequence[Buffer]
"""Content in one buffer, or in several that are written one after another."""


def pieces_of(content: Buffers) -> Sequence[Buffer]:
    """Return *content* as a sequence of buffers."""
    return [content] if isinstance(content, Buffer) else content


def checksum(buffers: Sequence[Buffer], initial: int = 0) -> int:
    """Return the CRC-32C of consecutive *buffers*, continuing from *initial*."""
    crc = initial
    for buffer in buffers:
        crc = google_crc32c.extend(crc, buffer if isinstance(buffer, bytes) else np.asarray(buffer))
    return crc


def same_content(stored: Buffer, content: Buffers) -> bool:
    """Return whether *stored* and *content* are equal, byte by byte."""
    rest = memoryview(stored).cast("B")
    for piece in pieces_of(content):
        if rest[: len(piece)] != piece:
            return False
        rest = rest[len(piece) :]
    return not rest


def joined(pieces: Sequence[Buffer]) -> memoryview:
    """
    Concatenate *pieces* into one buffer.

    For upload threads: the buffer is from Arrow's memory pool, which keeps its pages.  Fresh pages
    from the system cost more than the copy.
    """
    whole = memoryview(pa.allocate_buffer(sum(len(piece) for piece in pieces))).cast("B")
    position = 0
    for piece in pieces:
        whole[position : position + len(piece)] = piece
        position += len(piece)
    return whole


T = TypeVar("T")

EXPANSION_MAX: Final = 256
"""Maximum expansion factor of compressed data beyond `ALWAYS_ALLOWED`."""
ALWAYS_ALLOWED: Final = 16 << 20
"""Uncompressed bytes that any object may declare, however small it is."""
RECORD_BYTES_MAX: Final = 256 << 20
"""Uncompressed bytes of the record of a checkpoint."""
RECORDING_BYTES_MAX: Final = 1 << 30
"""Uncompressed bytes of a file with recordings."""
JSON_VALUES_MAX: Final = 1 << 23
"""Values in one JSON text; a value takes up to 250 bytes of memory."""
DEPTH_MAX: Final = 64
"""Nesting of the properties of a checkpoint."""
ID_MAX: Final = (1 << 62) - 1
"""The highest id of a checkpoint."""
ARROW_EXPANSION_MAX: Final = 4096
"""
Like `EXPANSION_MAX`, for Arrow and Parquet.

Equal values in a column compress to almost nothing.
"""
ARROW_ALWAYS_ALLOWED: Final = 256 << 20
"""Like `ALWAYS_ALLOWED`, for Arrow and Parquet."""
ARROW_ROWS_ALLOWED: Final = 1 << 20
"""Rows that any Arrow message may declare, as columns of nulls have no bytes."""

_PIECE: Final = 1 << 20


def largest_expansion(stored: int) -> int:
    """Return how many bytes an object of *stored* bytes may expand to."""
    return max(ALWAYS_ALLOWED, stored * EXPANSION_MAX)


def largest_arrow_expansion(stored: int) -> int:
    """Return how many bytes the columns in *stored* bytes may expand to."""
    return max(ARROW_ALWAYS_ALLOWED, stored * ARROW_EXPANSION_MAX)


def compress_zstd(raw: bytes, level: int | None = None) -> bytes | None:
    """Compress *raw*, or return None if readers would reject how much it expands."""
    body = bytes(pa.Codec("zstd", compression_level=level).compress(raw, asbytes=True))
    return body if len(raw) <= largest_expansion(len(body)) else None


def decompress_zstd(body: Buffer, length: int) -> bytes:
    """Decompress *length* bytes, and one more if present; safe against forged lengths."""
    pieces: list[bytes] = []
    remaining = length + 1
    with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
        while remaining and (piece := stream.read(min(remaining, _PIECE))):
            pieces.append(piece)
            remaining -= len(piece)
    return b"".join(pieces)


def decode_json(data: Buffer | str, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON text that has at most `JSON_VALUES_MAX` values."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    if (values := json_values(raw)) > JSON_VALUES_MAX:
        raise msgspec.DecodeError(f"it contains {values} values; the limit is {JSON_VALUES_MAX}")
    try:
        return decoder.decode(raw)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
    except (SystemError, UnicodeDecodeError) as error:  # of a text with forged bytes
        raise msgspec.DecodeError(f"it contains invalid text ({error})") from error


def json_values(raw: bytes) -> int:
    """
    Return an upper bound on the number of values in JSON text.

    0 for one too short to exceed the limit.
    """
    if len(raw) <= JSON_VALUES_MAX:
        return 0
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def decode_msgpack(data: Buffer, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Decode a msgpack value."""
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
    except (SystemError, UnicodeDecodeError) as error:  # of a text with forged bytes or length
        raise msgspec.DecodeError(f"it contains invalid text ({error})") from error


def check_depth(value: object, where: str = "") -> None:
    """Raise `CorruptionError` if lists and objects are nested deeper than `DEPTH_MAX`."""
    if nesting_exceeds(value):
        raise CorruptionError(f"{where} is nested deeper than {DEPTH_MAX} levels", path=where)


def nesting_exceeds(value: object) -> bool:
    """Return whether lists and objects are nested deeper than `DEPTH_MAX`."""
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            member
            for container in level
            if isinstance(container, (dict, list))
            for member in (container.values() if isinstance(container, dict) else container)
            if isinstance(member, (dict, list))
        ]
        if not level:
            return False
    return True
