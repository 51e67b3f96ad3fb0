"""
Rows as columns: a task's input table, and the tables that a columnar processor yields.

Where the hash of a key tells keys apart, one sort of 64-bit numbers groups the rows: the upper bits
are from the hash, the lower bits are the number of the row, so that the rows of a key stay in order
of arrival.  For many rows that takes three fifths of the time of a dictionary of the keys, and the
hashes are needed anyway.  The keys come in the order in which a `SlotIndex` has them, so that a
look-up goes through its memory once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from statelog.errors import InvariantError, UsageError
from statelog.extensions.columns.slots import Keys, columns_of, zoned_table
from statelog.format.arrow_limits import joined_batches, one_array
from statelog.spark.rows.formats import RowFormat
from statelog.spark.rows.interface import KeyedInput, Output, RowLike
from statelog.spark.rows.key_order import RowsByKey, rows_by_key
from statelog.spark.rows.layout import INPUT_ROWS, InputLayout
from statelog.spark.rows.unfit_output import unfit_output
from statelog.state.encoding.converters import relabelled
from statelog.state.encoding.values import KeyCodec
from statelog.state.keys.key_hash import hash_columns, is_one_to_one
from statelog.state.kinds import Key

_COPIES: Final = 4
"""Memory of a columnar task per byte of input."""
_LEAST_ROWS: Final = 8192
"""With fewer rows the sort saves little, and output in order of arrival is easier to read."""


class ColumnarInput:
    """A task's input rows in columns; if *is_distinct*, each key has only one row."""

    def __init__(
        self, layout: InputLayout, key_codec: KeyCodec, *, is_distinct: bool = False
    ) -> None:
        self._is_distinct = is_distinct
        self._layout = layout
        self._codec = key_codec
        self.row_count = 0
        self._rows: pa.Table | None = None
        self._keys: Keys | None = None

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read all rows; the columns are key group, computed keys, and input columns."""
        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        table = pa.Table.from_batches([joined_batches(parts, INPUT_ROWS)])
        self.row_count = table.num_rows
        key_groups = table.column(0).to_numpy()
        columns = [one_array(table.column(position)) for position in self._layout.key_positions]
        rows = table.select(range(self._layout.first_input, table.num_columns))
        if self._is_distinct:
            starts = np.arange(self.row_count)
            keys = self._codec.uniform(columns)
            self._keys = Keys(self._codec.schema, keys, key_groups, starts, starts + 1)
            self._rows = rows
            return
        by_key = hash_order(columns, self._codec.schema) or rows_by_key(columns, self._codec)
        order, starts, ends, hashes = by_key
        firsts = order[starts]
        numbers = pa.array(firsts)
        keys = self._codec.uniform([column.take(numbers) for column in columns])
        self._keys = Keys(self._codec.schema, keys, key_groups[firsts], starts, ends, hashes)
        self._rows = rows.take(pa.array(order))

    def keyed(self, zone: str) -> tuple[Keys, pa.Table] | None:
        """Return the keys and rows, with times in *zone*, or None if the input is empty."""
        if self._keys is None or self._rows is None:
            return None
        self._keys.zone = zone
        return self._keys, zoned_table(self._rows, zone)

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows."""
        if self._keys is None:
            return []
        present: list[int] = np.flatnonzero(np.bincount(self._keys.key_groups)).tolist()
        return present

    def table_keys(self, key_group: int) -> Sequence[Key]:
        """Raise an error, because the keys of a columnar input are columns."""
        raise InvariantError("a columnar input does not provide its keys as Python objects")

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[RowLike]]]:
        """Raise an error, like `table_keys`."""
        raise InvariantError("a columnar input does not provide its keys as Python objects")


def hash_order(columns: Sequence[pa.Array], schema: pa.Schema) -> RowsByKey | None:
    """Order the rows by key; None if hashes are ambiguous or there are only a few rows."""
    length = len(columns[0])
    if length < _LEAST_ROWS or not is_one_to_one(schema) or columns[0].null_count:
        return None
    hashes = hash_columns(columns, schema)
    mask = np.uint64((1 << length.bit_length()) - 1)
    sorted_rows = hashes & ~mask
    sorted_rows |= np.arange(length, dtype=np.uint64)
    sorted_rows.sort()
    rows = (sorted_rows & mask).astype(np.int64)
    sorted_hashes = hashes[rows]
    # Of keys that differ in lower bits only, the rows are mixed: then one of them is out of order.
    if (sorted_hashes[1:] < sorted_hashes[:-1]).any():
        return None
    starts = np.flatnonzero(np.append(True, sorted_hashes[1:] != sorted_hashes[:-1]))
    return RowsByKey(rows, starts, np.append(starts[1:], length), sorted_hashes[starts])


class ColumnarOutput:
    """Collects tables of output rows."""

    def __init__(self, schema: pa.Schema, batch_id: int) -> None:
        self._schema = schema
        self._batch_id = batch_id
        self.items = self._batches = list[pa.RecordBatch]()
        self._rows = 0
        self.unnamed = None

    @property
    def pending(self) -> int:
        """The number of rows in the next batch."""
        return self._rows

    def extend(self, produced: Iterable[object]) -> None:
        """Collect the tables that one call yields; raise `UnfitOutputError` if one does not fit."""
        for table in produced:
            try:
                columns = columns_of(table, self._schema, -1, "the output")
            except UsageError as error:
                raise unfit_output(str(error), self._batch_id) from error
            typed = map(relabelled, columns, self._schema.types)
            batch = pa.RecordBatch.from_arrays(list(typed), schema=self._schema)
            self._batches.append(batch)
            self._rows += batch.num_rows

    def batch(self) -> pa.RecordBatch:
        """Return all rows as one batch."""
        if len(self._batches) == 1:
            return self._batches[0]
        if not self._batches:
            empty = [pa.array([], field.type) for field in self._schema]
            return pa.RecordBatch.from_arrays(empty, schema=self._schema)
        return joined_batches(self._batches, "the output,")

    def clear(self) -> None:
        """Discard all rows."""
        self._batches.clear()
        self._rows = 0


@dataclass(frozen=True, slots=True)
class ColumnarFormat:
    """All rows of a task as an Arrow table; if *is_distinct*, each key has only one row."""

    is_distinct: bool = False
    rows_at_once: int = 0
    splits_keys: bool = False

    def cost(self, batch: pa.RecordBatch) -> int:
        """Estimate the memory for the rows, their sorted copy and a processor's results."""
        return _COPIES * int(batch.nbytes)

    def input(self, layout: InputLayout, key_codec: KeyCodec) -> KeyedInput:
        """See `RowFormat`."""
        return ColumnarInput(layout, key_codec, is_distinct=self.is_distinct)

    def output(self, schema: pa.Schema, batch_id: int) -> Output:
        """See `RowFormat`."""
        return ColumnarOutput(schema, batch_id)

    def of_columns(self, columns: StructType) -> RowFormat:
        """See `RowFormat`."""
        return self
