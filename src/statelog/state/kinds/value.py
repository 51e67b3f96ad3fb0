"""
Value state: one entry per key.

A cell is the entry.  A delta is the new entry, or None where the value was cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from statelog.state.kinds.kind import (
    OP_CLEAR,
    OP_SET,
    Entry,
    EntryCodec,
    FromPython,
    Key,
    Kind,
    Migration,
    Operations,
    RowNumbers,
    Table,
    Times,
    as_struct,
    expiry_of,
)


class ValueKind(Kind[Entry, Entry | None]):
    """The kind of state that stores one entry per key."""

    name = "value"
    replaces = True
    is_single = True

    def clear_delta(self) -> None:
        """Return a delta that removes the value."""
        return None

    def replacing_delta(self, cell: Entry) -> Entry:
        """Return the entry itself, which also serves as the delta."""
        return cell

    def fold(self, table: Table, deltas: Mapping[Key, Entry | None]) -> None:
        """Replace the values in *table* that *deltas* changes."""
        # Without a removal one call of C folds all of them.
        if None in deltas.values():
            for key, entry in deltas.items():
                if entry is None:
                    table.pop(key, None)
                else:
                    table[key] = entry
        else:
            table.update(deltas)

    def operations(self, deltas: Mapping[Key, Entry | None]) -> Operations:
        """Return one operation per key."""
        entries = list(deltas.values())
        ops = [OP_CLEAR if entry is None else OP_SET for entry in entries]
        return Operations(list(deltas), ops, entries, [])

    def deltas(self, operations: Operations) -> dict[Key, Entry | None]:
        """Return the new entry of each key, or None if the value was cleared."""
        keys, ops, entries, _ = operations
        if OP_CLEAR not in ops:
            return dict(zip(keys, entries, strict=True))
        return {
            key: None if op == OP_CLEAR else entry
            for key, op, entry in zip(keys, ops, entries, strict=True)
        }

    def operation_cells(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field]) -> pa.Array:
        """Return the entries in operations; see `Kind.operation_cells`."""
        return pa.StructArray.from_arrays(columns, fields=fields)

    def encode_cells(self, codec: EntryCodec, cells: Sequence[Entry | None]) -> pa.Array:
        """Encode values as a column of structs."""
        return codec.encode_entries(cells)

    def decode_cells(self, codec: EntryCodec, column: pa.Array) -> list[Entry | None]:
        """Decode the values in a column of structs."""
        return codec.decode_entries(column)

    def cell_type(self, value: pa.DataType, user_key: pa.DataType) -> pa.DataType:
        """Return the type of an entry."""
        return value

    def rows(self, column: pa.Array) -> tuple[RowNumbers, list[pa.Array]]:
        """Return a row for each value."""
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return np.flatnonzero(valid), column.drop_null().flatten()

    def cells_of_rows(
        self, parents: RowNumbers, columns: Sequence[pa.Array], keys: int, kind: pa.DataType
    ) -> pa.Array:
        """Rebuild values from rows; null for a key without a row."""
        # By key, its row; null where it has none.
        rows = np.full(keys, -1, np.int64)
        rows[parents] = np.arange(len(parents))
        return as_struct(columns, kind).take(pa.array(rows, mask=rows < 0))

    def from_python(self, state: Any, convert: FromPython, expiry: Any = None) -> Entry:
        """Convert a value to an entry."""
        return convert.entry(state, expiry)

    def to_python(self, cell: Entry, entry: Callable[[Entry], object]) -> object:
        """Convert an entry to the value."""
        return entry(cell)

    def from_items(self, items: Sequence[object]) -> object:
        """Return the value of the only row, or None without a row."""
        return items[0] if items else None

    def expiry_times(self, cell: Entry) -> Collection[int]:
        """Return the expiry time of the value."""
        return (cell[0],)

    def live_cell(self, cell: Entry, until_ms: int) -> Entry | None:
        """Return the value, or None if it expired by *until_ms*."""
        return cell if cell[0] > until_ms else None

    def live_column(self, column: pa.Array, until_ms: int | Times) -> pa.Array:
        """Return the column with null in place of each value that expired by *until_ms*."""
        live = expiry_of(column) > until_ms
        return column.take(pa.array(np.arange(len(column)), mask=~live))

    def migrate_deltas(
        self, deltas: dict[Key, Entry | None], migrate: Migration
    ) -> dict[Key, Entry | None]:
        """Migrate the values in the deltas; a value that has expired becomes None."""
        return {key: None if entry is None else migrate(entry) for key, entry in deltas.items()}

    def migrate_cell(self, cell: Entry, migrate: Migration) -> Entry | None:
        """Migrate the value."""
        return migrate(cell)
