"""
The record of a checkpoint or claim: section `CKPT` of a `_metadata` object.

::

    section "CKPT" := version:u16  codec:u8  kind:u8  record_length:u32  record
    codec          := 0 none | 1 zstd
    kind           := 0 checkpoint | 1 claim
    record         := JSON, `record_length` bytes of it once uncompressed

The record of a checkpoint is laid out in columns with a table of files, because hundreds of log
handles repeat the same few names and numbers.  A claim says who owns the location from its number
on.  The format is documented in docs/reference/formats/checkpoint_metadata.md.
Source: Flink, MetadataV6Serializer, for the content of a checkpoint.  The bytes are our own; Flink
elects a leader outside of the checkpoint storage.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import msgspec

from statelog.errors import CorruptionError, IncompatibleFormatError, UsageError
from statelog.format.buffers import (
    DEPTH_MAX,
    ID_MAX,
    JSON_VALUES_MAX,
    RECORD_BYTES_MAX,
    Buffer,
    check_depth,
    compress_zstd,
    decode_json,
    decompress_zstd,
    json_values,
    largest_expansion,
    nesting_exceeds,
)
from statelog.format.segment import SegmentWriter
from statelog.model import (
    OBJECTS_PROPERTY,
    ByteStreamStateHandle,
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    HandleAndOffset,
    JsonObject,
    KeyGroupRange,
    MaterializedHandle,
    StreamStateHandle,
)
from statelog.model.checkpoint import ANCESTORS_MAX, Timeline, TimelineEnd, is_history_name
from statelog.model.handles import checked_path
from statelog.model.key_group import MAX_PARALLELISM_LIMIT
from statelog.options.sections import RETAINED_MAX

RECORD_VERSION: Final = 3
CHECKPOINT_TAG: Final = b"CKPT"
_CHECKPOINT_KIND: Final = 0
CLAIM_KIND: Final = 1
_HEADER: Final = struct.Struct(">HBBI")
_CODEC_NONE: Final = 0
_CODEC_ZSTD: Final = 1
_ZSTD_LEVEL: Final = 3
_DEFAULT_STORAGE: Final = "filesystem"


@dataclass(frozen=True, slots=True)
class OpenedRecord:
    """
    The uncompressed body of a `CKPT` section.

    Args:
        kind: 0 for a checkpoint, `CLAIM_KIND` for a claim.
        raw: The record in JSON.
    """

    kind: int
    raw: Buffer


class _Files(msgspec.Struct, omit_defaults=True):
    """A table of stream handles; `data` is set for handles that contain their bytes."""

    name: list[str]
    size: list[int]
    crc: list[int | None]
    data: list[bytes | None] = []


class _Log(msgspec.Struct, omit_defaults=True):
    """Log handles, then their entries; `gap` is the distance from the end of the previous set."""

    start: list[int]
    end: list[int]
    checkpoint: list[int]
    size: list[int]
    not_incremental: list[int]
    name: list[str]
    entries: list[int]
    file: list[int]
    gap: list[int]
    length: list[int | None]
    crc: list[int | None]
    storage: list[str] = []


class _Snapshots(msgspec.Struct):
    start: list[int]
    end: list[int]
    checkpoint: list[int]
    file: list[int]


class _Record(msgspec.Struct, omit_defaults=True):
    id: int
    created_at_ms: int
    epoch: int
    owner: str
    attempt: str
    max_parallelism: int
    retained: list[int]
    files: _Files
    snapshots: _Snapshots
    log: _Log
    location: str
    timeline: int = 0
    ancestors: list[tuple[str, int, int]] = []
    parent: int | None = None
    properties: JsonObject = {}


_decoder: Final = msgspec.json.Decoder(_Record)


_FileKey = tuple[str, int, int | None] | tuple[str, bytes]


class _FileTable:
    """Assigns numbers to stream handles while a record is being written."""

    def __init__(self) -> None:
        self._numbers: dict[_FileKey, int] = {}
        self.handles: list[StreamStateHandle] = []

    def number_of(self, handle: StreamStateHandle) -> int:
        # Handles with equal names are equal; here no field may be lost, so all fields count.
        if isinstance(handle, FileStateHandle):
            key: _FileKey = (handle.path, handle.size_bytes, handle.crc32c)
        else:
            key = (handle.name, handle.data)
        number = self._numbers.setdefault(key, len(self.handles))
        if number == len(self.handles):
            self.handles.append(handle)
        return number

    def columns(self) -> _Files:
        files = _Files([], [], [])
        for handle in self.handles:
            if isinstance(handle, FileStateHandle):
                files.name.append(handle.path)
                files.size.append(handle.size_bytes)
                files.crc.append(handle.crc32c)
                files.data.append(None)
            else:
                files.name.append(handle.name)
                files.size.append(len(handle.data))
                files.crc.append(None)
                files.data.append(handle.data)
        if all(data is None for data in files.data):
            files.data = []
        return files


def encode_record(checkpoint: CompletedCheckpoint) -> bytes:
    """Encode the body of a `CKPT` section."""
    timeline = checkpoint.timeline
    table = _FileTable()
    snapshots = _Snapshots([], [], [], [])
    for snapshot in checkpoint.materialized:
        snapshots.start.append(snapshot.key_group_range.start)
        snapshots.end.append(snapshot.key_group_range.end)
        snapshots.checkpoint.append(snapshot.checkpoint_id)
        snapshots.file.append(table.number_of(snapshot.handle))
    log = _log_columns(checkpoint.log, table)
    try:
        raw = msgspec.json.encode(
            _Record(
                id=checkpoint.checkpoint_id,
                created_at_ms=checkpoint.created_at_ms,
                epoch=checkpoint.epoch,
                owner=checkpoint.owner_id,
                attempt=checkpoint.attempt,
                location=timeline.location_id,
                timeline=timeline.number,
                ancestors=[
                    (end.location_id, end.number, end.last_id) for end in timeline.ancestors
                ],
                max_parallelism=checkpoint.max_parallelism,
                retained=list(checkpoint.retained),
                files=table.columns(),
                snapshots=snapshots,
                log=log,
                parent=checkpoint.parent_id,
                properties=dict(checkpoint.properties),
            )
        )
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"the properties of checkpoint {checkpoint.checkpoint_id} are not JSON: {error}",
            checkpoint_id=checkpoint.checkpoint_id,
        ) from error
    _check_bounds(checkpoint, raw)
    return seal_record(raw, _CHECKPOINT_KIND)


def seal_record(raw: bytes, kind: int) -> bytes:
    """Return the section body for a record in JSON."""
    body = compress_zstd(raw, _ZSTD_LEVEL)
    if body is None:
        return _HEADER.pack(RECORD_VERSION, _CODEC_NONE, kind, len(raw)) + raw
    return _HEADER.pack(RECORD_VERSION, _CODEC_ZSTD, kind, len(raw)) + body


def _check_bounds(checkpoint: CompletedCheckpoint, raw: bytes) -> None:
    """Raise an error instead of writing a record that readers would reject."""
    number = checkpoint.checkpoint_id
    if len(raw) > RECORD_BYTES_MAX or len(checkpoint.retained) > RETAINED_MAX:
        raise UsageError(
            f"the record of checkpoint {number} contains {len(raw)} bytes and "
            f"{len(checkpoint.retained)} retained checkpoints; readers accept at most {RECORD_BYTES_MAX} and "
            f"{RETAINED_MAX}: retain fewer checkpoints",
            checkpoint_id=number,
        )
    if (values := json_values(raw)) > JSON_VALUES_MAX:
        raise UsageError(
            f"the record of checkpoint {number} contains {values} values; readers accept at "
            f"most {JSON_VALUES_MAX}: write a snapshot to shorten the log, or use fewer properties",
            checkpoint_id=number,
        )
    if nesting_exceeds(dict(checkpoint.properties)):
        raise UsageError(
            f"the properties of checkpoint {number} are nested deeper than {DEPTH_MAX} levels",
            checkpoint_id=number,
        )
    if number > ID_MAX:
        raise UsageError(f"checkpoint ids cannot exceed {ID_MAX}; got {number}")


def _log_columns(handles: Sequence[ChangelogStateHandle], table: _FileTable) -> _Log:
    log = _Log([], [], [], [], [], [], [], [], [], [], [])
    ends: dict[int, int] = {}
    for handle in handles:
        log.start.append(handle.key_group_range.start)
        log.end.append(handle.key_group_range.end)
        log.checkpoint.append(handle.checkpoint_id)
        log.size.append(handle.size_bytes)
        log.not_incremental.append(handle.size_bytes - handle.incremental_size_bytes)
        log.name.append(handle.state_handle_id)
        log.entries.append(len(handle.handles_and_offsets))
        log.storage.append(handle.storage_identifier)
        for entry in handle.handles_and_offsets:
            number = table.number_of(entry.handle)
            log.file.append(number)
            log.gap.append(entry.offset - ends.get(number, 0))
            log.length.append(entry.size_bytes)
            log.crc.append(entry.crc32c)
            ends[number] = entry.offset + (entry.size_bytes or 0)
    if all(storage == _DEFAULT_STORAGE for storage in log.storage):
        log.storage = []
    return log


def open_record(body: Buffer, *, where: str = "") -> OpenedRecord:
    """Return the body of a `CKPT` section, uncompressed."""
    view = memoryview(body)
    if len(view) < _HEADER.size:
        raise damaged_record(where, f"the record is only {len(view)} bytes")
    version, codec, kind, length = _HEADER.unpack_from(view)
    if version < RECORD_VERSION:
        raise IncompatibleFormatError(
            f"checkpoint metadata {where} has version {version}, which was never released; this "
            f"version of statelog reads version {RECORD_VERSION} only. Nothing is damaged: use the version of statelog "
            "that wrote it, or start with a new state location",
            path=where,
        )
    if (
        version > RECORD_VERSION
        or codec not in (_CODEC_NONE, _CODEC_ZSTD)
        or kind not in (_CHECKPOINT_KIND, CLAIM_KIND)
    ):
        raise IncompatibleFormatError(
            f"checkpoint metadata {where} has version {version} (codec {codec}, kind {kind}); this "
            f"version of statelog reads version {RECORD_VERSION}. Nothing is damaged: upgrade statelog",
            path=where,
        )
    if length > min(RECORD_BYTES_MAX, largest_expansion(len(view))):
        raise damaged_record(where, f"the record claims {length} bytes in {len(view)} stored bytes")
    raw: Buffer = view[_HEADER.size :]
    if codec == _CODEC_ZSTD:
        try:
            raw = decompress_zstd(raw, length)
        except (ValueError, OSError) as error:
            raise damaged_record(where, f"the record cannot be read ({error})") from error
    if len(raw) != length:
        raise damaged_record(where, f"the record is {len(raw)} bytes instead of {length}")
    return OpenedRecord(kind, raw)


def decode_record(body: Buffer, *, where: str = "") -> CompletedCheckpoint:
    """Decode the body of a checkpoint's `CKPT` section."""
    opened = open_record(body, where=where)
    if opened.kind != _CHECKPOINT_KIND:
        raise damaged_record(where, "the record is a claim")
    return checkpoint_of(opened, where=where)


def checkpoint_of(opened: OpenedRecord, *, where: str = "") -> CompletedCheckpoint:
    """Return the checkpoint in an opened record; raises like `decode_record`."""
    try:
        record = decode_json(opened.raw, _decoder)
        check_depth(record.properties, where)
        _check_names(record, where)
        _check_numbers(record, where)
        _check_history(record, where)
        return _checkpoint(record)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OSError, IndexError) as error:
        raise damaged_record(where, f"the record cannot be read ({error})") from error


def _check_names(record: _Record, where: str) -> None:
    """Reject a record that refers to an object outside the store."""
    listed = record.properties.get(OBJECTS_PROPERTY)
    names = [
        name for name, data in zip_longest(record.files.name, record.files.data) if data is None
    ]
    try:
        for name in (*names, *(listed if isinstance(listed, list) else ())):
            checked_path(name)  # those listed are deleted with the checkpoint
    except CorruptionError as error:
        raise damaged_record(where, str(error)) from error


def _check_numbers(record: _Record, where: str) -> None:
    """Reject ids, counts and key groups that are impossible in a checkpoint."""
    log = record.log
    snapshots = record.snapshots
    ids = (record.id, record.parent or 0, *record.retained, *snapshots.checkpoint, *log.checkpoint)
    if min(ids) < 0:
        raise damaged_record(where, "a checkpoint id is below 0")
    if max(ids) > ID_MAX:
        raise damaged_record(where, f"the checkpoint id {max(ids)} is above {ID_MAX}")
    if len(record.retained) > RETAINED_MAX:
        raise damaged_record(
            where,
            f"it retains {len(record.retained)} checkpoints, but at most {RETAINED_MAX} are allowed",
        )
    if not 1 <= record.max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise damaged_record(
            where, f"it has {record.max_parallelism} key groups, not 1 to {MAX_PARALLELISM_LIMIT}"
        )
    if max((*log.end, *snapshots.end), default=0) >= record.max_parallelism:
        raise damaged_record(where, f"a range exceeds its {record.max_parallelism} key groups")
    if min(log.entries, default=0) < 0:
        raise damaged_record(where, "a log handle has a negative number of entries")


def _check_history(record: _Record, where: str) -> None:
    """Reject timelines that are impossible in a checkpoint."""
    names = (record.location, record.attempt, *(name for name, _, _ in record.ancestors))
    if not all(map(is_history_name, names)):
        raise damaged_record(where, "the name of its location or attempt is not hexadecimal")
    if len(record.ancestors) > ANCESTORS_MAX:
        raise damaged_record(
            where,
            f"it continues {len(record.ancestors)} timelines, but at most {ANCESTORS_MAX} are allowed",
        )
    numbers = [record.timeline, *(number for _, *ends in record.ancestors for number in ends)]
    if min(numbers) < 0 or max(numbers) > ID_MAX:
        raise damaged_record(where, "the number of a timeline is below 0 or too high")


def _checkpoint(record: _Record) -> CompletedCheckpoint:
    files = _handles(record.files)
    snapshots = record.snapshots
    return CompletedCheckpoint(
        checkpoint_id=record.id,
        parent_id=record.parent,
        created_at_ms=record.created_at_ms,
        epoch=record.epoch,
        owner_id=record.owner,
        max_parallelism=record.max_parallelism,
        attempt=record.attempt,
        timeline=Timeline(
            record.location,
            record.timeline,
            tuple(TimelineEnd(*ancestor) for ancestor in record.ancestors),
        ),
        materialized=tuple(
            MaterializedHandle(KeyGroupRange(start, end), checkpoint_id, files[number])
            for start, end, checkpoint_id, number in zip(
                snapshots.start, snapshots.end, snapshots.checkpoint, snapshots.file, strict=True
            )
        ),
        log=tuple(_log_handles(record.log, files)),
        retained=tuple(record.retained),
        properties=record.properties,
    )


def _handles(files: _Files) -> list[StreamStateHandle]:
    data = files.data or [None] * len(files.name)
    return [
        FileStateHandle(name, size, crc)
        if content is None
        else ByteStreamStateHandle(name, content)
        for name, size, crc, content in zip(files.name, files.size, files.crc, data, strict=True)
    ]


def _log_handles(log: _Log, files: Sequence[StreamStateHandle]) -> list[ChangelogStateHandle]:
    entries = []
    ends: dict[int, int] = {}
    for number, gap, length, crc in zip(log.file, log.gap, log.length, log.crc, strict=True):
        offset = ends.get(number, 0) + gap
        ends[number] = offset + (length or 0)
        entries.append(HandleAndOffset(files[number], offset, length, crc))
    handles = []
    position = 0
    for start, end, checkpoint_id, size, rest, name, count, storage in zip(
        log.start,
        log.end,
        log.checkpoint,
        log.size,
        log.not_incremental,
        log.name,
        log.entries,
        log.storage or [_DEFAULT_STORAGE] * len(log.start),
        strict=True,
    ):
        handle_entries = tuple(entries[position : position + count])
        position += count
        handles.append(
            ChangelogStateHandle(
                KeyGroupRange(start, end),
                handle_entries,
                size,
                size - rest,
                name,
                checkpoint_id,
                storage,
            )
        )
    if position != len(entries):
        raise ValueError(f"expected {position} log entries, but found {len(entries)}")
    return handles


def damaged_record(where: str, reason: str) -> CorruptionError:
    """Return the error for a damaged record."""
    return CorruptionError(f"damaged checkpoint metadata {where}: {reason}", path=where)


CLAIM_BYTES_MAX: Final = 1024
"""A damaged entry that is larger was a checkpoint."""


class ClaimRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"owner_id": "owner", "next_number": "next", "location_id": "location"},
):
    """
    The record of a claim.

    Args:
        number: The number of its entry.
        owner_id: Name of the owner.
        attempt: Random name of the attempt; distinguishes a lost answer from a lost race.
        location_id: The identity of the location: the `attempt` of its first claim, or the id of a
            fork or copy.
        timeline: The number of the timeline that the owner found, >= 0.
        created_at_ms: Milliseconds since 1970 (UTC).
        newest: The newest checkpoint below it, from which the owner continues; None without one.
        next_number: The number of the next entry: `number` + 1, or higher in the first claim of a
            fork or copy, which retains the ids of the parent.
    """

    number: int
    owner_id: str
    attempt: str
    created_at_ms: int
    next_number: int
    location_id: str
    timeline: int = 0
    newest: int | None = None


_claim_decoder: Final = msgspec.json.Decoder(ClaimRecord)


def encode_claim(claim: ClaimRecord) -> bytes:
    """Encode the object that contains a claim."""
    if claim.next_number > ID_MAX:
        raise UsageError(f"entry numbers cannot exceed {ID_MAX}")
    sections = {CHECKPOINT_TAG: seal_record(msgspec.json.encode(claim), CLAIM_KIND)}
    data = b"".join(SegmentWriter(compress=False).finish(sections))
    if len(data) > CLAIM_BYTES_MAX:
        raise UsageError(
            f"the claim of {claim.owner_id[:80]!r} is {len(data)} bytes; the limit is {CLAIM_BYTES_MAX}: "
            "give the owner a shorter name"
        )
    return data


def decode_entry(body: Buffer, *, where: str = "") -> CompletedCheckpoint | ClaimRecord:
    """Decode the body of an entry's `CKPT` section."""
    opened = open_record(body, where=where)
    if opened.kind != CLAIM_KIND:
        return checkpoint_of(opened, where=where)
    try:
        claim = decode_json(opened.raw, _claim_decoder)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise damaged_record(where, f"the claim cannot be read ({error})") from error
    newest = -1 if claim.newest is None else claim.newest
    if not -1 <= newest < claim.number < claim.next_number <= ID_MAX:
        raise damaged_record(where, "the numbers of the claim do not ascend")
    if not 0 <= claim.timeline <= claim.number:
        raise damaged_record(where, "the timeline of the claim does not belong to its location")
    if not (is_history_name(claim.location_id) and is_history_name(claim.attempt)):
        raise damaged_record(where, "the name of its location or attempt is not hexadecimal")
    return claim
