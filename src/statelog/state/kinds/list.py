"""
List state: for each key, entries in the order in which they were appended.

A cell is the list of the entries.  A delta is a `ListDelta`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from statelog.state.kinds.kind import (
    EXPIRES_FIELD,
    OP_ADD_ELEMENT,
    OP_CLEAR,
    VALUE_COLUMN,
    Entry,
    EntryCodec,
    FromPython,
    Key,
    Kind,
    Migration,
    Operations,
    RowNumbers,
    Times,
    as_struct,
    cell_of_element,
    expiry_of,
    filtered_lists,
    list_column,
    positions_in,
    split_elements,
    with_copies,
)

ListCell = list[Entry]
POSITION_COLUMN: Final = "position"


class ListDelta:
    """Entries to append to a list, or to an empty list if *replaced*."""

    __slots__ = ("replaced", "tail")

    def __init__(self, tail: list[Entry], *, replaced: bool = False) -> None:
        self.replaced = replaced
        self.tail = tail


class ListKind(Kind[ListCell, ListDelta]):
    """The kind of state that stores a list of entries per key."""

    name = "list"
    row_columns = (POSITION_COLUMN, VALUE_COLUMN)
    order_column = POSITION_COLUMN

    def clear_delta(self) -> ListDelta:
        """Return a delta that removes all entries."""
        return ListDelta([], replaced=True)

    def replacing_delta(self, cell: ListCell) -> ListDelta:
        """Return a delta that removes all entries, then appends the entries of *cell*."""
        return ListDelta(list(cell), replaced=True)

    def copy_delta(self, delta: ListDelta) -> ListDelta:
        """Return a delta with a copy of the list."""
        return ListDelta(list(delta.tail), replaced=delta.replaced)

    def fold(self, table: dict[Key, ListCell], deltas: Mapping[Key, ListDelta]) -> None:
        """Append the new entries to the list in place, or replace the list."""
        for key, delta in deltas.items():
            # A copy: the delta may be folded into the tables of a snapshot too.
            if delta.replaced or key not in table:
                if delta.tail:
                    table[key] = list(delta.tail)
                else:
                    table.pop(key, None)
            else:
                table[key].extend(delta.tail)

    def merge(
        self, table: dict[Key, ListCell], deltas: Mapping[Key, ListDelta]
    ) -> dict[Key, ListCell]:
        """Return *table* with *deltas* applied; copy only the lists that change."""
        merged = with_copies(table, deltas, list)
        self.fold(merged, deltas)
        return merged

    def operations(self, deltas: Mapping[Key, ListDelta]) -> Operations:
        """Return a clear operation for each replaced list, then one operation per entry."""
        result = Operations([], [], [], [])
        keys, ops, entries, _ = result
        for key, delta in deltas.items():
            if delta.replaced:
                keys.append(key)
                ops.append(OP_CLEAR)
                entries.append(None)
            keys += [key] * len(delta.tail)
            ops += [OP_ADD_ELEMENT] * len(delta.tail)
            entries += delta.tail
        return result

    def deltas(self, operations: Operations) -> dict[Key, ListDelta]:
        """Return the delta of each key."""
        keys, ops, entries, _ = operations
        deltas: dict[Key, ListDelta] = {}
        for key, op, entry in zip(keys, ops, entries, strict=True):
            if op == OP_CLEAR:
                deltas[key] = ListDelta([], replaced=True)
                continue
            delta = deltas.get(key)
            if delta is None:
                delta = deltas[key] = ListDelta([])
            delta.tail.append(entry)  # type: ignore[arg-type]  # only a clear has none
        return deltas

    def operation_elements(self, columns: Sequence[pa.Array], element: pa.DataType) -> pa.Array:
        """Return the entries in operations; see `Kind.operation_elements`."""
        return as_struct(columns, element)

    def element_expiry(self, elements: pa.Array) -> pa.Array:
        """Return the expiry time of each entry."""
        return elements.field(EXPIRES_FIELD)

    def encode_cells(self, codec: EntryCodec, cells: Sequence[ListCell | None]) -> pa.Array:
        """Encode lists as a column of lists of structs."""
        entries = codec.encode_entries([entry for cell in cells for entry in cell or ()])
        return list_column(cells, entries)

    def decode_cells(self, codec: EntryCodec, column: pa.Array) -> Sequence[ListCell | None]:
        """Decode the lists in a column of lists of structs."""
        entries: list[Entry] = codec.decode_entries(column.values)  # type: ignore[assignment]
        return split_elements(column, entries)

    def row_fields(self, codec: EntryCodec) -> list[pa.Field]:
        """Return the fields of a row: the position in the list, then the fields of an entry."""
        return [pa.field(POSITION_COLUMN, pa.int64()), *codec.row_fields()]

    def rows(self, column: pa.Array) -> tuple[RowNumbers, list[pa.Array]]:
        """Return a row for each entry, with its position in the list."""
        cells = cell_of_element(column)
        return cells, [pa.array(positions_in(cells)), *column.flatten().flatten()]

    def cells_of_rows(
        self, parents: RowNumbers, columns: Sequence[pa.Array], keys: int, kind: pa.DataType
    ) -> pa.Array:
        """Rebuild lists from rows; positions determine only the order."""
        return super().cells_of_rows(parents, columns[1:], keys, kind)

    def from_python(self, state: Any, convert: FromPython, expiry: Any = None) -> ListCell:
        """Convert a list of values to entries."""
        values = list(state)
        times = [None] * len(values) if expiry is None else list(expiry)
        return [
            convert.entry(value, expires_ms)
            for value, expires_ms in zip(values, times, strict=True)
        ]

    def to_python(self, cell: ListCell, entry: Callable[[Entry], object]) -> list[object]:
        """Convert entries to a list of values."""
        return list(map(entry, cell))

    def expiry_times(self, cell: ListCell) -> Collection[int]:
        """Return the expiry time of each entry."""
        return [entry[0] for entry in cell]

    def live_cell(self, cell: ListCell, until_ms: int) -> ListCell:
        """Return the entries that expire after *until_ms*."""
        return [entry for entry in cell if entry[0] > until_ms]

    def live_column(self, column: pa.Array, until_ms: int | Times) -> pa.Array:
        """Return the column without the entries that expired by *until_ms*."""
        return filtered_lists(column, expiry_of(column.values) > until_ms)

    def migrate_deltas(
        self, deltas: dict[Key, ListDelta], migrate: Migration
    ) -> dict[Key, ListDelta]:
        """Migrate the new entries in place, and drop the ones that have expired."""
        for delta in deltas.values():
            delta.tail = _migrated(delta.tail, migrate)
        return deltas

    def migrate_cell(self, cell: ListCell, migrate: Migration) -> ListCell:
        """Return the migrated entries, leaving out any that have expired."""
        return _migrated(cell, migrate)


def _migrated(entries: Iterable[Entry], migrate: Migration) -> list[Entry]:
    return [entry for entry in map(migrate, entries) if entry is not None]
