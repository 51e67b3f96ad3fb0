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


def plain_file(data: bytes) -> None:
    """A file of Flink's, which has no checksum."""
    segment = parse_segment(b"\x00" + data)
    for offset in segment.set_offsets():
        decode_change_set(segment.payload, offset)


def framed_file(data: bytes) -> None:
    """The same, Snappy-framed."""
    segment = parse_segment(b"\x01" + data)
    for offset in segment.set_offsets():
        decode_change_set(segment.payload, offset)


def frames(data: bytes) -> None:
    """A Snappy stream with a data chunk in front whose checksum is not right."""
    decompress_frames(data)


def forged_trailer(data: bytes) -> None:
    """A trailer of any content with the right checksum, behind an empty payload."""
    footer = (len(data), 0, 0, checksum([b""]), FORMAT_VERSION, 0, MAGIC)
    crc = checksum([data, FOOTER.pack(*footer)])
    file = b"\x00" + data + FOOTER.pack(len(data), crc, *footer[2:])
    segment = parse_segment(file)
    for offset in segment.set_offsets():
        decode_change_set(segment.payload, offset)


def forged_index(data: bytes) -> None:
    """The index of sets with any content, in a trailer that is right."""
    forged_trailer(struct.pack(">4sI", b"SETS", len(data)) + data)


def checkpoint_record(data: bytes) -> None:
    """The record of a checkpoint, in front of which the checksums of its file stand."""
    decode_record(data)


def entry_record(data: bytes) -> None:
    """The record of an entry, of a checkpoint or a claim."""
    decode_entry(data)


def claim_text(data: bytes) -> None:
    """The JSON of a claim, behind a header that is right."""
    decode_entry(struct.pack(">HBBI", RECORD_VERSION, 0, CLAIM_KIND, len(data)) + data)


TARGETS: list[Callable[[bytes], None]] = [
    change_set,
    plain_file,
    framed_file,
    frames,
    forged_trailer,
    forged_index,
    checkpoint_record,
    entry_record,
    claim_text,
]
