"""Buffers: joined, and their checksum."""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c
import numpy as np
import pyarrow as pa

Buffer = bytes | bytearray | memoryview
Buffers = Buffer | Sequence[Buffer]
"""Content in one buffer, or in several that are written one after another."""


def pieces_of(content: Buffers) -> Sequence[Buffer]:
    """Return *content* as a sequence of buffers."""
    return [content] if isinstance(content, Buffer) else content


def checksum(buffers: Sequence[Buffer], initial: int = 0) -> int:
    """Return the CRC-32C over *buffers* one after another, continuing from *initial*."""
    crc = initial
    for buffer in buffers:
        crc = google_crc32c.extend(crc, buffer if isinstance(buffer, bytes) else np.asarray(buffer))
    return crc


def same_content(stored: Buffer, content: Buffers) -> bool:
    """Return whether *stored* is *content*, byte by byte."""
    left = memoryview(stored).cast("B")
    for piece in pieces_of(content):
        if left[: len(piece)] != piece:
            return False
        left = left[len(piece) :]
    return not left


def joined(pieces: Sequence[Buffer]) -> memoryview:
    """
    Return *pieces* one after another, in one buffer.

    For upload threads: the buffer is from Arrow's memory pool, which keeps its pages.  Fresh pages
    from the system cost more than the copy.
    """
    whole = memoryview(pa.allocate_buffer(sum(len(piece) for piece in pieces))).cast("B")
    position = 0
    for piece in pieces:
        whole[position : position + len(piece)] = piece
        position += len(piece)
    return whole
