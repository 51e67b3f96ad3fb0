"""
Changes of state as bytes: what a task appends to the log, and what a replay reads.

A metadata change (key group -1) carries the operator's schema as JSON; it stands in every change
set, so that each file explains itself.  A data change holds what one micro-batch did to one
variable in one key group, as an Arrow record batch without its schema::

    change := kind:1  state_id:2 (big-endian)  Arrow IPC record batch message
    kind   := 01 deltas

The columns are the key's (`key.<name>`), `op`, then `value.<name>`, for maps `user_key.<name>`
before it, and `expires_at_ms` where the variable has a time to live.  One row is one operation;
`op` takes Flink's codes (StateChangeOperation).  Deviation from Flink: many operations to a
change, in columns, instead of one each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.model import METADATA_KEY_GROUP, ChangeBatch
from statelog.state.codec import (
    KeyCodec,
    MapKeyCodec,
    StructCodec,
    StructFactory,
    Values,
    tuple_factory,
)
from statelog.state.schema import OperatorStateSchema, StateDescriptor, StateKind
from statelog.state.tables import Key, ListDelta, MapDelta, Overlay

DELTAS: Final = 1
_HEADER: Final = struct.Struct(">BH")

# Flink's codes, StateChangeOperation.
OP_CLEAR: Final = 0
OP_SET: Final = 1
OP_ADD_ELEMENT: Final = 5
OP_PUT: Final = 6
OP_REMOVE: Final = 7

_TIMES: Final = pa.schema([("times", pa.list_(pa.int64()))])
_Rows = tuple[list[Key], list[int], list[Values | None], list[int], list[Values | None]]


class StateCodec:
    """
    Encodes and decodes the deltas of one variable.

    Args:
        key_codec: The operator's key.
        descriptor: The variable.
        struct_factory: Builds nested structs, see `StructCodec`.
    """

    def __init__(
        self,
        key_codec: KeyCodec,
        descriptor: StateDescriptor,
        struct_factory: StructFactory = tuple_factory,
    ) -> None:
        what = f"state {descriptor.name!r}"
        self.descriptor = descriptor
        self.key = key_codec
        timers = descriptor.kind is StateKind.TIMER
        self.value = StructCodec(
            _TIMES if timers else descriptor.value_schema, struct_factory=struct_factory, what=what
        )
        self.user_key = (
            None
            if descriptor.user_key_schema is None
            else MapKeyCodec(
                descriptor.user_key_schema, struct_factory=struct_factory, what=f"{what}, map key"
            )
        )
        self.expires = descriptor.ttl_ms is not None
        self.schema = self._arrow_schema()

    def _arrow_schema(self) -> pa.Schema:
        fields = [pa.field(f"key.{f.name}", f.type) for f in self.key.schema]
        fields.append(pa.field("op", pa.int8()))
        if self.user_key is not None:
            fields += [pa.field(f"user_key.{f.name}", f.type) for f in self.user_key.schema]
        fields += [pa.field(f"value.{f.name}", f.type) for f in self.value.schema]
        if self.expires:
            fields.append(pa.field("expires_at_ms", pa.int64()))
        return pa.schema(fields)

    def rows(self, deltas: Mapping[Key, Any]) -> _Rows:
        """Return the operations of *deltas* as parallel lists: keys, ops, values, expiry, map keys."""
        keys: list[Key] = []
        ops: list[int] = []
        values: list[Any] = []
        user_keys: list[Values | None] = []
        match self.descriptor.kind:
            case StateKind.VALUE | StateKind.TIMER:
                keys = list(deltas)
                values = [value or None for value in deltas.values()]
                ops = [OP_CLEAR if value is None else OP_SET for value in values]
                if self.descriptor.kind is StateKind.TIMER:
                    values = [None if value is None else (list(value),) for value in values]
            case StateKind.LIST:
                for key, delta in deltas.items():
                    if delta.replaced:
                        keys.append(key)
                        ops.append(OP_CLEAR)
                        values.append(None)
                    keys += [key] * len(delta.tail)
                    ops += [OP_ADD_ELEMENT] * len(delta.tail)
                    values += delta.tail
            case StateKind.MAP:
                for key, delta in deltas.items():
                    if delta.cleared:
                        keys.append(key)
                        ops.append(OP_CLEAR)
                        values.append(None)
                        user_keys.append(None)
                    for user_key, value in delta.entries.items():
                        keys.append(key)
                        ops.append(OP_REMOVE if value is None else OP_PUT)
                        values.append(value)
                        user_keys.append(user_key)
        expires: list[int] = []
        if self.expires:
            expires = [0 if value is None else value[0] for value in values]
            values = [None if value is None else value[1] for value in values]
        return keys, ops, values, expires, user_keys

    def batch(self, rows: _Rows) -> pa.RecordBatch:
        """Return the operations as a record batch; raises Arrow's errors if a value does not fit."""
        keys, ops, values, expires, user_keys = rows
        columns = self.key.encode(keys)
        columns.append(pa.array(ops, pa.int8()))
        if self.user_key is not None:
            columns += self.user_key.encode(_filled(user_keys, len(self.user_key.schema)))
        columns += self.value.encode(_filled(values, len(self.value.schema)))
        if self.expires:
            columns.append(pa.array(expires, pa.int64()))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def deltas(self, batch: pa.RecordBatch, counts: Sequence[int]) -> list[dict[Key, Any]]:
        """
        Return the deltas that *batch* holds; the inverse of `rows` and `batch`.

        Args:
            batch: The operations of several key groups, one after another.
            counts: How many operations each key group has.
        """
        position = len(self.key.schema)
        keys = self.key.decode(batch.columns[:position])
        ops = batch.column(position).to_pylist()
        position += 1
        user_keys: list[Values] = []
        if self.user_key is not None:
            width = len(self.user_key.schema)
            user_keys = self.user_key.decode(batch.columns[position : position + width])
            position += width
        width = len(self.value.schema)
        values: list[Any] = self.value.decode(batch.columns[position : position + width])
        if not width:
            values = [()] * len(keys)
        if self.expires:
            values = list(zip(batch.column(position + width).to_pylist(), values, strict=True))
        deltas = []
        end = 0
        for count in counts:
            start, end = end, end + count
            part = slice(start, end)
            deltas.append(self._deltas(keys[part], ops[part], user_keys[part], values[part]))
        return deltas

    def _deltas(
        self, keys: list[Key], ops: list[int], user_keys: list[Values], values: list[Any]
    ) -> dict[Key, Any]:
        match self.descriptor.kind:
            case StateKind.VALUE:
                if OP_CLEAR not in ops:
                    return dict(zip(keys, values, strict=True))
                return {
                    key: None if op == OP_CLEAR else value
                    for key, op, value in zip(keys, ops, values, strict=True)
                }
            case StateKind.TIMER:
                return {
                    key: () if op == OP_CLEAR else tuple(value[0])
                    for key, op, value in zip(keys, ops, values, strict=True)
                }
            case StateKind.LIST:
                return _list_deltas(keys, ops, values)
            case StateKind.MAP:
                return _map_deltas(keys, ops, user_keys, values)


def _filled(values: Sequence[Values | None], width: int) -> Sequence[Values]:
    """Return *values* with a row of nulls for each None."""
    if None not in values:
        return values  # type: ignore[return-value]
    nothing = (None,) * width
    return [nothing if value is None else value for value in values]


def _list_deltas(keys: list[Key], ops: list[int], values: list[Any]) -> dict[Key, Any]:
    deltas: dict[Key, Any] = {}
    for key, op, value in zip(keys, ops, values, strict=True):
        if op == OP_CLEAR:
            deltas[key] = ListDelta(replaced=True)
        else:
            delta = deltas.get(key)
            if delta is None:
                delta = deltas[key] = ListDelta()
            delta.tail.append(value)
    return deltas


def _map_deltas(
    keys: list[Key], ops: list[int], user_keys: list[Values], values: list[Any]
) -> dict[Key, Any]:
    deltas: dict[Key, Any] = {}
    for key, op, user_key, value in zip(keys, ops, user_keys, values, strict=True):
        if op == OP_CLEAR:
            deltas[key] = MapDelta(cleared=True)
            continue
        delta = deltas.get(key)
        if delta is None:
            delta = deltas[key] = MapDelta()
        delta.entries[user_key] = None if op == OP_REMOVE else value
    return deltas


class OperatorCodec:
    """
    Encodes and decodes the changes of all variables of one operator.

    Args:
        schema: The operator's schema.
        struct_factory: Builds nested structs, see `StructCodec`.
    """

    def __init__(
        self, schema: OperatorStateSchema, struct_factory: StructFactory = tuple_factory
    ) -> None:
        self.schema = schema
        self.key = KeyCodec(schema.key_schema)
        self.states = [
            StateCodec(self.key, descriptor, struct_factory) for descriptor in schema.states
        ]
        self.kinds = tuple(state.kind for state in schema.states)

    def metadata_change(self) -> bytes:
        """Return the metadata change that explains the data changes."""
        return msgspec.json.encode(self.schema.to_json())

    def encode(self, overlays: Mapping[int, Overlay]) -> ChangeBatch:
        """
        Return the overlays of several key groups as changes.

        Args:
            overlays: By key group.

        Raises:
            pyarrow.ArrowException: A value does not fit its type.
        """
        groups: list[int] = []
        changes: list[bytes] = []
        for state_id, codec in enumerate(self.states):
            header = _HEADER.pack(DELTAS, state_id)
            rows: _Rows = ([], [], [], [], [])
            bounds: list[tuple[int, int, int]] = []
            for key_group in sorted(overlays):
                deltas = overlays[key_group][state_id]
                if deltas:
                    start = len(rows[0])
                    for whole, part in zip(rows, codec.rows(deltas), strict=True):
                        whole += part  # type: ignore[operator]
                    if len(rows[0]) > start:  # a delta may have come to nothing
                        bounds.append((key_group, start, len(rows[0])))
            if not bounds:
                continue
            # One conversion for all key groups, then a slice for each: far fewer Arrow calls.
            batch = codec.batch(rows)
            for key_group, start, end in bounds:
                message = batch.slice(start, end - start).serialize()
                groups.append(key_group)
                changes.append(header + message.to_pybytes())
        return ChangeBatch(np.asarray(groups, np.int32), pa.array(changes, pa.binary()))

    def decode(self, key_groups: Iterable[int], values: Iterable[bytes]) -> dict[int, Overlay]:
        """
        Return the overlays that changes hold; metadata changes are passed over.

        Raises:
            IncompatibleFormatError: A newer statelog wrote a change.
            CorruptionError: A change cannot be read.
        """
        return self.overlays(self.batches(key_groups, values))

    def batches(
        self, key_groups: Iterable[int], values: Iterable[bytes]
    ) -> dict[int, list[tuple[int, pa.RecordBatch]]]:
        """Return changes as (key group, operations) by state id; raises what `decode` raises."""
        found: dict[int, list[tuple[int, pa.RecordBatch]]] = {}
        for key_group, value in zip(key_groups, values, strict=True):
            if key_group != METADATA_KEY_GROUP:
                state_id, batch = self._decode_one(key_group, value)
                found.setdefault(state_id, []).append((key_group, batch))
        return found

    def overlays(
        self, changes: Mapping[int, Sequence[tuple[int, pa.RecordBatch]]]
    ) -> dict[int, Overlay]:
        """Return what `batches` returned as overlays; no key group has two for one variable."""
        overlays: dict[int, Overlay] = {}
        for state_id, parts in changes.items():
            # One conversion for all key groups: far fewer Arrow calls.
            whole = pa.Table.from_batches([batch for _, batch in parts]).combine_chunks()
            batch = next(iter(whole.to_batches()), parts[0][1])
            deltas = self.states[state_id].deltas(batch, [part.num_rows for _, part in parts])
            for (key_group, _), delta in zip(parts, deltas, strict=True):
                overlay = overlays.get(key_group)
                if overlay is None:
                    overlay = overlays[key_group] = [{} for _ in self.states]
                overlay[state_id] = delta
        return overlays

    def _decode_one(self, key_group: int, value: bytes) -> tuple[int, pa.RecordBatch]:
        kind, state_id = _HEADER.unpack_from(value)
        if kind != DELTAS or state_id >= len(self.states):
            raise IncompatibleFormatError(
                f"a change of kind {kind} for state {state_id} in key group {key_group} is "
                "unknown to this statelog; upgrade it"
            )
        codec = self.states[state_id]
        try:
            message = pa.py_buffer(value)[_HEADER.size :]
            return state_id, pa.ipc.read_record_batch(message, codec.schema)
        except (pa.ArrowException, OSError) as error:
            raise CorruptionError(
                f"a change of state {codec.descriptor.name!r} in key group {key_group} cannot "
                f"be read: {error}"
            ) from error


def schema_of_changes(value: bytes) -> OperatorStateSchema:
    """Return the schema in a metadata change; raises `CorruptionError` if it is none."""
    try:
        return OperatorStateSchema.from_json(msgspec.json.decode(value))
    except msgspec.DecodeError as error:
        raise CorruptionError("a metadata change cannot be read") from error
