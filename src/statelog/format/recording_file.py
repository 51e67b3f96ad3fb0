"""
The frame of a file with recordings: its header, and the checksum of its body.

The body is decoded by `state.recordings.format`, which has the layout of the whole file.  The frame is
enough to verify one.
"""

from __future__ import annotations

import struct
from typing import Final

from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.format.bounds import RECORDING_BYTES_MAX, largest_expansion
from statelog.format.buffers import Buffer, checksum

VERSION: Final = 1
_MAGIC: Final = b"SLRC"
_HEADER: Final = struct.Struct(">4sBBHII")
_ZSTD: Final = 1


def framed(body: bytes, length: int) -> bytes:
    """
    Return the file with a compressed body.

    Args:
        body: Compressed by zstd.
        length: Its length once uncompressed.
    """
    return _HEADER.pack(_MAGIC, VERSION, _ZSTD, 0, length, checksum([body])) + body


def verified_body(data: Buffer, *, where: str = "") -> tuple[memoryview, int]:
    """
    Return the compressed body of a file, and its length once uncompressed.

    Args:
        data: The file.
        where: Its name, for messages.

    Raises:
        CorruptionError: It is damaged, or no recording.
        IncompatibleFormatError: A newer statelog wrote it.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size or bytes(view[:4]) != _MAGIC:
        raise damaged_recording(where, "it does not begin as a recording")
    _, version, codec, _, length, crc = _HEADER.unpack(view[: _HEADER.size])
    if version > VERSION or codec != _ZSTD:
        raise IncompatibleFormatError(
            f"recording {where} has version {version} and codec {codec}; this statelog reads "
            f"versions up to {VERSION} and codec {_ZSTD}: upgrade statelog"
        )
    body = view[_HEADER.size :]
    if checksum([body]) != crc:
        raise damaged_recording(where, "its checksum differs")
    if length > min(RECORDING_BYTES_MAX, largest_expansion(len(body))):
        raise damaged_recording(where, f"it claims {length} bytes, of {len(body)} stored ones")
    return body, length


def damaged_recording(where: str, reason: str) -> CorruptionError:
    """Return the error of a damaged recording."""
    return CorruptionError(f"damaged recording {where}: {reason}", path=where)
