"""
The interface of a kind of state, and the terms that all kinds have in common.

    value   the tuple that a processor gave: of a value, a list element or a map entry
    entry   a value as it is stored: the value, or (expires_at_ms, value) with a time to live
    cell    what a table holds for one key; each kind has its own form
    delta   what one micro-batch did to one cell; each kind has its own form

A kind is stateless, and one object serves all variables of it.  Its methods take a whole table or
a whole batch, so that a caller dispatches once per variable and batch, never once per record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import InvariantError

Values: TypeAlias = tuple[object, ...]
"""One field of each column of a schema; what it holds is the user's."""
Key: TypeAlias = Values
"""A grouping key as tables store it: hashable, all NaNs one object."""
Entry: TypeAlias = tuple[Any, ...]
"""A value, or (expires_at_ms, value) where the variable has a time to live."""
Table: TypeAlias = dict[Key, Any]
"""Key -> cell, for one variable and key group."""

Deltas: TypeAlias = dict[Key, Any]
"""Key -> delta, for one variable and key group."""

Times: TypeAlias = npt.NDArray[np.int64]
"""Milliseconds since the epoch."""

RowNumbers: TypeAlias = npt.NDArray[np.int64]
"""Positions of rows in a table or run."""

Cell = TypeVar("Cell")
Delta = TypeVar("Delta")
Migration: TypeAlias = Callable[[Entry], Entry | None]
"""Converts an entry of an earlier schema to the current schema; None if it had expired."""

VALUE_COLUMN: Final = "value"
USER_KEY_COLUMN: Final = "user_key"

# Flink's codes, StateChangeOperation.
OP_CLEAR: Final = 0
OP_SET: Final = 1
OP_ADD_ELEMENT: Final = 5
OP_PUT: Final = 6
OP_REMOVE: Final = 7

EXPIRES_FIELD: Final = "expires_at_ms"
"""Field of an entry with its expiry, in snapshots and in operations."""
_Element = TypeVar("_Element")


def with_copies(
    table: Mapping[Key, Cell], keys: Iterable[Key], copy: Callable[[Cell], Cell]
) -> dict[Key, Cell]:
    """Return *table* with copies of the cells of *keys*, so that they can be changed in place."""
    copied = dict(table)
    for key in keys:
        if key in copied:
            copied[key] = copy(copied[key])
    return copied


def lists_of_lengths(
    counts: npt.NDArray[np.int64], elements: pa.Array, kind: pa.DataType
) -> pa.Array:
    """Split *elements* into lists of these lengths; null instead of an empty list."""
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    return pa.ListArray.from_arrays(
        offsets, elements.cast(kind.value_type), type=kind, mask=pa.array(counts == 0)
    )


class Operations(NamedTuple):
    """
    The deltas of one variable as parallel lists, one item per operation.

    Args:
        keys: The key that each operation changes.
        ops: Flink's codes.
        entries: What is stored; None where the operation stores nothing.
        user_keys: The map keys; empty for kinds without map keys.
    """

    keys: list[Key]
    ops: list[int]
    entries: list[Entry | None]
    user_keys: list[Values | None]

    def extend(self, other: Operations) -> None:
        """Append the operations of *other*."""
        for column, more in zip(self, other, strict=True):
            column += more  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class FromPython:
    """
    Converts a caller's values to stored values.

    Args:
        name: The variable, for errors.
        entry: Returns the entry of a value; called with the value and its expiry, or None.
        user_key: Returns a map key.
    """

    name: str
    entry: Callable[[Any, Any], Entry]
    user_key: Callable[[Any], Values]


class EntryCodec(Protocol):
    """Converts entries and map keys to Arrow columns and back."""

    def row_fields(self) -> list[pa.Field]:
        """Return the fields of an entry as flat columns: map key, value, then the expiry time."""
        ...

    def encode_entries(self, entries: Sequence[Entry | None]) -> pa.Array:
        """Encode entries as structs; null for None."""
        ...

    def decode_entries(self, column: pa.Array) -> list[Entry | None]:
        """Decode the entries in a column of structs."""
        ...

    def encode_user_keys(self, user_keys: Sequence[Values]) -> pa.Array:
        """Encode map keys as structs."""
        ...

    def decode_user_keys(self, column: pa.Array) -> list[Values]:
        """Decode the map keys in a column of structs."""
        ...


class Kind(ABC, Generic[Cell, Delta]):
    """
    Everything that is specific to one kind of state.

    Attributes: `name`: the kind in JSON and messages.  `replaces`: whether a delta replaces the
    whole cell, so that a replay needs only the last delta of each key.  `is_single`: whether a key
    has one entry.  `fires`: whether entries are times at which the processor is called, which
    `init` does not ask for.  `row_columns`: the columns of a row after its key's, without the
    expiry; `order_column`: the column that sorts the rows of a key, if any.
    """

    name: ClassVar[str]
    replaces: ClassVar[bool] = False
    is_single: ClassVar[bool] = False
    fires: ClassVar[bool] = False
    row_columns: ClassVar[tuple[str, ...]] = (VALUE_COLUMN,)
    order_column: ClassVar[str] = ""

    # --- declaration ------------------------------------------------------------------------------

    def value_schema(self, declared: pa.Schema) -> pa.Schema:
        """Return the schema of the stored values for a declared schema."""
        return declared

    # --- tables -----------------------------------------------------------------------------------

    def new_table(self) -> dict[Key, Cell]:
        """Return an empty table."""
        return {}

    @abstractmethod
    def clear_delta(self) -> Delta:
        """Return a new delta that removes the cell of a key."""

    @abstractmethod
    def replacing_delta(self, cell: Cell) -> Delta:
        """Return a delta that replaces a key's cell with *cell*."""

    def copy_delta(self, delta: Delta) -> Delta:
        """Return a copy of *delta* that later changes to *delta* do not affect."""
        return delta

    @abstractmethod
    def fold(self, table: dict[Key, Cell], deltas: Mapping[Key, Delta]) -> None:
        """Apply *deltas* to *table*; *deltas* itself does not change."""

    def merge(self, table: dict[Key, Cell], deltas: Mapping[Key, Delta]) -> dict[Key, Cell]:
        """Return a copy of *table* with *deltas* applied."""
        merged = dict(table)
        self.fold(merged, deltas)
        return merged

    def remove(self, table: dict[Key, Cell], key: Key) -> None:
        """Remove the cell of *key*, if it exists."""
        table.pop(key, None)

    def insert_cells(
        self,
        tables: Mapping[int, dict[Key, Cell]],
        cells: Iterable[tuple[int, Key, Cell | None]],
    ) -> None:
        """Insert decoded cells for keys that are not in the tables yet."""
        for key_group, key, cell in cells:
            if cell:
                tables[key_group][key] = cell

    # --- deltas as operations ---------------------------------------------------------------------

    @abstractmethod
    def operations(self, deltas: Mapping[Key, Delta]) -> Operations:
        """Convert *deltas* to operations."""

    @abstractmethod
    def deltas(self, operations: Operations) -> dict[Key, Delta]:
        """Convert operations to the deltas of one key group; the inverse of `operations`."""

    def operation_cells(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field]) -> pa.Array:
        """
        Convert the stored columns of operations to a column of cells.

        Only for a kind that `replaces`.  What a clearing operation has is not looked at.
        """
        raise InvariantError(f"operations on {self.name} state cannot be converted to cells")

    def operation_elements(self, columns: Sequence[pa.Array], element: pa.DataType) -> pa.Array:
        """
        Convert the stored columns of operations to elements of cells.

        Only for a kind that does not `replaces`: its cells are lists, and an operation adds an
        element after the others, or removes some.
        """
        raise InvariantError(f"operations on {self.name} state cannot be converted to elements")

    def element_keys(self, elements: pa.Array) -> list[pa.Array] | None:
        """Return the columns that identify an element to replace; None if elements only append."""
        return None

    def element_expiry(self, elements: pa.Array) -> pa.Array:
        """Return the column with the expiry time of each element, in milliseconds."""
        raise InvariantError(f"{self.name} state does not have elements with a time to live")

    # --- cells as a column ------------------------------------------------------------------------

    @abstractmethod
    def encode_cells(self, codec: EntryCodec, cells: Sequence[Cell | None]) -> pa.Array:
        """Encode cells as one column, in the layout of a snapshot."""

    @abstractmethod
    def decode_cells(self, codec: EntryCodec, column: pa.Array) -> Sequence[Cell | None]:
        """Decode the cells in a column that is not a slice."""

    def cell_type(self, value: pa.DataType, user_key: pa.DataType) -> pa.DataType:
        """Return the type of a column of cells, given the types of an entry and of a map key."""
        return pa.list_(value)

    # --- rows, one for each entry -----------------------------------------------------------------

    def row_fields(self, codec: EntryCodec) -> list[pa.Field]:
        """Return the columns of a row that follow the key columns."""
        return codec.row_fields()

    @abstractmethod
    def rows(self, column: pa.Array) -> tuple[RowNumbers, list[pa.Array]]:
        """
        Convert a column of cells to rows.

        Returns:
            For each row the index of its cell, and the columns of `row_fields`.
        """

    def cells_of_rows(
        self, parents: RowNumbers, columns: Sequence[pa.Array], keys: int, kind: pa.DataType
    ) -> pa.Array:
        """Convert rows to a column of cells; the inverse of `rows`."""
        counts = np.bincount(parents, minlength=keys)
        return lists_of_lengths(counts, self.operation_elements(columns, kind.value_type), kind)

    # --- Python values ----------------------------------------------------------------------------

    @abstractmethod
    def from_python(self, state: Any, convert: FromPython, expiry: Any = None) -> Cell:
        """Convert a caller's state to a cell."""

    @abstractmethod
    def to_python(self, cell: Cell, entry: Callable[[Entry], object]) -> object:
        """Convert a cell to the form the caller sees; *entry* converts its entries."""

    def row_items(self, columns: Mapping[str, Sequence[object]]) -> Sequence[object]:
        """Convert the values of `row_columns` to one item per row, for `from_items`."""
        return columns[self.row_columns[-1]]

    def from_items(self, items: Sequence[Any]) -> object:
        """Combine the items of a key's rows into the state of that key."""
        return list(items)

    # --- time to live -----------------------------------------------------------------------------

    def expiry_times(self, cell: Cell) -> Collection[int]:
        """Return the time at which each entry of *cell* expires, in milliseconds."""
        raise InvariantError(f"{self.name} state does not have a time to live")

    def live_cell(self, cell: Cell, until_ms: int) -> Cell | None:
        """Return *cell* without the entries that expired by *until_ms*; the result may be empty."""
        raise InvariantError(f"{self.name} state does not have a time to live")

    def live_column(self, column: pa.Array, until_ms: int | Times) -> pa.Array:
        """Return a column of cells without the entries that expired by *until_ms*."""
        raise InvariantError(f"{self.name} state does not have a time to live")

    # --- evolution of the schema ------------------------------------------------------------------

    @abstractmethod
    def migrate_deltas(self, deltas: dict[Key, Delta], migrate: Migration) -> dict[Key, Delta]:
        """Convert deltas from an earlier schema to the current one."""

    @abstractmethod
    def migrate_cell(self, cell: Cell, migrate: Migration) -> Cell | None:
        """Convert a cell from an earlier schema to the current one."""


AnyKind: TypeAlias = Kind[Any, Any]
"""A kind whose cells and deltas the caller only passes on."""


def list_column(cells: Sequence[Sized | None], elements: pa.Array) -> pa.Array:
    """Return a column of lists as long as the lists in *cells*; null where a cell is missing."""
    offsets: list[int | None] = []
    position = 0
    for cell in cells:
        offsets.append(None if cell is None else position)
        position += 0 if cell is None else len(cell)
    return pa.ListArray.from_arrays(pa.array([*offsets, position], pa.int32()), elements)


def split_elements(column: pa.Array, elements: Sequence[_Element]) -> list[list[_Element] | None]:
    """Return the elements of each list in *column*; None for a null list."""
    offsets = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    return [
        list(elements[offsets[index] : offsets[index + 1]]) if valid[index] else None
        for index in range(len(column))
    ]


def expiry_of(entries: pa.Array) -> Times:
    """Return the expiry time of each entry; the number for a null entry is arbitrary."""
    field = entries.field(entries.type.get_field_index(EXPIRES_FIELD))
    times: Times = field.fill_null(0).to_numpy()
    return times


def cell_of_element(column: pa.Array) -> RowNumbers:
    """Return, for each element of a list column, the index of its list."""
    cells: RowNumbers = pc.list_parent_indices(column).to_numpy().astype(np.int64)
    return cells


def positions_in(cells: RowNumbers) -> RowNumbers:
    """Return the position of each element in its list, given the result of `cell_of_element`."""
    if not len(cells):
        return cells
    # An element's position is its distance from the first element of its list.
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    lengths = np.diff(starts, append=len(cells))
    positions: RowNumbers = np.arange(len(cells)) - np.repeat(starts, lengths)
    return positions


def as_struct(columns: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Combine columns into a struct column, casting them to the types of its fields."""
    fields = list(kind)
    cast = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(cast, fields=fields)


def filtered_lists(column: pa.Array, keep: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the lists with only the elements that *keep* marks; empty lists become null."""
    # Kept elements before each offset: that is where the shorter list begins.
    offsets = np.concatenate(([0], np.cumsum(keep)))[column.offsets.to_numpy()].astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        column.values.filter(pa.array(keep)),
        type=column.type,
        mask=pa.array(np.diff(offsets) == 0),
    )
