"""
Encode state changes for the log, and decode them for a replay.

A metadata change (key group -1) carries the operator's schema as JSON.  It is the first change of
every change set, so that each file is read by its own schema, whatever the present one is.  A data
change holds what one micro-batch did to one variable in one key group, as an Arrow record batch
without its schema::

    change := kind:1  state_id:2 (big-endian)  Arrow IPC record batch message
    kind   := 01 deltas

`StateCodec` makes the columns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import (
    CapacityError,
    CorruptionError,
    IncompatibleFormatError,
    InvariantError,
)
from statelog.format.arrow_data import read_batch
from statelog.format.arrow_limits import check_size, one_batch
from statelog.model import METADATA_KEY_GROUP, ChangeBatch
from statelog.model.state_change import INT32_MAX, joined_values
from statelog.state.encoding.converters import StructFactory
from statelog.state.encoding.deltas import StateCodec, WrittenStateCodec
from statelog.state.encoding.values import KeyCodec, tuple_factory
from statelog.state.heap import Overlay
from statelog.state.kinds import Deltas, Operations
from statelog.state.schema import OperatorStateSchema, schema_text, stored_types

DELTAS: Final = 1
UNDECODABLE: Final = (
    pa.ArrowException,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    SystemError,
    InvariantError,
)
"""The errors of conversions if stored values do not fit their stored schema."""
_HEADER: Final = struct.Struct(">BH")


class OperatorCodec:
    """Encode and decode the changes of all variables of one operator."""

    def __init__(
        self, schema: OperatorStateSchema, struct_factory: StructFactory = tuple_factory
    ) -> None:
        self.schema = schema
        self.key = KeyCodec(schema.key_schema)
        self.states = [
            StateCodec(self.key, descriptor, struct_factory) for descriptor in schema.states
        ]
        self.kinds = tuple(state.kind for state in schema.states)
        self.live = tuple(index for index, state in enumerate(schema.states) if not state.dropped)
        self._struct_factory = struct_factory
        self._metadata = msgspec.json.encode(schema.to_json())
        self._written: dict[bytes, WrittenStates] = {}

    def metadata_change(self) -> bytes:
        """Return the metadata change that describes the data changes."""
        return self._metadata

    def written_by(self, metadata: bytes) -> WrittenStates:
        """Return a decoder for changes that were written with the schema in a metadata change."""
        # Every change set begins with its schema, and nearly all have the same one.
        written = self._written.get(metadata)
        if written is None:
            if metadata == self._metadata:
                codecs: list[StateCodec | None] = [
                    None if codec.descriptor.dropped else codec for codec in self.states
                ]
                written = WrittenStates(self.schema, codecs, range(len(codecs)))
            else:
                schema = schema_of_changes(metadata)
                try:
                    written = self._earlier(schema)
                except UNDECODABLE as error:
                    raise CorruptionError(
                        f"state of schema generation {schema.generation} cannot be converted to the current "
                        f"schema: {error}"
                    ) from error
            self._written[metadata] = written
        return written

    def _earlier(self, written: OperatorStateSchema) -> WrittenStates:
        # The checkpoint has the newest schema, so a later one is not of this location.
        if written.generation > self.schema.generation:
            raise CorruptionError(
                f"found state of schema generation {written.generation}, but the checkpoint has the earlier "
                f"generation {self.schema.generation}"
            )
        if stored_types(written.key_schema) != stored_types(self.schema.key_schema):
            raise CorruptionError(
                f"found state changes with the key ({schema_text(written.key_schema)}) in state "
                f"with the key ({schema_text(self.schema.key_schema)})"
            )
        key_codec = KeyCodec(written.key_schema)
        # By identity: a name that was deleted and declared again is a different variable.
        ids = {self.schema.states[state_id].identity: state_id for state_id in self.live}
        codecs: list[StateCodec | None] = []
        present_ids = []
        for state in written.states:
            present_id = -1 if state.dropped else ids.get(state.identity, -1)
            present_ids.append(present_id)
            codecs.append(
                None
                if present_id < 0
                else WrittenStateCodec(
                    key_codec,
                    state,
                    written.generation,
                    self.states[present_id],
                    self._struct_factory,
                )
            )
        return WrittenStates(written, codecs, present_ids)

    def reader(self) -> ChangesReader:
        """Return a reader that decodes each change set with the schema that the set carries."""
        return ChangesReader(self)

    def present_reader(self) -> ChangesReader:
        """Return a reader that uses this codec's schema for changes before any metadata."""
        reader = self.reader()
        reader.schema_is(self._metadata)
        return reader

    def encode(self, overlays: Mapping[int, Overlay]) -> ChangeBatch:
        """Encode the overlays of several key groups as changes."""
        parts: list[ChangeBatch] = []
        for state_id, codec in enumerate(self.states):
            operations = Operations([], [], [], [])
            bounds: list[tuple[int, int, int]] = []
            for key_group in sorted(overlays):
                deltas = overlays[key_group][state_id]
                if deltas:
                    start = len(operations.keys)
                    operations.extend(codec.operations(deltas))
                    end = len(operations.keys)
                    if end > start:  # deltas may change nothing
                        bounds.append((key_group, start, end))
            if not bounds:
                continue
            # One conversion for all key groups, then a slice for each: far fewer Arrow calls.
            parts.append(_encoded(codec.descriptor.name, state_id, codec.batch(operations), bounds))
        return joined(parts)

    def encode_operations(
        self, state_id: int, key_groups: npt.NDArray[np.int32], operations: pa.RecordBatch
    ) -> ChangeBatch:
        """Encode operations on one variable as changes."""
        bounds = [0, *(np.flatnonzero(np.diff(key_groups)) + 1).tolist(), len(key_groups)]
        parts = [
            (int(key_groups[start]), start, end) for start, end in pairwise(bounds) if end > start
        ]
        return _encoded(self.states[state_id].descriptor.name, state_id, operations, parts)

    def decode(self, key_groups: Iterable[int], values: Iterable[bytes]) -> dict[int, Overlay]:
        """Decode a change set into the overlays it contains."""
        return self.present_reader().decode(key_groups, values)


def _encoded(
    name: str,
    state_id: int,
    operations: pa.RecordBatch,
    bounds: Sequence[tuple[int, int, int]],
) -> ChangeBatch:
    """Encode the changes of one variable."""
    # A slice of the batch for each key group, without its schema: the metadata change has it.
    header = _HEADER.pack(DELTAS, state_id)
    what = f"state {name!r}, changes of one key group"
    pieces: list[bytes | pa.Buffer] = []
    ends = [0]
    size = 0
    for _, start, end in bounds:
        message = operations.slice(start, end - start).serialize()
        check_size(len(header) + message.size, what)
        pieces += (header, message)
        size += len(header) + message.size
        ends.append(size)
    wide = size > INT32_MAX
    offsets = np.array(ends, np.int64 if wide else np.int32)
    # One copy of all bytes; an array made of single values would be three.
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(pieces))]
    kind = pa.large_binary() if wide else pa.binary()
    values = pa.Array.from_buffers(kind, len(bounds), buffers)
    return ChangeBatch(np.array([key_group for key_group, _, _ in bounds], np.int32), values)


def joined(parts: Sequence[ChangeBatch]) -> ChangeBatch:
    """Concatenate several sets of changes."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return ChangeBatch(np.empty(0, np.int32), pa.array([], pa.binary()))
    key_groups = np.concatenate([batch.key_groups for batch in parts])
    return ChangeBatch(key_groups, joined_values([batch.values for batch in parts]))


@dataclass(frozen=True, slots=True)
class WrittenStates:
    """
    The codecs that decode changes written with one schema.

    Args:
        schema: That schema.
        codecs: By its state ids; None for a deleted variable.
        present_ids: The present state ids, by its own; -1 for a deleted variable.
    """

    schema: OperatorStateSchema
    codecs: Sequence[StateCodec | None]
    present_ids: Sequence[int]


class ChangesReader:
    """Reads change sets in log order, and decodes each with its own schema."""

    def __init__(self, codec: OperatorCodec) -> None:
        self._codec = codec
        self._written: WrittenStates | None = None

    def schema_is(self, metadata: bytes) -> None:
        """Decode the changes that follow with the schema in *metadata*; see `written_by`."""
        self._written = self._codec.written_by(metadata)

    @property
    def is_present(self) -> bool:
        """Whether the changes read last have the codec's own schema."""
        return self._written is self._codec.written_by(self._codec.metadata_change())

    def decode(self, key_groups: Iterable[int], values: Iterable[bytes]) -> dict[int, Overlay]:
        """Decode a change set, or a part of one, into overlays."""
        return self.overlays(self.batches(key_groups, values))

    def batches(
        self, key_groups: Iterable[int], values: Iterable[bytes]
    ) -> dict[int, list[tuple[int, pa.RecordBatch]]]:
        """Return (key group, operations) pairs by the writer's state id; raises like `decode`."""
        batches: dict[int, list[tuple[int, pa.RecordBatch]]] = {}
        for key_group, value in zip(key_groups, values, strict=True):
            # The schema of what follows.
            if key_group == METADATA_KEY_GROUP:
                self.schema_is(value)
                continue
            if self._written is None:
                raise CorruptionError(
                    f"a state change in key group {key_group} precedes the state schema"
                )
            state_id, batch = self._decode_one(self._written, key_group, value)
            if batch is not None:
                batches.setdefault(state_id, []).append((key_group, batch))
        return batches

    def in_present_schema(
        self, changes: Mapping[int, list[tuple[int, pa.RecordBatch]]]
    ) -> Mapping[int, list[tuple[int, pa.RecordBatch]]]:
        """Convert changes from `batches` to the codec's own schema and its state ids."""
        if self.is_present:
            return changes
        # Through the values, which are converted one by one.
        converted: dict[int, list[tuple[int, pa.RecordBatch]]] = {}
        for state_id, parts in changes.items():
            for change in parts:  # a key group may have several
                for key_group, overlay in self.overlays({state_id: [change]}).items():
                    for present_id in self._codec.live:
                        if overlay[present_id]:
                            state = self._codec.states[present_id]
                            operations = state.batch(state.operations(overlay[present_id]))
                            converted.setdefault(present_id, []).append((key_group, operations))
        return converted

    def overlays(
        self, changes: Mapping[int, Sequence[tuple[int, pa.RecordBatch]]]
    ) -> dict[int, Overlay]:
        """Convert changes to overlays; *changes* has one batch per key group and variable."""
        overlays: dict[int, Overlay] = {}
        for state_id, parts in changes.items():
            self._decode_state(state_id, parts, overlays)
        return overlays

    def _decode_state(
        self,
        state_id: int,
        parts: Sequence[tuple[int, pa.RecordBatch]],
        overlays: dict[int, Overlay],
    ) -> None:
        written = self._written
        codec = written.codecs[state_id] if written is not None else None
        if written is None or codec is None:
            return
        try:
            deltas = _deltas(codec, [batch for _, batch in parts])
        except UNDECODABLE as error:
            raise CorruptionError(
                f"changes to state {codec.descriptor.name!r} in key groups "
                f"{parts[0][0]} to {parts[-1][0]} cannot be read: {error}"
            ) from error
        for (key_group, _), delta in zip(parts, deltas, strict=True):
            overlay = overlays.get(key_group)
            if overlay is None:
                overlay = overlays[key_group] = [{} for _ in self._codec.states]
            overlay[written.present_ids[state_id]] = delta

    @staticmethod
    def _decode_one(
        written: WrittenStates, key_group: int, value: bytes
    ) -> tuple[int, pa.RecordBatch | None]:
        """Decode one change to a state id and operations; return None for a deleted variable."""
        if len(value) < _HEADER.size:
            raise CorruptionError(
                f"a change in key group {key_group} is only {len(value)} bytes long"
            )
        # Values of the log are checked before Arrow reads them: they may be of a newer version.
        kind, state_id = _HEADER.unpack_from(value)
        if kind != DELTAS or state_id >= len(written.codecs):
            raise IncompatibleFormatError(
                f"this version of statelog does not know the change of kind {kind} for state "
                f"{state_id} in key group {key_group}; upgrade statelog"
            )
        codec = written.codecs[state_id]
        if codec is None:
            return state_id, None
        try:
            message = pa.py_buffer(value)[_HEADER.size :]
            return state_id, read_batch(message, codec.schema)
        except (pa.ArrowException, OSError) as error:
            raise CorruptionError(
                f"a change of state {codec.descriptor.name!r} in key group {key_group} cannot "
                f"be read: {error}"
            ) from error


def _deltas(codec: StateCodec, parts: Sequence[pa.RecordBatch]) -> list[Deltas]:
    """Return the deltas in each part."""
    try:
        # One conversion for all key groups: far fewer Arrow calls.
        whole = one_batch(pa.Table.from_batches(parts))
    except CapacityError:
        return [delta for batch in parts for delta in codec.deltas(batch, [batch.num_rows])]
    return codec.deltas(whole, [batch.num_rows for batch in parts])


def schema_of_changes(value: bytes) -> OperatorStateSchema:
    """Decode the schema in a metadata change; raise `CorruptionError` if it is damaged."""
    return OperatorStateSchema.from_bytes(value)
