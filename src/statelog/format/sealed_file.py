"""
The frame of a file that has its own checksum: a header, then the body.

Recordings and dead letters are such files.  `extensions.recordings.format` has the layout of the
whole file and decodes the body; the frame is enough to verify one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from statelog.errors import CorruptionError, IncompatibleFormatError, UsageError
from statelog.format.buffers import (
    RECORDING_BYTES_MAX,
    Buffer,
    checksum,
    compress_zstd,
    decompress_zstd,
    largest_expansion,
)

WHAT: Final = "recording"
"""The name of this format in `verify`."""
VERSION: Final = 2
_MAGIC: Final = b"SLRC"
_HEADER: Final = struct.Struct(">4sBBHII")
_NONE: Final = 0
_ZSTD: Final = 1


def seal(raw: bytes) -> bytes:
    """Return a file with this body, compressed unless readers would reject it."""
    if len(raw) > RECORDING_BYTES_MAX:
        raise UsageError(
            f"a recording of {len(raw)} bytes is too large to read; the limit is {RECORDING_BYTES_MAX}: "
            "lower record.bytes"
        )
    body = compress_zstd(raw)
    if body is None:
        return framed(raw, len(raw), _NONE)
    return framed(body, len(raw))


def framed(body: bytes, length: int, codec: int = _ZSTD) -> bytes:
    """Return a file whose body is already encoded."""
    return _HEADER.pack(_MAGIC, VERSION, codec, 0, length, checksum([body])) + body


def unseal(data: Buffer, *, where: str = "") -> Buffer:
    """Return the uncompressed body of a file; raises like `verified_body`."""
    body, length, codec = verified_body(data, where=where)
    raw: Buffer = body
    if codec == _ZSTD:
        try:
            raw = decompress_zstd(body, length)
        except OSError as error:
            raise damaged_file(where, str(error)) from error
    if len(raw) != length:
        raise damaged_file(where, f"it is {len(raw)} bytes instead of {length}")
    return raw


def verified_body(data: Buffer, *, where: str = "") -> tuple[memoryview, int, int]:
    """Return the stored body of a file, its uncompressed length, and its codec."""
    view = memoryview(data)
    if len(view) < _HEADER.size or bytes(view[:4]) != _MAGIC:
        raise damaged_file(where, "it does not start with the header of a recording")
    _, version, codec, _, length, crc = _HEADER.unpack(view[: _HEADER.size])
    if version != VERSION or codec not in (_NONE, _ZSTD):
        raise IncompatibleFormatError(
            f"recording {where} has version {version} and codec {codec}; this version of statelog "
            f"reads version {VERSION} and the codecs {_NONE} and {_ZSTD}: use the version of statelog "
            "that wrote it"
        )
    body = view[_HEADER.size :]
    if checksum([body]) != crc:
        raise damaged_file(where, "its checksum does not match")
    if length > min(RECORDING_BYTES_MAX, largest_expansion(len(body))):
        raise damaged_file(where, f"it claims {length} bytes in {len(body)} stored bytes")
    return body, length, codec


def damaged_file(where: str, reason: str) -> CorruptionError:
    """Return the error for a damaged recording."""
    return CorruptionError(f"damaged recording{where and f' {where}'}: {reason}", path=where)


@contextmanager
def part_of(path: str) -> Iterator[None]:
    """Add the object's name to errors about damage inside a recording."""
    try:
        yield
    except CorruptionError as error:
        if error.path:
            raise
        raise CorruptionError(f"{path}: {error.message}", path=path) from error
