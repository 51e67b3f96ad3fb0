"""
Columns and entries of an earlier schema, converted to the present one.

A change set and a snapshot have the layout of the schema they carry.  Their columns are cast to
the present types before they become Python values: removed fields are left out, fields added later
read None.  A time to live that was added or removed since is applied to the entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from statelog.state.kinds import Entry
from statelog.state.schema.descriptors import StateDescriptor, TtlChange, field_since


def migrated(columns: Sequence[pa.Array], written: pa.Schema, present: pa.Schema) -> list[pa.Array]:
    """
    Return *columns* of the schema *written* as columns of the schema *present*.

    Args:
        columns: One for each field of *written*.
        written: The schema they were written with, with the generations of its fields.
        present: A schema that *written* was evolved to, in one step or many.
    """
    rows = len(columns[0]) if columns else 0
    return _migrated(columns, list(written), list(present), rows)


def _migrated(
    columns: Sequence[pa.Array],
    written: Sequence[pa.Field],
    present: Sequence[pa.Field],
    rows: int,
) -> list[pa.Array]:
    by_identity = {
        (field.name, field_since(field)): (field, column)
        for field, column in zip(written, columns, strict=True)
    }
    result = []
    for field in present:
        found = by_identity.get((field.name, field_since(field)))
        if found is None:
            result.append(pa.nulls(rows, field.type))
        else:
            result.append(_cast(found[1], found[0].type, field.type))
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
    """Return *column* without an offset, with which Arrow takes no mask."""
    return column.take(pa.array(range(len(column)), pa.int64())) if column.offset else column


class TtlMigration:
    """
    Give entries of an earlier schema their expiry in the present one.

    Args:
        present: The variable as it is now.
        written: Generation of the schema that the entries were written with.
    """

    def __init__(self, present: StateDescriptor, written: int) -> None:
        self.changes: tuple[TtlChange, ...] = tuple(
            change for change in present.ttl_changes if change.generation > written
        )

    def entry(self, entry: Entry) -> Entry | None:
        """Return an entry as it is now; None if it had expired."""
        for change in self.changes:
            if change.added:
                entry = (change.at_ms, entry)
            else:
                expires_ms, entry = entry
                if expires_ms <= change.at_ms:
                    return None
        return entry
