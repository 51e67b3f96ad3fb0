"""
Deletion vectors of Delta: which rows of a data file are deleted, as a bitmap.

A vector is a Roaring bitmap array with 64-bit numbers.  The numbers of rows of a file fit 32 bits, so the
array has one bitmap.  A file has several vectors, each between its length and its checksum.
Source: the protocol of Delta, "Deletion Vector Format"; the format specification of Roaring bitmaps.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_MAGIC: Final = struct.Struct("<I").pack(1681511377)
_ONE_BITMAP: Final = struct.pack("<QI", 1, 0)
_NO_RUNS: Final = 12346
"""The cookie of a Roaring bitmap without containers of runs."""
_ARRAY_MAX: Final = 4096
"""Numbers that a container has as an array; with more it has a bit for each number."""
_VERSION: Final = b"\1"
_LENGTH: Final = struct.Struct(">I")
_Z85: Final = (
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_B85: Final = (
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
)
_ID_LENGTH: Final = 20
_ID_BYTES: Final = 16

RowNumbers = npt.NDArray[np.int64]


def vector_file(vectors: Sequence[RowNumbers]) -> tuple[bytes, list[tuple[int, int]]]:
    """
    Return a file of vectors, and the offset and the size of each.

    Args:
        vectors: For each vector row numbers, ascending, each in [0, 2**32).
    """
    pieces, places, size = [_VERSION], [], len(_VERSION)
    for rows in vectors:
        data = _MAGIC + _ONE_BITMAP + _bitmap(rows)
        places.append((size, len(data)))
        pieces += [_LENGTH.pack(len(data)), data, _LENGTH.pack(zlib.crc32(data))]
        size += len(data) + 2 * _LENGTH.size
    return b"".join(pieces), places


def _bitmap(rows: RowNumbers) -> bytes:
    """Return a Roaring bitmap: its header, and a container for each 65,536 numbers."""
    keys, starts, counts = np.unique(rows >> 16, return_index=True, return_counts=True)
    header = struct.pack("<II", _NO_RUNS, len(keys))
    header += np.stack([keys, counts - 1], axis=1).astype("<u2").tobytes()
    containers = []
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        low = (rows[start : start + count] & 0xFFFF).astype("<u2")
        if count > _ARRAY_MAX:
            bits = np.zeros(1 << 16, np.bool_)
            bits[low] = True
            containers.append(np.packbits(bits, bitorder="little").tobytes())
        else:
            containers.append(low.tobytes())
    sizes = [len(container) for container in containers]
    first = len(header) + 4 * len(containers)
    offsets = first + np.cumsum([0, *sizes])[:-1]
    return b"".join([header, offsets.astype("<u4").tobytes(), *containers])


def uuid_text(number: bytes) -> str:
    """Return 16 bytes as the text of a UUID."""
    text = number.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def vector_file_name(number: bytes) -> str:
    """Return the name of the file of vectors with an id of 16 bytes, as Delta derives it."""
    return f"deletion_vector_{uuid_text(number)}.bin"


def vector_reference(folder: str, number: bytes) -> str:
    """Return how a table names the file of vectors with an id of 16 bytes in one of its folders."""
    return folder + base64.b85encode(number).translate(bytes.maketrans(_B85, _Z85)).decode()


def referenced_name(reference: str) -> str:
    """
    Return the name of the file of vectors that a table names, without its folder.

    Raises:
        ValueError: It is not the name of a file of vectors.
    """
    encoded = reference[-_ID_LENGTH:].encode().translate(bytes.maketrans(_Z85, _B85))
    number = base64.b85decode(encoded)
    if len(number) != _ID_BYTES:
        raise ValueError(f"{reference!r:.60} is not the name of a file of deletion vectors")
    return vector_file_name(number)
