"""
Find the objects of a location in which a key of an operator is stored.

Every object is decoded as a reader decodes it: the change sets of changelog files and checkpoints, the
rows of snapshots, and staged output rows.  Staged rows have columns of their own, so a row counts if all
values of the key occur in it.  Recordings are found by `statelog.state.recordings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from statelog.errors import CorruptionError
from statelog.format.buffers import Buffer
from statelog.format.change_set_decoder import decode_change_set
from statelog.format.checkpoint_metadata import OUTPUT_TAG
from statelog.format.segment import Segment, parse_segment
from statelog.model import METADATA_KEY_GROUP, KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec, schema_of_changes
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN, SCHEMA_METADATA
from statelog.state.kinds import Values
from statelog.state.reader.lookup import StateKey
from statelog.state.schema.descriptors import OperatorStateSchema
from statelog.store import LocationPaths, ObjectStore
from statelog.store.location_store import parse_parent_path

CHECKPOINT, CHANGELOG, SNAPSHOT, OUTPUT = "checkpoint", "changelog", "snapshot", "output"


class SoughtKey:
    """
    A key of an operator, to be found in objects.

    Args:
        values: Its values.
        schema: The operator's schema.
        key_groups: The key groups of the operator.

    Raises:
        UsageError: The values are no key of the operator.
    """

    def __init__(
        self, values: object, schema: OperatorStateSchema, key_groups: KeyGroupRange
    ) -> None:
        key = StateKey(values, schema.key_schema)
        self.values: Values = key.values
        self.operator_id = schema.operator_id
        self.key_group = key.key_groups(key_groups).start
        self._codecs: dict[bytes, OperatorCodec | None] = {}

    def is_in_object(self, store: ObjectStore, path: str, paths: LocationPaths) -> str | None:
        """
        Return the kind of an object that holds the key; None if it does not.

        Raises:
            CorruptionError: The object is damaged, so what it holds is unknown.
            StoreError: The store failed.

        Blocks: On the store.
        """
        relative = path[len(paths.root) + 1 :] if paths.root else path
        while (parsed := parse_parent_path(relative)) is not None:
            relative = parsed[1]
        folder = relative.partition("/")[0]
        if folder.startswith("chk-"):
            return CHECKPOINT if self._in_checkpoint(store.get(path), path) else None
        if folder == "dstl":
            segment = parse_segment(store.get(path), where=path)
            return CHANGELOG if self._in_changes(segment) else None
        if folder in ("taskowned", "shared"):
            return SNAPSHOT if self._in_snapshot(store.get(path), path) else None
        if folder == "output":
            return OUTPUT if self._in_stream(store.get(path)) else None
        return None

    def _in_checkpoint(self, data: Buffer, path: str) -> bool:
        segment = parse_segment(data, where=path)
        sections: Mapping[bytes, bytes] = (
            {} if segment.trailer is None else segment.trailer.sections
        )
        staged = sections.get(OUTPUT_TAG)
        return self._in_changes(segment) or any(map(self._in_stream, streams_of(staged)))

    def _in_changes(self, segment: Segment) -> bool:
        return any(map(self._in_set, _sets(segment)))

    def _in_set(self, changes: tuple[list[int], list[bytes]]) -> bool:
        """Return whether a change set of the operator holds the key."""
        codec: OperatorCodec | None = None
        for key_group, value in zip(*changes, strict=True):
            if key_group == METADATA_KEY_GROUP:
                codec = self._codec(value)
            elif key_group == self.key_group and codec is not None:
                batches = codec.present_reader().batches([key_group], [value])
                if any(self._rows(one, codec) for each in batches.values() for _, one in each):
                    return True
        return False

    def _codec(self, metadata: bytes) -> OperatorCodec | None:
        """Return the codec of a schema as it was written; None for another operator."""
        if metadata not in self._codecs:
            schema = schema_of_changes(metadata)
            own = schema.operator_id == self.operator_id
            self._codecs[metadata] = OperatorCodec(schema) if own else None
        return self._codecs[metadata]

    def _rows(self, batch: pa.RecordBatch, codec: OperatorCodec) -> int:
        found: int = self.rows_of(batch, codec.schema.key_schema).num_rows
        return found

    def rows_of(self, batch: pa.RecordBatch, key_schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows with the key, of rows with the columns `key.<name>`."""
        return StateKey(self.values, key_schema).select(batch)

    def _in_snapshot(self, data: Buffer, path: str) -> bool:
        try:
            file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)))
            codec = self._codec((file.schema_arrow.metadata or {})[SCHEMA_METADATA])
            if codec is None:
                return False
            names = [f"key.{name}" for name in codec.schema.key_schema.names]
            table = pq.read_table(
                pa.BufferReader(pa.py_buffer(data)),
                columns=[KEY_GROUP_COLUMN, *names],
                filters=[(KEY_GROUP_COLUMN, "==", self.key_group)],
            )
        except (pa.ArrowException, KeyError, OSError) as error:
            raise CorruptionError(f"damaged snapshot {path}: {error}", path=path) from error
        return any(self._rows(batch, codec) for batch in table.to_batches())

    def _in_stream(self, data: Buffer) -> bool:
        table = staged_table(data)
        return any(self.is_in_row(row) for row in table.to_pylist())

    def is_in_row(self, row: Mapping[str, Any]) -> bool:
        """Return whether all values of the key occur in an output row."""
        found = list(_leaves(row))
        return all(
            value is None or any(type(one) is type(value) and one == value for one in found)
            for value in self.values
        )


def staged_table(data: Buffer) -> pa.Table:
    """Return the staged rows of an Arrow IPC stream."""
    return pa.ipc.open_stream(pa.BufferReader(pa.py_buffer(data))).read_all()


def streams_of(section: bytes | None) -> list[bytes]:
    """Return the Arrow IPC streams in the output section of a checkpoint."""
    return [] if section is None else msgspec.msgpack.decode(section, type=list[bytes])


def _sets(segment: Segment) -> Iterator[tuple[list[int], list[bytes]]]:
    for offset, size_bytes in segment.set_ranges():
        decoded = decode_change_set(
            segment.payload, offset, size_bytes=size_bytes, where=segment.where
        )
        yield decoded.batch.key_groups.tolist(), decoded.batch.values.to_pylist()


def _leaves(value: object) -> Iterable[object]:
    """Yield the values in an output row, those in structs, lists and maps too."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value
