"""
Convert a variable to and from Arrow: its deltas as operations, its entries as structs.

The columns of operations are the key's (`key.<name>`), `op`, then `value.<name>`, for maps
`user_key.<name>` before it, and `expires_at_ms` where the variable has a time to live.  One row is
one operation; `op` takes Flink's codes (StateChangeOperation).  Which operations a delta consists
of is said by the kind.  Deviation from Flink: many operations to a change, in columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from statelog.errors import InvariantError, UsageError
from statelog.state.encoding.converters import StructFactory
from statelog.state.encoding.values import KeyCodec, MapKeyCodec, StructCodec, tuple_factory
from statelog.state.kinds import Deltas, Entry, Operations, Values
from statelog.state.kinds.kind import EXPIRES_FIELD
from statelog.state.schema import StateDescriptor, TtlChange, field_since


class StateCodec:
    """Encodes and decodes the deltas and entries of one variable."""

    def __init__(
        self,
        key_codec: KeyCodec,
        descriptor: StateDescriptor,
        struct_factory: StructFactory = tuple_factory,
    ) -> None:
        what = f"state {descriptor.name!r}"
        self.descriptor = descriptor
        self.kind = descriptor.kind.rules
        self.key = key_codec
        value_schema = self.kind.value_schema(descriptor.value_schema)
        if not len(value_schema):
            raise UsageError(f"{what} does not have fields; declare at least one")
        self.value = StructCodec(value_schema, struct_factory=struct_factory, what=what)
        self.user_key = (
            None
            if descriptor.user_key_schema is None
            else MapKeyCodec(
                descriptor.user_key_schema,
                struct_factory=struct_factory,
                what=f"a map key of {what}",
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
            fields.append(pa.field(EXPIRES_FIELD, pa.int64()))
        return pa.schema(fields)

    def entry_fields(self) -> list[pa.Field]:
        """Return the fields of an entry: the fields of the value, then the expiry time."""
        fields = list(self.value.stored)
        return [*fields, pa.field(EXPIRES_FIELD, pa.int64())] if self.expires else fields

    def row_fields(self) -> list[pa.Field]:
        """Return the fields of an entry as flat columns: map key, value, then the expiry time."""
        operation = list(self.schema)
        return operation[len(self.key.schema) + 1 :]

    # --- deltas -----------------------------------------------------------------------------------

    def operations(self, deltas: Deltas) -> Operations:
        """Convert *deltas* to operations."""
        return self.kind.operations(deltas)

    def batch(self, operations: Operations) -> pa.RecordBatch:
        """Convert operations to a record batch; raises one of the errors in `UNENCODABLE`."""
        keys, ops, entries, user_keys = operations
        columns = self.key.encode(keys)
        columns.append(pa.array(ops, pa.int8()))
        if self.user_key is not None:
            columns += self.user_key.encode(_filled(user_keys, len(self.user_key.schema)))
        columns += self._entry_columns(entries)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def deltas(self, batch: pa.RecordBatch, counts: Sequence[int]) -> list[Deltas]:
        """Convert *batch* to deltas; the inverse of `operations` and `batch`."""
        # The columns are in the order of `schema`: key, op, map key, value, expiry.
        position = len(self.key.schema)
        keys = self.key.decode(batch.columns[:position])
        ops = batch.column(position).to_pylist()
        position += 1
        user_keys: list[Values | None] = []
        if self.user_key is not None:
            width = len(self.user_key.schema)
            user_keys += self._user_keys(batch.columns[position : position + width])
            position += width
        entries = self._entries(batch.columns[position:])
        deltas = []
        end = 0
        # The batch has the rows of several key groups, one after the other.
        for count in counts:
            start = end
            end = end + count
            rows = slice(start, end)
            chosen = Operations(keys[rows], ops[rows], entries[rows], user_keys[rows])
            deltas.append(self.kind.deltas(chosen))
        return deltas

    # --- cells ------------------------------------------------------------------------------------

    def encode_cells(self, cells: Sequence[object]) -> pa.Array:
        """Encode cells as the variable's column; None stands for a key without state."""
        return self.kind.encode_cells(self, cells)

    def decode_cells(self, column: pa.Array) -> Iterable[object]:
        """Decode the cells in the variable's column; a key without state is empty or None."""
        return self.kind.decode_cells(self, column)

    # --- entries, for the kinds -------------------------------------------------------------------

    def encode_entries(self, entries: Sequence[Entry | None]) -> pa.Array:
        """Encode entries as structs with the fields in `entry_fields`."""
        columns = self._entry_columns(entries)
        mask = None
        if _has_none(entries):
            mask = pa.array([entry is None for entry in entries], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=self.entry_fields(), mask=mask)

    def decode_entries(self, column: pa.Array) -> list[Entry | None]:
        """Decode the entries in a column of structs; None for a null."""
        entries = self._entries(column.flatten())
        if column.null_count:
            valid = column.is_valid().to_pylist()
            return [entry if ok else None for entry, ok in zip(entries, valid, strict=True)]
        return entries

    def encode_user_keys(self, user_keys: Sequence[Values]) -> pa.Array:
        """Encode map keys as structs."""
        codec = self._map_keys()
        return pa.StructArray.from_arrays(codec.encode(user_keys), fields=list(codec.stored))

    def decode_user_keys(self, column: pa.Array) -> list[Values]:
        """Decode the map keys in a column of structs."""
        return self._user_keys(column.flatten())

    def _entry_columns(self, entries: Sequence[Entry | None]) -> list[pa.Array]:
        if not self.expires:
            return self.value.encode(_filled(entries, len(self.value.schema)))
        # With a time to live an entry is a pair, and its expiry is a column of its own.
        values = [None if entry is None else entry[1] for entry in entries]
        expires = [0 if entry is None else entry[0] for entry in entries]
        columns = self.value.encode(_filled(values, len(self.value.schema)))
        return [*columns, pa.array(expires, pa.int64())]

    def _entries(self, columns: Sequence[pa.Array]) -> list[Entry | None]:
        width = len(self.value.schema)
        values = self._values(columns[:width])
        if not self.expires:
            return [*values]
        return list(zip(columns[width].to_pylist(), values, strict=True))

    def _values(self, columns: Sequence[pa.Array]) -> list[Values]:
        """Decode the values in *columns*, which match the fields of the value schema."""
        return self.value.decode(columns)

    def _user_keys(self, columns: Sequence[pa.Array]) -> list[Values]:
        return self._map_keys().decode(columns)

    def _map_keys(self) -> MapKeyCodec:
        if self.user_key is None:
            raise InvariantError(f"state {self.descriptor.name!r} does not have map keys")
        return self.user_key


def _has_none(values: Sequence[object]) -> bool:
    """Return whether one of *values* is None; faster than to compare each with it."""
    return type(None) in set(map(type, values))


def _filled(values: Sequence[Values | None], width: int) -> Sequence[Values]:
    """Replace each None in *values* with a row of nulls."""
    if not _has_none(values):
        return values  # type: ignore[return-value]
    nulls = (None,) * width
    return [nulls if value is None else value for value in values]


class WrittenStateCodec(StateCodec):
    """Decodes a variable that was written with an earlier schema."""

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

    def _values(self, columns: Sequence[pa.Array]) -> list[Values]:
        present = self._present.value
        return present.decode(migrated(columns, self.value.stored, present.stored))

    def _user_keys(self, columns: Sequence[pa.Array]) -> list[Values]:
        # Their fields may have other names now, but no other types.
        return self._present._user_keys(columns)

    def decode_cells(self, column: pa.Array) -> Iterable[object]:
        """Decode cells that have the earlier schema, and convert them to the current one."""
        cells = super().decode_cells(column)
        if not self._ttl.changes:
            return cells
        migrate = self.kind.migrate_cell
        entry = self._ttl.entry
        return [None if cell is None else migrate(cell, entry) for cell in cells]

    def deltas(self, batch: pa.RecordBatch, counts: Sequence[int]) -> list[Deltas]:
        """Decode deltas that have the earlier schema, and convert them to the current one."""
        groups = super().deltas(batch, counts)
        if not self._ttl.changes:
            return groups
        return [self.kind.migrate_deltas(deltas, self._ttl.entry) for deltas in groups]


# --- columns and entries of an earlier schema, as the present one has them
#
# Removed fields are left out, and fields added later are read as None.  A time to live that was
# added or removed since then is applied to the entries.


def migrated(columns: Sequence[pa.Array], written: pa.Schema, present: pa.Schema) -> list[pa.Array]:
    """Convert *columns* from the schema *written* to the schema *present*."""
    rows = len(columns[0]) if columns else 0
    return _migrated(columns, list(written), list(present), rows)


def _migrated(
    columns: Sequence[pa.Array],
    written: Sequence[pa.Field],
    present: Sequence[pa.Field],
    rows: int,
) -> list[pa.Array]:
    # A field that was removed and added again has the same name, and another generation.
    by_identity = {
        (field.name, field_since(field)): (field, column)
        for field, column in zip(written, columns, strict=True)
    }
    result = []
    for field in present:
        written_field = by_identity.get((field.name, field_since(field)))
        if written_field is None:
            result.append(pa.nulls(rows, field.type))
        else:
            result.append(_cast(written_field[1], written_field[0].type, field.type))
    return result


def _cast(column: pa.Array, old: pa.DataType, new: pa.DataType) -> pa.Array:
    if old.equals(new, check_metadata=True):
        return column
    if pa.types.is_struct(new):
        children = _migrated(column.flatten(), list(old), list(new), len(column))
        return pa.StructArray.from_arrays(children, fields=list(new), mask=column.is_null())
    if pa.types.is_list(new):
        whole = _compact(column)
        values = _cast(whole.values, old.value_type, new.value_type)
        return pa.ListArray.from_arrays(whole.offsets, values, type=new, mask=whole.is_null())
    if pa.types.is_map(new):
        whole = _compact(column)
        items = _cast(whole.items, old.item_type, new.item_type)
        return pa.MapArray.from_arrays(
            whole.offsets, whole.keys, items, type=new, mask=whole.is_null()
        )
    return column.cast(new)


def _compact(column: pa.Array) -> pa.Array:
    """Copy *column* if it has an offset, because Arrow does not support masks with offsets."""
    return column.take(pa.array(range(len(column)), pa.int64())) if column.offset else column


class TtlMigration:
    """Converts entries of an earlier schema to the current one: adds or applies their expiry."""

    def __init__(self, present: StateDescriptor, written: int) -> None:
        self.changes: tuple[TtlChange, ...] = tuple(
            change for change in present.ttl_changes if change.generation > written
        )

    def entry(self, entry: Entry) -> Entry | None:
        """Convert an entry to the current schema; return None if it has expired."""
        for change in self.changes:
            if change.added:
                entry = (change.at_ms, entry)
            else:
                expires_ms, entry = entry
                if expires_ms <= change.at_ms:
                    return None
        return entry
