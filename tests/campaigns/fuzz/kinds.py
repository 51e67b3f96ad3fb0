"""
Every kind of file that statelog reads from storage: samples, forgeries and the reader.

A forgery changes what is behind a checksum and repairs the checksum, so that it reaches the decoder.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from tests.campaigns.fuzz import mutations
from tests.campaigns.fuzz.mutations import Mutate

from statelog.format.buffers import checksum
from statelog.format.change_set import decode_change_set
from statelog.format.checkpoint_metadata import OUTPUT_TAG
from statelog.format.checkpoint_record import CHECKPOINT_TAG
from statelog.format.sealed_file import framed, unseal
from statelog.format.segment import Segment, parse_segment, parse_whole_file
from statelog.format.snappy_frames import compress_frames, skippable_chunk
from statelog.format.trailer import FRAMES_TAG, SETS_TAG, SetEntry, pack_sets, pack_trailer

Answer = Any


def never_compared(expected: Answer, answer: Answer) -> bool:
    """Of files without a checksum any content is an answer."""
    return True


def equal(expected: Answer, answer: Answer) -> bool:
    """Files with checksums have one answer."""
    return bool(expected == answer)


@dataclass(frozen=True)
class Kind:
    """
    One kind of file.

    Args:
        name: For the summary.
        samples: Files that the library wrote.
        read: Reads one; the answer is compared with that of the sample.
        forgeries: Changes whose checksums are right.
        same: Whether an answer to a file with damage is right.
        weight: How often it is chosen.
    """

    name: str
    samples: Sequence[bytes]
    read: Callable[[bytes], Answer]
    forgeries: Sequence[Mutate] = ()
    same: Callable[[Answer, Answer], bool] = never_compared
    weight: float = 1.0
    answers: dict[int, Answer] = field(default_factory=dict)


# --------------------------------------------------------------------- changelog files and metadata


def read_sets(segment: Segment) -> list[Any]:
    changes = []
    for offset, size_bytes in segment.set_ranges():
        batch = decode_change_set(segment.payload, offset, size_bytes=size_bytes).batch
        changes.append((batch.key_groups.tolist(), batch.values.to_pylist()))
    return changes


def read_segment(data: bytes) -> Answer:
    """Return the changes and the sections; None where the file has no trailer of statelog."""
    segment = parse_whole_file(data, where="dstl/a")
    changes = read_sets(segment)
    return None if segment.trailer is None else (changes, dict(segment.trailer.sections))


def same_or_foreign(expected: Answer, answer: Answer) -> bool:
    """A cut file may be one of Flink, which has no checksum; the handles of a checkpoint tell."""
    return answer is None or bool(expected == answer)


def segment_of(
    payload: bytes, sets: Sequence[SetEntry], sections: dict[bytes, bytes], compress: bool
) -> bytes:
    """Return a file whose checksums are right, whatever its payload and sections are."""
    extra = {tag: body for tag, body in sections.items() if tag != FRAMES_TAG}
    extra.setdefault(SETS_TAG, pack_sets(sets))
    trailer = pack_trailer(
        {**extra, FRAMES_TAG: sections.get(FRAMES_TAG, b"")} if compress else extra,
        len(payload),
        checksum([payload]),
    )
    if not compress:
        return b"\x00" + payload + trailer
    return b"\x01" + b"".join(compress_frames(payload).buffers) + skippable_chunk(trailer)


def _repaired(entry: SetEntry, payload: bytes) -> SetEntry:
    piece = payload[entry.offset : entry.offset + entry.size_bytes]
    return SetEntry(entry.offset, entry.size_bytes, checksum([piece]), entry.groups)


def forged_payload(rng: random.Random, data: bytes) -> bytes:
    segment = parse_segment(data)
    sections = {} if segment.trailer is None else dict(segment.trailer.sections)
    sets = () if segment.trailer is None else segment.trailer.sets
    payload = mutations.raw(rng, bytes(segment.payload))
    sections.pop(SETS_TAG, None)
    return segment_of(
        payload, [_repaired(entry, payload) for entry in sets], sections, segment.compressed
    )


def forged_section(rng: random.Random, data: bytes) -> bytes:
    """Change one section, the index of change sets too."""
    segment = parse_segment(data)
    sections = {} if segment.trailer is None else dict(segment.trailer.sections)
    tag = rng.choice(sorted(sections)) if sections else SETS_TAG
    sections[tag] = mutations.raw(rng, sections.get(tag, b""))
    return segment_of(bytes(segment.payload), (), sections, segment.compressed)


def section_forgery(tag: bytes, change: Mutate) -> Mutate:
    """Return a forgery of one section."""

    def forge(rng: random.Random, data: bytes) -> bytes:
        segment = parse_segment(data)
        sections = {} if segment.trailer is None else dict(segment.trailer.sections)
        sections[tag] = change(rng, sections.get(tag, b""))
        return segment_of(bytes(segment.payload), (), sections, segment.compressed)

    return forge


def forged_frames(rng: random.Random, data: bytes) -> bytes:
    """Change the Snappy stream itself, behind a trailer that is right."""
    segment = parse_segment(data)
    if segment.trailer is None or not segment.compressed:
        return mutations.raw(rng, data)
    end = segment.trailer.start
    return b"\x01" + mutations.raw(rng, data[1:end]) + data[end:]


# ------------------------------------------------------------------------------------------- texts


def json_forgery(rng: random.Random, data: bytes) -> bytes:
    value = msgspec.json.decode(data) if data else {}
    return msgspec.json.encode(mutations.tree(rng, value))


def msgpack_forgery(rng: random.Random, data: bytes) -> bytes:
    value = msgspec.msgpack.decode(data) if data else []
    return msgspec.msgpack.encode(mutations.tree(rng, value))


def lines_forgery(rng: random.Random, data: bytes) -> bytes:
    """Change the JSON of one line of a file of Spark."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        lines[at] = json_forgery(rng, lines[at])
    except msgspec.DecodeError:
        lines[at] = mutations.raw(rng, lines[at])
    return b"\n".join(lines)


def record_forgery(rng: random.Random, body: bytes) -> bytes:
    """Change the record of an entry, a section of JSON that may be compressed."""
    raw = (
        pa.CompressedInputStream(pa.BufferReader(body[8:]), "zstd").read() if body[2] else body[8:]
    )
    text = json_forgery(rng, raw) if rng.random() < 0.8 else mutations.raw(rng, raw)
    length = rng.choice((len(text),) * 8 + (0, 2**31, 2**32 - 1))
    packed = pa.Codec("zstd").compress(text, asbytes=True)
    kind = rng.choice((body[3:4],) * 8 + (b"\x00", b"\x01"))
    return body[:2] + b"\x01" + kind + length.to_bytes(4, "big") + packed


def recording_forgery(rng: random.Random, data: bytes) -> bytes:
    """Change the msgpack of a recording, the Arrow streams in it too."""
    text = bytes(unseal(data))
    text = msgpack_forgery(rng, text) if rng.random() < 0.8 else mutations.raw(rng, text)
    if rng.random() < 0.2:
        return framed(text, rng.choice((len(text), 2**31)), 0)
    length = rng.choice((len(text),) * 8 + (0, 2**31, 2**32 - 1))
    return framed(pa.Codec("zstd").compress(text, asbytes=True), length)


def arrow_section_forgery(rng: random.Random, body: bytes) -> bytes:
    """Change one of the staged streams."""
    streams = msgspec.msgpack.decode(body) if body else []
    if not streams:
        return mutations.raw(rng, body)
    at = rng.randrange(len(streams))
    streams[at] = mutations.raw(rng, streams[at])
    return msgspec.msgpack.encode(streams)


METADATA_FORGERIES = (
    forged_payload,
    forged_section,
    section_forgery(CHECKPOINT_TAG, record_forgery),
    section_forgery(CHECKPOINT_TAG, record_forgery),
    section_forgery(OUTPUT_TAG, arrow_section_forgery),
    section_forgery(OUTPUT_TAG, msgpack_forgery),
    forged_frames,
)
