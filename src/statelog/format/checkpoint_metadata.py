"""
The `_metadata` object: a changelog file that is also a checkpoint.

The payload contains the change sets that tasks handed over inline.  The trailer section `CKPT`
lists the parts of the checkpoint (format/checkpoint_record.py); further sections belong to callers.
So one put-if-absent makes the log and the checkpoint durable at once.  The format is documented in
docs/reference/formats/checkpoint_metadata.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from statelog.errors import CorruptionError, InvariantError, UsageError
from statelog.format.buffers import Buffer, checksum, decode_msgpack
from statelog.format.change_set import INT_SIZE, decode_change_set, group_index
from statelog.format.change_set_encoder import EncodedChangeSet
from statelog.format.checkpoint_record import (
    CHECKPOINT_TAG,
    encode_record,
)
from statelog.format.segment import Segment, SegmentWriter, parse_segment
from statelog.format.snappy_frames import MAX_CHUNK_LENGTH
from statelog.format.trailer import GroupIndex, SetEntry
from statelog.model import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    HandleAndOffset,
)

OUTPUT_TAG: Final = b"OUTP"
RESERVED_TAGS: Final = (b"SETS", b"FRAM", CHECKPOINT_TAG)


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """
    A `_metadata` object that is ready to be written.

    Args:
        buffers: The file, in pieces to be written one after another.
        checkpoint: The checkpoint; log handles that were inline now refer to the file.
    """

    buffers: tuple[Buffer, ...] = field(repr=False)
    checkpoint: CompletedCheckpoint


def write_metadata(
    checkpoint: CompletedCheckpoint,
    path: str,
    *,
    compress: bool = True,
    sections: Mapping[bytes, bytes] | None = None,
) -> MetadataFile:
    """Write a checkpoint and its inline change sets to a single file."""
    extra = dict(sections or {})
    for tag in extra:
        if len(tag) != 4 or tag in RESERVED_TAGS:
            raise UsageError(
                f"section tag {tag!r} is reserved or not four bytes long; choose a different one"
            )
    moved = _InlineSetRelocator()
    for handle in checkpoint.log:
        for entry in handle.handles_and_offsets:
            moved.take(entry)
    log = tuple(moved.moved(handle, path) for handle in checkpoint.log)
    checkpoint = replace(checkpoint, log=log)
    body = encode_record(checkpoint)
    extra[CHECKPOINT_TAG] = body
    beside = sum(len(content) for content in extra.values())
    if compress and beside <= MAX_CHUNK_LENGTH // 2:
        try:
            buffers = moved.writer(compress=True).finish(extra)
            return MetadataFile(tuple(buffers), checkpoint)
        except UsageError:
            pass  # the index of the sets exceeds the limit, so the file is written plain
    return MetadataFile(tuple(moved.writer(compress=False).finish(extra)), checkpoint)


def rewrite_metadata(
    data: Buffer, checkpoint: CompletedCheckpoint, *, where: str = ""
) -> MetadataFile:
    """Replace the record in a metadata file; its change sets keep their offsets."""
    segment = parse_segment(data, where=where)
    if segment.trailer is None:
        raise CorruptionError(f"{where} does not contain a checkpoint record", path=where)
    body = encode_record(checkpoint)
    extra = {
        tag: content
        for tag, content in segment.trailer.sections.items()
        if tag not in RESERVED_TAGS
    }
    extra[CHECKPOINT_TAG] = body
    for compress in (True, False) if segment.compressed else (False,):
        writer = SegmentWriter(compress=compress)
        for change_set in segment.trailer.sets:
            encoded = segment.payload[change_set.offset : change_set.offset + change_set.size_bytes]
            writer.add_encoded(
                EncodedChangeSet(
                    (encoded,), change_set.size_bytes, change_set.crc32c, change_set.groups
                )
            )
        try:
            return MetadataFile(tuple(writer.finish(extra)), checkpoint)
        except UsageError:
            if not compress:
                raise
    raise InvariantError(
        "a metadata file that is too large for frames must be written without them"
    )


class _InlineSetRelocator:
    """Collects inline change sets, and their offsets in the new file."""

    def __init__(self) -> None:
        self._segments: dict[str, tuple[Segment, dict[int, SetEntry]]] = {}
        self._places: dict[tuple[str, int], tuple[int, EncodedChangeSet]] = {}
        self._size = 0

    def take(self, entry: HandleAndOffset) -> None:
        """Copy the change set of an inline entry; ignore entries whose sets are in files."""
        if not isinstance(entry.handle, ByteStreamStateHandle):
            return
        name = entry.handle.name
        if (name, entry.offset) in self._places:
            return
        if name not in self._segments:
            segment = parse_segment(entry.handle.data, where=name)
            self._segments[name] = segment, segment.sets_by_offset()
        encoded = _inline_set(*self._segments[name], entry)
        self._places[name, entry.offset] = (self._size, encoded)
        self._size += encoded.size_bytes

    def moved(self, handle: ChangelogStateHandle, path: str) -> ChangelogStateHandle:
        """Return *handle* with its inline entries replaced by offsets in *path*."""
        if not any(isinstance(e.handle, ByteStreamStateHandle) for e in handle.handles_and_offsets):
            return handle
        file = FileStateHandle(path, self._size)
        entries = []
        for entry in handle.handles_and_offsets:
            if isinstance(entry.handle, ByteStreamStateHandle):
                offset, encoded = self._places[entry.handle.name, entry.offset]
                entry = HandleAndOffset(file, offset, encoded.size_bytes, encoded.crc32c)
            entries.append(entry)
        return replace(handle, handles_and_offsets=tuple(entries))

    def writer(self, *, compress: bool) -> SegmentWriter:
        """Return a writer that contains all collected change sets."""
        writer = SegmentWriter(compress=compress)
        for _, encoded in self._places.values():
            writer.add_encoded(encoded)
        return writer


def _inline_set(
    segment: Segment, index: Mapping[int, SetEntry], entry: HandleAndOffset
) -> EncodedChangeSet:
    """Return the change set of an inline entry, verified against the entry's checksum."""
    indexed = index.get(entry.offset)
    end, groups = _extent(segment, indexed, entry)
    encoded = segment.payload[entry.offset : end]
    crc = checksum([encoded])
    if (
        entry.size_bytes not in (None, len(encoded))
        or entry.crc32c not in (None, crc)
        or (indexed is not None and indexed.crc32c != crc)
    ):
        raise CorruptionError(
            f"damaged inline change set {segment.where} at offset {entry.offset}: its size or "
            "checksum does not match the acknowledgement",
            path=segment.where,
            offset=entry.offset,
        )
    return EncodedChangeSet((encoded,), len(encoded), crc, groups)


def _extent(
    segment: Segment, indexed: SetEntry | None, entry: HandleAndOffset
) -> tuple[int, GroupIndex]:
    """Return the end and the groups of a change set, decoding it only if no trailer has both."""
    if indexed is not None and indexed.size_bytes == INT_SIZE + indexed.groups.size_bytes:
        return indexed.offset + indexed.size_bytes, indexed.groups
    decoded = decode_change_set(
        segment.payload, entry.offset, size_bytes=entry.size_bytes, where=segment.where
    )
    return decoded.end, group_index(decoded.batch)


# The section `OUTP` of a `_metadata` object: staged rows, as a msgpack list of Arrow IPC streams.

_streams_decoder: Final = msgspec.msgpack.Decoder(list[bytes])


def encode_streams(streams: Sequence[Buffer]) -> bytes:
    """Encode the section that contains these streams."""
    return msgspec.msgpack.encode(streams)


def decode_streams(section: Buffer | None, *, where: str = "") -> list[bytes]:
    """Decode the streams in a section; without a section, return none."""
    if section is None:
        return []
    try:
        return decode_msgpack(section, _streams_decoder)
    except msgspec.DecodeError as error:
        raise CorruptionError(
            f"damaged staged rows in {where or 'a checkpoint'}: {error}", path=where
        ) from error
