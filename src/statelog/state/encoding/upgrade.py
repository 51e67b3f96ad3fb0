"""
What an earlier schema wrote, as the present one has it.

A change set and a snapshot are laid out by the schema they carry.  Their columns are cast to the
present types before they become Python values: fields that are gone fall away, fields that came
later read None.  A time to live that came or went since is applied to the values themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from statelog.state.heap.tables import Key
from statelog.state.schema.descriptors import StateDescriptor, StateKind, TtlChange, field_since


def migrated(
    columns: Sequence[pa.Array[Any]], written: pa.Schema, present: pa.Schema
) -> list[pa.Array[Any]]:
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
    columns: Sequence[pa.Array[Any]],
    written: Sequence[pa.Field],
    present: Sequence[pa.Field],
    rows: int,
) -> list[pa.Array[Any]]:
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


def _cast(column: pa.Array[Any], old: pa.DataType, new: pa.DataType) -> pa.Array[Any]:
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


def _compact(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return *column* without an offset: Arrow takes no mask with offsets into the middle."""
    return column.take(pa.array(range(len(column)), pa.int64())) if column.offset else column


class TtlMigration:
    """
    Gives values of an earlier schema the expiry that they have in the present one.

    Args:
        present: The variable as it is now.
        written: Generation of the schema that the values were written with.
    """

    def __init__(self, present: StateDescriptor, written: int) -> None:
        self._kind = present.kind
        self._changes: tuple[TtlChange, ...] = tuple(
            change for change in present.ttl_changes if change.generation > written
        )

    def _entry(self, entry: Any) -> Any:
        """Return a value or element as it is now; None if its time was over when it counted."""
        for change in self._changes:
            if change.added:
                entry = (change.at_ms, entry)
            else:
                expires_ms, entry = entry
                if expires_ms <= change.at_ms:
                    return None
        return entry

    def _live(self, entries: Iterable[Any]) -> list[Any]:
        migrated_entries = map(self._entry, entries)
        return [entry for entry in migrated_entries if entry is not None]

    def deltas(self, deltas: dict[Key, Any]) -> dict[Key, Any]:
        """Return what was done to one key group, with the entries as they are now."""
        if not self._changes:
            return deltas
        match self._kind:
            case StateKind.VALUE:
                return {k: None if v is None else self._entry(v) for k, v in deltas.items()}
            case StateKind.LIST:
                for delta in deltas.values():
                    delta.tail = self._live(delta.tail)
            case StateKind.MAP:
                for delta in deltas.values():
                    for user_key, entry in delta.entries.items():
                        # What is gone still has to hide what lay there before.
                        delta.entries[user_key] = None if entry is None else self._entry(entry)
            case StateKind.TIMER:
                pass
        return deltas

    def cell(self, cell: Any) -> Any:
        """Return what a table holds of one key, as it is now; None or nothing in it: no state."""
        if not self._changes:
            return cell
        match self._kind:
            case StateKind.VALUE:
                return self._entry(cell)
            case StateKind.LIST:
                return self._live(cell)
            case StateKind.MAP:
                return self._map(cell)
            case StateKind.TIMER:
                return cell

    def _map(self, cell: Mapping[Key, Any]) -> dict[Key, Any]:
        entries = ((user_key, self._entry(entry)) for user_key, entry in cell.items())
        return {user_key: entry for user_key, entry in entries if entry is not None}
