"""
Find the objects of a location that contain a given key of an operator.

Every object is decoded as a reader decodes it: the change sets of changelog files and checkpoints,
the rows of snapshots, and staged output rows.  Staged rows have columns of their own, so a row
counts if all values of the key occur in it.  Recordings are found by
`statelog.extensions.recordings`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from statelog.checkpoint.attachments import Attachment
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import present_ids, read_checkpoint
from statelog.checkpoint.restore import objects_of
from statelog.checkpoint.retained import list_tags, retained_ids
from statelog.checkpoint.state_stream import check_stream
from statelog.errors import CorruptionError, IncompatibleFormatError, StatelogError
from statelog.format.arrow_data import open_parquet, python_rows, read_stream_table
from statelog.format.buffers import Buffer
from statelog.format.change_set import decode_change_set
from statelog.format.checkpoint_metadata import OUTPUT_TAG, decode_streams
from statelog.format.segment import Segment, parse_whole_file
from statelog.model import METADATA_KEY_GROUP, CompletedCheckpoint, FileStateHandle, KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec, schema_of_changes
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN, SCHEMA_METADATA, rows_of_groups
from statelog.state.keys.state_key import StateKey
from statelog.state.kinds import Values
from statelog.state.schema import OperatorStateSchema
from statelog.store import PATHS, ObjectStore, read_verified
from statelog.store.location_store import parse_parent_path

CHECKPOINT = "checkpoint"
CHANGELOG = "changelog"
SNAPSHOT = "snapshot"
OUTPUT = "output"
_KINDS: Final = {"dstl": CHANGELOG, "taskowned": SNAPSHOT, "shared": SNAPSHOT, "output": OUTPUT}
"""By folder."""
# Besides errors of Arrow and msgpack, damaged text is a ValueError or, of a negative length, a SystemError.
_UNREADABLE: Final = (
    StatelogError,
    pa.ArrowException,
    msgspec.MsgspecError,
    OSError,
    ValueError,
    LookupError,
    SystemError,
)


class SoughtKey:
    """A key of an operator, to be found in objects."""

    def __init__(
        self, values: object, schema: OperatorStateSchema, key_groups: KeyGroupRange
    ) -> None:
        key = StateKey(values, schema.key_schema)
        self.values: Values = key.values
        self.operator_id = schema.operator_id
        self.key_group = key.key_groups(key_groups).start
        self._codecs: dict[bytes, OperatorCodec | None] = {}

    def is_in_object(
        self,
        store: ObjectStore,
        path: str,
        handle: FileStateHandle | None = None,
    ) -> str | None:
        """Return the kind of an object if it contains the key, otherwise None."""
        kind = _kind_of(path)
        if kind is None:
            return None

        def look(data: memoryview) -> str | None:
            if handle is not None:
                check_stream(handle, data, f"{kind} {path} in {store.url}")
            in_segment = kind in (CHECKPOINT, CHANGELOG)
            segment = parse_whole_file(data, where=path) if in_segment else None
            try:
                return kind if self._is_in(kind, data, segment) else None
            except IncompatibleFormatError:
                raise
            except _UNREADABLE as error:
                raise CorruptionError(
                    f"damaged {kind} {path} in {store.url}: {error}; whether it contains the key is "
                    "unknown. If no checkpoint needs it, `statelog gc --apply` deletes it",
                    path=path,
                ) from error

        return read_verified(store, path, look)

    def _is_in(self, kind: str, data: Buffer, segment: Segment | None) -> bool:
        if segment is None:
            return self._in_snapshot(data) if kind == SNAPSHOT else self._in_stream(data)
        sections: Mapping[bytes, bytes] = (
            {} if segment.trailer is None else segment.trailer.sections
        )
        staged = decode_streams(sections.get(OUTPUT_TAG))
        return any(map(self._in_set, _sets(segment))) or any(map(self._in_stream, staged))

    def _in_set(self, changes: tuple[list[int], list[bytes]]) -> bool:
        """Return whether a change set of the operator contains the key."""
        codec: OperatorCodec | None = None
        for key_group, value in zip(*changes, strict=True):
            if key_group == METADATA_KEY_GROUP:
                codec = self._codec(value)
            elif key_group == self.key_group and codec is not None:
                batches = codec.present_reader().batches([key_group], [value])
                if any(
                    self._rows(batch, codec)
                    for changes_of_state in batches.values()
                    for _, batch in changes_of_state
                ):
                    return True
        return False

    def _codec(self, metadata: bytes) -> OperatorCodec | None:
        """Return the codec of a schema as written, or None if it is for a different operator."""
        if metadata not in self._codecs:
            schema = schema_of_changes(metadata)
            is_same_operator = schema.operator_id == self.operator_id
            self._codecs[metadata] = OperatorCodec(schema) if is_same_operator else None
        return self._codecs[metadata]

    def _rows(self, batch: pa.RecordBatch, codec: OperatorCodec) -> int:
        count: int = self.rows_of(batch, codec.schema.key_schema).num_rows
        return count

    def rows_of(self, batch: pa.RecordBatch, key_schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows that have the key in their columns `key.<name>`."""
        return StateKey(self.values, key_schema).select(batch)

    def _in_snapshot(self, data: Buffer) -> bool:
        file = open_parquet(data)
        codec = self._codec((file.schema_arrow.metadata or {})[SCHEMA_METADATA])
        if codec is None:
            return False
        names = [f"key.{name}" for name in codec.schema.key_schema.names]
        groups = KeyGroupRange(self.key_group, self.key_group)
        table = rows_of_groups(data, groups, [KEY_GROUP_COLUMN, *names])
        return any(self._rows(batch, codec) for batch in table.to_batches())

    def _in_stream(self, data: Buffer) -> bool:
        table = staged_table(data)
        return any(self.is_in_row(row) for row in staged_rows(table))

    def is_in_row(self, row: Mapping[str, object]) -> bool:
        """Return whether an output row contains all values of the key."""
        leaves = list(_leaves(row))
        return all(
            value is None or any(type(leaf) is type(value) and leaf == value for leaf in leaves)
            for value in self.values
        )


def _kind_of(path: str) -> str | None:
    """Return the kind of an object from its name, or None if it cannot contain keys."""
    while (parsed := parse_parent_path(path)) is not None:
        path = parsed[1]
    folder = path.partition("/")[0]
    return CHECKPOINT if folder.startswith("chk-") else _KINDS.get(folder)


def staged_table(data: Buffer) -> pa.Table:
    """Read the staged rows in an Arrow IPC stream; raise `CorruptionError` if it is invalid."""
    try:
        return read_stream_table(data)  # of an orphan there is no checksum
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"staged rows cannot be read: {error}") from error


def staged_rows(table: pa.Table) -> list[dict[str, object]]:
    """Convert staged rows to Python values; raise `CorruptionError` if that fails."""
    try:
        return python_rows(table)
    except pa.ArrowInvalid as error:
        raise CorruptionError(f"staged rows cannot be read: {error}") from error


def _sets(segment: Segment) -> Iterator[tuple[list[int], list[bytes]]]:
    for offset, size_bytes in segment.set_ranges():
        decoded = decode_change_set(
            segment.payload, offset, size_bytes=size_bytes, where=segment.where
        )
        yield decoded.batch.key_groups.tolist(), decoded.batch.values.to_pylist()


def _leaves(value: object) -> Iterable[object]:
    """Yield the values in an output row, including those nested in structs, lists and maps."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


# What still holds a key, and when it is deleted.


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTrace:
    """
    An object in which a key is stored.

    Args:
        path: Its name.
        kind: "checkpoint", "changelog", "snapshot", "output", or the folder of another kind.
        checkpoints: The retained checkpoints that need it, ascending; none for an orphan.
        pins: The tags, forks and readers that keep one of them, such as "tag before-upgrade".
        leaves: When the object is deleted.
    """

    path: str
    kind: str
    checkpoints: tuple[int, ...]
    pins: tuple[str, ...]
    leaves: str


class ObjectUses:
    """Which retained checkpoints need which objects."""

    def __init__(self, store: ObjectStore, newest: CompletedCheckpoint) -> None:
        self._newest = newest
        ids = present_ids(store)
        self.checkpoints = retained_ids(store, newest, ids)
        self._by_path: dict[str, list[int]] = {}
        self._handles: dict[str, FileStateHandle] = {}
        for checkpoint_id in self.checkpoints:
            checkpoint = read_checkpoint(store, checkpoint_id).checkpoint
            for path in objects_of(checkpoint):
                self._by_path.setdefault(path, []).append(checkpoint_id)
            snapshots = [snapshot.handle for snapshot in checkpoint.materialized]
            record = BatchRecord.of(checkpoint)
            attached = [attachment.handle for attachment in record.attachments]
            for handle in (*snapshots, *record.staged_files(), *attached):
                if isinstance(handle, FileStateHandle):
                    self._handles[handle.path] = handle
        attachments = BatchRecord.of(newest).attachments
        self._aged = {attachment.path for attachment in attachments if has_rows(attachment)}
        self._pins: dict[int, list[str]] = {}
        for tag in list_tags(store):
            for checkpoint_id in self.checkpoints:
                if tag.pin.holds(checkpoint_id, newest.checkpoint_id):
                    name = f"{tag.kind.value} {tag.name}"
                    self._pins.setdefault(checkpoint_id, []).append(name)

    @property
    def parent_objects(self) -> tuple[str, ...]:
        """The objects of parents that the checkpoints need."""
        return tuple(path for path in self._by_path if parse_parent_path(path) is not None)

    def handle_of(self, path: str) -> FileStateHandle | None:
        """
        Return the handle of a snapshot or of a file of staged rows.

        None for another object, or an orphan.
        """
        return self._handles.get(path)

    def pins_of(self, checkpoints: Iterable[int]) -> tuple[str, ...]:
        """Return the tags that pin at least one of the checkpoints."""
        return tuple(
            dict.fromkeys(
                name for checkpoint in checkpoints for name in self._pins.get(checkpoint, ())
            )
        )

    def trace(self, path: str, kind: str) -> KeyTrace:
        """Return a trace that says what will delete the object."""
        needed = tuple(self._by_path.get(path, ()))
        pins = self.pins_of(needed)
        return KeyTrace(
            path=path, kind=kind, checkpoints=needed, pins=pins, leaves=self._removal(path, needed)
        )

    def _removal(self, path: str, needed: tuple[int, ...]) -> str:
        """Return when an object is deleted, in the form of the end of a sentence."""
        if parse_parent_path(path) is not None:
            return "when you also forget the key in the parent of this fork"
        if not needed:
            return "with the next garbage collection (statelog gc --apply)"
        pinned = [checkpoint_id for checkpoint_id in needed if self._pins.get(checkpoint_id)]
        steps = []
        newest = self._newest
        retained_count = len(newest.retained)
        if path in self._aged:
            steps.append("the age of its newest row (retention)")
        if newest.checkpoint_id in needed:
            groups = ", ".join(
                sorted({str(key_range) for key_range in ranges_needing(newest, {path})})
            )
            if not groups:  # rows of its own micro-batch, and no state
                steps.append(f"{retained_count} more {_checkpoints(retained_count)}")
            else:
                steps.append(
                    f"the next snapshot of key groups {groups}, and {retained_count} more {_checkpoints(retained_count)}"
                )
        else:
            after = sum(checkpoint_id > max(needed) for checkpoint_id in newest.retained)
            more = max(retained_count - after, 1)
            if any(checkpoint_id in newest.retained for checkpoint_id in needed):
                steps.append(f"{more} more {_checkpoints(more)}")
        if pinned:
            steps.append(f"the end of {', '.join(self.pins_of(pinned))} (statelog tag --remove)")
        return "after " + ", and after ".join(steps)


def ranges_needing(checkpoint: CompletedCheckpoint, paths: Container[str]) -> list[KeyGroupRange]:
    """Return the ranges of key groups for which a checkpoint needs an object in *paths*."""
    handles = [
        (log.key_group_range, entry.handle)
        for log in checkpoint.log
        for entry in log.handles_and_offsets
    ]
    handles += [(snapshot.key_group_range, snapshot.handle) for snapshot in checkpoint.materialized]
    return [
        key_range
        for key_range, handle in handles
        if isinstance(handle, FileStateHandle) and handle.path in paths
    ]


def _checkpoints(count: int) -> str:
    return "checkpoint" if count == 1 else "checkpoints"


def has_rows(attachment: Attachment) -> bool:
    """Return whether an attachment contains output rows, judging by its folder."""
    return attachment.path.partition("/")[0] == PATHS.output("")
