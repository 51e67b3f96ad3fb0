"""
The deltas of one variable as Arrow columns, and back.

The columns are the key's (`key.<name>`), `op`, then `value.<name>`, for maps `user_key.<name>`
before it, and `expires_at_ms` where the variable has a time to live.  One row is one operation;
`op` takes Flink's codes (StateChangeOperation).  Deviation from Flink: many operations to a
change, in columns, instead of one each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from statelog.errors import UsageError, check
from statelog.state.encoding.upgrade import TtlMigration, migrated
from statelog.state.encoding.values import (
    KeyCodec,
    MapKeyCodec,
    StructCodec,
    StructFactory,
    Values,
    tuple_factory,
)
from statelog.state.heap.tables import Key, ListDelta, MapDelta
from statelog.state.schema.descriptors import StateDescriptor, StateKind

# Flink's codes, StateChangeOperation.
OP_CLEAR: Final = 0
OP_SET: Final = 1
OP_ADD_ELEMENT: Final = 5
OP_PUT: Final = 6
OP_REMOVE: Final = 7

_TIMES: Final = pa.schema([("times", pa.list_(pa.int64()))])
Rows = tuple[list[Key], list[int], list[Values | None], list[int], list[Values | None]]


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
        if descriptor.kind is not StateKind.TIMER and not len(descriptor.value_schema):
            raise UsageError(f"{what} has no fields; a value has at least one")
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
            fields += [pa.field(f"user_key.{f.name}", f.type) for f in self.user_key.stored]
        fields += [pa.field(f"value.{f.name}", f.type) for f in self.value.stored]
        if self.expires:
            fields.append(pa.field("expires_at_ms", pa.int64()))
        return pa.schema(fields)

    def values(self, columns: Sequence[pa.Array[Any]]) -> list[Values]:
        """Return the values in *columns*, which are those of the variable's value schema."""
        return self.value.decode(columns)

    def user_keys(self, columns: Sequence[pa.Array[Any]]) -> list[Values]:
        """Return the map keys in *columns*."""
        check(self.user_key is not None, "only maps have map keys")
        return self.user_key.decode(columns)  # type: ignore[union-attr]

    def cells(self, cells: Iterable[Any]) -> Iterable[Any]:
        """Return what a table holds of each key, read from a snapshot; empty for nothing."""
        return cells

    def rows(self, deltas: Mapping[Key, Any]) -> Rows:
        """Return the operations of *deltas* as parallel lists: keys, ops, values, expiry, map keys."""
        keys: list[Key] = []
        ops: list[int] = []
        values: list[Any] = []
        user_keys: list[Values | None] = []
        match self.descriptor.kind:
            case StateKind.VALUE | StateKind.TIMER:
                keys = list(deltas)
                values = list(deltas.values())
                if self.descriptor.kind is StateKind.TIMER:
                    values = [(list(times),) if times else None for times in values]
                ops = [OP_CLEAR if value is None else OP_SET for value in values]
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

    def batch(self, rows: Rows) -> pa.RecordBatch:
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
            user_keys = self.user_keys(batch.columns[position : position + width])
            position += width
        width = len(self.value.schema)
        values: list[Any] = self.values(batch.columns[position : position + width])
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


class WrittenStateCodec(StateCodec):
    """
    Decodes what an earlier schema wrote of a variable into what the variable is now.

    Args:
        key_codec: The operator's key.
        written: The variable as the earlier schema had it.
        generation: Generation of that schema.
        present: The codec of the variable as it is now.
        struct_factory: Builds nested structs, see `StructCodec`.
    """

    def __init__(
        self,
        key_codec: KeyCodec,
        written: StateDescriptor,
        generation: int,
        present: StateCodec,
        struct_factory: StructFactory,
    ) -> None:
        super().__init__(key_codec, written, struct_factory)
        self._present = present
        self._ttl = TtlMigration(present.descriptor, generation)

    def values(self, columns: Sequence[pa.Array[Any]]) -> list[Values]:
        """Return the values in *columns* of the earlier schema, as they are now."""
        present = self._present.value
        return present.decode(migrated(columns, self.value.stored, present.stored))

    def user_keys(self, columns: Sequence[pa.Array[Any]]) -> list[Values]:
        """Return the map keys in *columns*; their fields may have other names now."""
        return self._present.user_keys(columns)

    def cells(self, cells: Iterable[Any]) -> Iterable[Any]:
        """Return cells of the earlier schema as they are now."""
        return [None if cell is None else self._ttl.cell(cell) for cell in cells]

    def deltas(self, batch: pa.RecordBatch, counts: Sequence[int]) -> list[dict[Key, Any]]:
        """Return the deltas of the earlier schema as they are now."""
        return [self._ttl.deltas(deltas) for deltas in super().deltas(batch, counts)]
