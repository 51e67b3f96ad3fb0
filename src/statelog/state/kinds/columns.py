"""Arrow columns of cells: lists of elements, and the expiry of their entries."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.state.kinds.kind import RowNumbers, Times

EXPIRES_FIELD: Final = "expires_at_ms"
"""Field of an entry that holds its expiry, in snapshots and in operations."""
_Element = TypeVar("_Element")


def list_column(cells: Sequence[Sized | None], elements: pa.Array) -> pa.Array:
    """Return a column of lists with the lengths of *cells*, or null."""
    offsets: list[int | None] = []
    position = 0
    for cell in cells:
        offsets.append(None if cell is None else position)
        position += 0 if cell is None else len(cell)
    return pa.ListArray.from_arrays(pa.array([*offsets, position], pa.int32()), elements)


def split_elements(column: pa.Array, elements: Sequence[_Element]) -> list[list[_Element] | None]:
    """Return the elements of each list of *column*; None for a null list."""
    offsets = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    return [
        list(elements[offsets[index] : offsets[index + 1]]) if valid[index] else None
        for index in range(len(column))
    ]


def expiry_of(entries: pa.Array) -> Times:
    """Return the expiry of each entry; a null entry has any."""
    field = entries.field(entries.type.get_field_index(EXPIRES_FIELD))
    times: Times = field.fill_null(0).to_numpy()
    return times


def cell_of_element(column: pa.Array) -> RowNumbers:
    """Return for each element of a column of lists the index of its list."""
    cells: RowNumbers = pc.list_parent_indices(column).to_numpy().astype(np.int64)
    return cells


def positions_in(cells: RowNumbers) -> RowNumbers:
    """Return positions of elements in their lists, given `cell_of_element`."""
    if not len(cells):
        return cells
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    lengths = np.diff(starts, append=len(cells))
    positions: RowNumbers = np.arange(len(cells)) - np.repeat(starts, lengths)
    return positions


def as_struct(columns: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Return columns as one of structs, in the types of its fields."""
    fields = list(kind)
    cast = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(cast, fields=fields)


def filtered_lists(column: pa.Array, keep: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the lists with the elements that *keep* marks, or null."""
    kept = np.concatenate(([0], np.cumsum(keep)))[column.offsets.to_numpy()].astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(kept),
        column.values.filter(pa.array(keep)),
        type=column.type,
        mask=pa.array(np.diff(kept) == 0),
    )
