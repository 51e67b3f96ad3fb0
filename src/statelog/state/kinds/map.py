"""
Map state: for each key, an entry per map key.

A cell is a dict from map keys to entries, in the order of their last writes.  A delta is a
`MapDelta`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from statelog.errors import UsageError
from statelog.state.kinds.kind import (
    EXPIRES_FIELD,
    OP_CLEAR,
    OP_PUT,
    OP_REMOVE,
    USER_KEY_COLUMN,
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
    Values,
    as_struct,
    cell_of_element,
    expiry_of,
    filtered_lists,
    list_column,
    split_elements,
    with_copies,
)

MapCell = dict[Values, Entry]


class MapDelta:
    """Entries that were set in a map, or removed from it (None)."""

    __slots__ = ("cleared", "entries")

    def __init__(self, cleared: bool = False) -> None:
        self.cleared = cleared
        self.entries: dict[Values, Entry | None] = {}


class MapKind(Kind[MapCell, MapDelta]):
    """The kind of state that stores a map from map keys to entries per key."""

    name = "map"
    row_columns = (USER_KEY_COLUMN, VALUE_COLUMN)

    def clear_delta(self) -> MapDelta:
        """Return a delta that removes all entries."""
        return MapDelta(cleared=True)

    def replacing_delta(self, cell: MapCell) -> MapDelta:
        """Return a delta that removes all entries, then sets the entries of *cell*."""
        delta = MapDelta(cleared=True)
        delta.entries.update(cell)
        return delta

    def copy_delta(self, delta: MapDelta) -> MapDelta:
        """Return a copy of the delta with its own dict of entries."""
        copy = MapDelta(cleared=delta.cleared)
        copy.entries.update(delta.entries)
        return copy

    def fold(self, table: dict[Key, MapCell], deltas: Mapping[Key, MapDelta]) -> None:
        """Set and remove entries in place, or start with an empty map."""
        for key, delta in deltas.items():
            cell = {} if delta.cleared else table.get(key, {})
            for user_key, entry in delta.entries.items():
                # Popped first, so that the order is the order of the last writes.
                cell.pop(user_key, None)
                if entry is not None:
                    cell[user_key] = entry
            if cell:
                table[key] = cell
            else:
                table.pop(key, None)

    def merge(
        self, table: dict[Key, MapCell], deltas: Mapping[Key, MapDelta]
    ) -> dict[Key, MapCell]:
        """Return *table* with *deltas* applied; copy only the maps that change."""
        merged = with_copies(table, deltas, dict)
        self.fold(merged, deltas)
        return merged

    def operations(self, deltas: Mapping[Key, MapDelta]) -> Operations:
        """Return a clear operation for each cleared map, then one operation per entry."""
        result = Operations([], [], [], [])
        keys, ops, entries, user_keys = result
        for key, delta in deltas.items():
            if delta.cleared:
                keys.append(key)
                ops.append(OP_CLEAR)
                entries.append(None)
                user_keys.append(None)
            for user_key, entry in delta.entries.items():
                keys.append(key)
                ops.append(OP_REMOVE if entry is None else OP_PUT)
                entries.append(entry)
                user_keys.append(user_key)
        return result

    def deltas(self, operations: Operations) -> dict[Key, MapDelta]:
        """Return the delta of each key."""
        deltas: dict[Key, MapDelta] = {}
        for key, op, entry, user_key in zip(*operations, strict=True):
            if op == OP_CLEAR:
                deltas[key] = MapDelta(cleared=True)
                continue
            delta = deltas.get(key)
            if delta is None:
                delta = deltas[key] = MapDelta()
            delta.entries[user_key] = (  # type: ignore[index]  # only a clear has no map key
                None if op == OP_REMOVE else entry
            )
        return deltas

    def operation_elements(self, columns: Sequence[pa.Array], element: pa.DataType) -> pa.Array:
        """Return the (map key, entry) pairs in operations; see `Kind.operation_elements`."""
        user_key = element.field(0).type
        entry = element.field(1).type
        width = user_key.num_fields
        parts = [as_struct(columns[:width], user_key), as_struct(columns[width:], entry)]
        return as_struct(parts, element)

    def element_keys(self, elements: pa.Array) -> list[pa.Array] | None:
        """Return the columns that contain the map key."""
        columns: list[pa.Array] = elements.field(0).flatten()
        return columns

    def element_expiry(self, elements: pa.Array) -> pa.Array:
        """Return the expiry time of each entry."""
        return elements.field(1).field(EXPIRES_FIELD)

    def encode_cells(self, codec: EntryCodec, cells: Sequence[MapCell | None]) -> pa.Array:
        """Encode maps as a column of lists of {key, value}."""
        pairs = [pair for cell in cells for pair in (cell or {}).items()]
        user_keys = codec.encode_user_keys([user_key for user_key, _ in pairs])
        entries = codec.encode_entries([entry for _, entry in pairs])
        both = pa.StructArray.from_arrays([user_keys, entries], ["key", "value"])
        return list_column(cells, both)

    def decode_cells(self, codec: EntryCodec, column: pa.Array) -> Sequence[MapCell | None]:
        """Decode the maps in a column of lists of {key, value}."""
        user_keys = codec.decode_user_keys(column.values.field(0))
        entries: list[Entry] = codec.decode_entries(  # type: ignore[assignment]
            column.values.field(1)
        )
        pairs = list(zip(user_keys, entries, strict=True))
        return [None if cell is None else dict(cell) for cell in split_elements(column, pairs)]

    def cell_type(self, value: pa.DataType, user_key: pa.DataType) -> pa.DataType:
        """Return the type of a list of {key, value} structs."""
        return pa.list_(pa.struct([pa.field("key", user_key), pa.field("value", value)]))

    def rows(self, column: pa.Array) -> tuple[RowNumbers, list[pa.Array]]:
        """Return a row for each entry."""
        user_keys, entries = column.flatten().flatten()
        return cell_of_element(column), [*user_keys.flatten(), *entries.flatten()]

    def from_python(self, state: Any, convert: FromPython, expiry: Any = None) -> MapCell:
        """Convert a caller's dict to the entries of a map state."""
        if not isinstance(state, Mapping):
            raise UsageError(
                f"state {convert.name!r} is a map: expected a dict by map key, not "
                f"{type(state).__name__}"
            )
        times = {} if expiry is None else expiry
        return {
            convert.user_key(user_key): convert.entry(value, times.get(user_key))
            for user_key, value in state.items()
        }

    def to_python(self, cell: MapCell, entry: Callable[[Entry], object]) -> dict[Values, object]:
        """Convert the entries to a dict from map keys to values."""
        return {user_key: entry(stored) for user_key, stored in cell.items()}

    def row_items(self, columns: Mapping[str, Sequence[object]]) -> Sequence[object]:
        """Return the (map key, value) pairs."""
        return list(zip(columns[USER_KEY_COLUMN], columns[VALUE_COLUMN], strict=True))

    def from_items(self, items: Sequence[Any]) -> dict[object, object]:
        """Build a dict from pairs of map key and value."""
        return dict(items)

    def expiry_times(self, cell: MapCell) -> Collection[int]:
        """Return the expiry time of each entry."""
        return [entry[0] for entry in cell.values()]

    def live_cell(self, cell: MapCell, until_ms: int) -> MapCell:
        """Return the entries that expire after *until_ms*."""
        return {user_key: entry for user_key, entry in cell.items() if entry[0] > until_ms}

    def live_column(self, column: pa.Array, until_ms: int | Times) -> pa.Array:
        """Return the column without the entries that expired by *until_ms*."""
        return filtered_lists(column, expiry_of(column.values.field(1)) > until_ms)

    def migrate_deltas(
        self, deltas: dict[Key, MapDelta], migrate: Migration
    ) -> dict[Key, MapDelta]:
        """Migrate the entries in place; expired entries become removals."""
        for delta in deltas.values():
            for user_key, entry in delta.entries.items():
                # A removal, because it must still hide the entry before it.
                delta.entries[user_key] = None if entry is None else migrate(entry)
        return deltas

    def migrate_cell(self, cell: MapCell, migrate: Migration) -> MapCell:
        """Return the migrated entries, leaving out any that have expired."""
        entries = ((user_key, migrate(entry)) for user_key, entry in cell.items())
        return {user_key: entry for user_key, entry in entries if entry is not None}
