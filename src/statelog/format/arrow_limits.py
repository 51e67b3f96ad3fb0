"""
Combine arrays without exceeding the limit of Arrow's 32-bit offsets.

Texts, binary data, lists and maps are found by 32-bit offsets, so that one array holds at most 2
GiB of them.  Beyond that Arrow returns several chunks, or fails without the name of the data.  What
needs one array asks here, and gets it or a `CapacityError` with the name.  What can work with
several arrays asks for `batches_of`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import CapacityError
from statelog.model.state_change import value_bytes

ARRAY_BYTES: Final = 2**31 - 1
"""Maximum bytes of string or binary data, and elements of lists or maps, in one array."""


def one_array(column: pa.Array | pa.ChunkedArray, what: str = "") -> pa.Array:
    """Return a column as a single array; copy it only if it has several chunks."""
    if isinstance(column, pa.Array):
        return _checked(column, what)
    if column.num_chunks == 1:
        return _checked(column.chunk(0), what)
    if not column.num_chunks:
        return pa.array([], column.type)
    return joined_arrays(column.chunks, what)


def joined_arrays(arrays: Sequence[pa.Array], what: str = "") -> pa.Array:
    """Combine arrays of the same type into a single array; see `one_array`."""
    if len(arrays) == 1:
        return _checked(arrays[0], what)
    try:
        whole = pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:  # an overflow, or types that differ
        if _widest(arrays) > ARRAY_BYTES:
            raise capacity_error(what) from error
        raise
    return _checked(whole, what)


def one_batch(table: pa.Table, what: str = "") -> pa.RecordBatch:
    """Convert a table to a single batch."""
    try:
        batches = table.combine_chunks().to_batches()
    except pa.ArrowInvalid as error:
        if large := _large_column(table):
            raise capacity_error(f"{what} column {large!r}".strip()) from error
        raise
    if not batches:
        empty = [pa.array([], field.type) for field in table.schema]
        return pa.RecordBatch.from_arrays(empty, schema=table.schema)
    is_large = len(batches) > 1 or batches[0].get_total_buffer_size() > ARRAY_BYTES
    if is_large and (large := _large_column(table)):
        raise capacity_error(f"{what} column {large!r}".strip())
    return batches[0]


def take_rows(array: pa.Array, rows: pa.Array, what: str = "") -> pa.Array:
    """Return the given rows of an array, possibly with repetitions; see `one_array`."""
    try:
        return _checked(array.take(rows), what)
    except pa.ArrowInvalid as error:  # a row that is missing is an `ArrowIndexError`
        raise capacity_error(what) from error


def joined_batches(batches: Iterable[pa.RecordBatch], what: str = "") -> pa.RecordBatch:
    """Combine batches with the same schema into a single batch; see `one_batch`."""
    return one_batch(pa.Table.from_batches(batches), what)


def batches_of(table: pa.Table) -> list[pa.RecordBatch]:
    """
    Convert a table to one batch, or to several if it exceeds the limit.

    No array of a batch is a slice of a longer one.
    """
    try:
        return [one_batch(table)]
    except CapacityError:
        if table.num_rows < 2:
            raise
    parts = table.to_batches()
    if len(parts) == 1:
        half = table.num_rows // 2
        parts = [parts[0].slice(0, half), parts[0].slice(half)]
    return [
        batch
        for batch_part in parts
        for batch in batches_of(pa.Table.from_batches([_compact(batch_part)]))
    ]


def rows_of(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """
    Return the rows of a table with the given numbers, in that order.

    Several chunks if one array cannot hold a column.
    """
    batches = table.to_batches()
    ends = np.cumsum([batch.num_rows for batch in batches])
    which = np.searchsorted(ends, rows, side="right")
    pieces = [table.schema.empty_table()]
    places = [np.empty(0, np.int64)]
    try:
        for number in np.unique(which).tolist():
            place = np.flatnonzero(which == number)
            numbers = rows[place] - (ends[number] - batches[number].num_rows)
            pieces.append(pa.Table.from_batches([batches[number].take(pa.array(numbers))]))
            places.append(place)
        joined = one_batch(pa.concat_tables(pieces))
    except (CapacityError, pa.ArrowInvalid):
        half = len(rows) // 2
        if not half:
            raise
        return pa.concat_tables(rows_of(table, half_rows) for half_rows in np.split(rows, [half]))
    order = np.empty(len(rows), np.int64)
    order[np.concatenate(places)] = np.arange(len(rows))
    return pa.Table.from_batches([joined.take(pa.array(order))])


def check_size(size_bytes: int, what: str) -> None:
    """Raise `CapacityError` if a single value of this size does not fit into an array."""
    if size_bytes > ARRAY_BYTES:
        raise capacity_error(what)


def capacity_error(what: str) -> CapacityError:
    """Return the error for task data that does not fit into one array."""
    gib = ARRAY_BYTES / 2**30
    return CapacityError(
        f"{what or 'a column'}: one task has more than {gib:.3g} GiB, which is the most that one Arrow array "
        "can hold. Use more tasks (the option `tasks`); a key is always in one task, so the values of one key "
        "in one micro-batch must also be below the limit"
    )


def _checked(array: pa.Array, what: str) -> pa.Array:
    # The size of the buffers is at hand; what counts of them is computed only for a large array.
    if array.get_total_buffer_size() > ARRAY_BYTES and _widest([array]) > ARRAY_BYTES:
        raise capacity_error(what)
    return array


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch in which arrays that were slices of longer arrays are copied."""
    columns = [pa.concat_arrays([column]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _large_column(table: pa.Table) -> str:
    """Return the name of a column that does not fit into one array, or ""."""
    names = zip(table.schema.names, table.columns, strict=True)
    return next((name for name, column in names if _widest(column.chunks) > ARRAY_BYTES), "")


def _widest(arrays: Sequence[pa.Array]) -> int:
    """Return the largest 32-bit offset that a combination of these arrays would need."""
    kind = arrays[0].type if arrays else pa.null()
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return sum(map(value_bytes, arrays))
    if pa.types.is_struct(kind):
        fields = range(kind.num_fields)
        return max(
            (_widest([array.field(index) for array in arrays]) for index in fields), default=0
        )
    if pa.types.is_map(kind):
        spans = [(array, *_bounds(array)) for array in arrays]
        parts = [[array.keys[start:end] for array, start, end in spans]]
        parts.append([array.items[start:end] for array, start, end in spans])
    elif pa.types.is_list(kind):
        parts = [[array.flatten() for array in arrays]]
    else:
        return 0
    return max(
        max(sum(map(len, arrays_of_field)), _widest(arrays_of_field)) for arrays_of_field in parts
    )


def _bounds(maps: pa.MapArray) -> tuple[int, int]:
    """Return the start and end of the entries of maps."""
    if not len(maps):
        return 0, 0
    offsets = maps.offsets
    return offsets[0].as_py(), offsets[len(maps)].as_py()
