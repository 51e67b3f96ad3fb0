"""
What a fuzzer throws bytes at: every reader of bytes, each with checksums that hold.

A reader may say that bytes are damaged or of a newer format, and nothing else.  Checksums are
mended first: without that a fuzzer never comes past them, and a forger does.
"""

import struct
from collections.abc import Callable

from tests.support.values.change_set_reader import iterate_change_set

from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.format.buffers import checksum
from statelog.format.change_set import decode_change_set
from statelog.format.checkpoint_record import (
    CLAIM_KIND,
    RECORD_VERSION,
    decode_entry,
    decode_record,
)
from statelog.format.segment import parse_segment
from statelog.format.snappy_frames import decompress_frames
from statelog.format.trailer import FOOTER, FORMAT_VERSION, MAGIC

ALLOWED = (CorruptionError, IncompatibleFormatError)


def change_set(data: bytes) -> None:
    """Both readers of a set agree, in what they return and in what they refuse."""
    try:
        columns = list(decode_change_set(data, 0).batch)
    except ALLOWED:
        try:
            rows = list(iterate_change_set(data, 0))
        except ALLOWED:
            raise
        raise AssertionError(f"columns are refused, rows are {rows!r:.300}") from None
    if columns != list(iterate_change_set(data, 0)):
        raise AssertionError(f"rows differ from the columns {columns!r:.300}")


def read_sets(file: bytes) -> None:
    """Read all change sets of a file."""
    segment = parse_segment(file)
    for offset in segment.set_offsets():
        decode_change_set(segment.payload, offset)


def forged_trailer(data: bytes) -> None:
    """Read a trailer of any content with the right checksum, behind an empty payload."""
    footer = (len(data), 0, 0, checksum([b""]), FORMAT_VERSION, 0, MAGIC)
    crc = checksum([data, FOOTER.pack(*footer)])
    read_sets(b"\x00" + data + FOOTER.pack(len(data), crc, *footer[2:]))


def claim_header(length: int) -> bytes:
    return struct.pack(">HBBI", RECORD_VERSION, 0, CLAIM_KIND, length)


TARGETS: dict[str, Callable[[bytes], object]] = {
    "change_set": change_set,
    "plain_file": lambda data: read_sets(b"\x00" + data),
    "framed_file": lambda data: read_sets(b"\x01" + data),
    "frames": decompress_frames,
    "forged_trailer": forged_trailer,
    "forged_index": lambda data: forged_trailer(struct.pack(">4sI", b"SETS", len(data)) + data),
    "checkpoint_record": decode_record,
    "entry_record": decode_entry,
    "claim_text": lambda data: decode_entry(claim_header(len(data)) + data),
}
"""A plain and a Snappy-framed file, as Flink's, have no checksum; the others have one that is right."""
