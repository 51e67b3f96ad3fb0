"""Read the input as Rows: an iterator of `Row`s for each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import Row

from statelog.spark.rows.key_order import KeyedRows
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.types import row_factory
from statelog.state.encoding.python_values import to_python
from statelog.state.encoding.values import KeyCodec
from statelog.state.heap.tables import Key

_AT_ONCE = 20_000
"""Rows of a task up to this number become Python objects together, and more of them one key group
at a time: objects that are used soon after they were made are still in the processor's caches."""


class RowInput(KeyedRows):
    """
    The input rows of one task, by key.

    Args:
        layout: The layout of the input.
        key_codec: The operator's key.
    """

    def __init__(self, layout: InputLayout, key_codec: KeyCodec) -> None:
        super().__init__(key_codec)
        self._layout = layout
        self._columns: list[pa.ChunkedArray] = []
        self._rows: list[Row] | None = None
        self._make: Callable[..., Row] = Row

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read all rows: key group, computed key columns, input columns."""
        read = [batch for batch in batches if batch.num_rows]
        if not read:
            return
        if self.kept is not None:
            self.kept.batches += read
        layout = self._layout
        whole = pa.Table.from_batches(read).combine_chunks()
        del read
        keys = [whole.column(at).combine_chunks() for at in layout.key_positions]
        self._sort(whole.column(0).to_numpy(), keys)
        order = pa.array(self._order.rows)
        self._columns = [column.take(order) for column in whole.columns[layout.first_input :]]
        self._make = row_factory(whole.schema.names[layout.first_input :])
        if self.row_count <= _AT_ONCE:
            self._rows = self._rows_of(0, self.row_count)

    def _rows_of(self, start: int, end: int) -> list[Row]:
        """Return the rows from one position to another, in the order of keys."""
        columns = (to_python(column.slice(start, end - start)) for column in self._columns)
        return list(map(self._make, zip(*columns, strict=True)))

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[Row]]]:
        """Yield each key, in both its forms, and its rows."""
        first, end = self._order.ranges.get(key_group, (0, 0))
        bounds, start, rows = self._order.bounds[first : end + 1], 0, self._rows
        if rows is None:
            start = bounds[0]
            rows = self._rows_of(start, bounds[-1])
        keys, shown = self._keys[first:end], self._shown[first:end]
        for key, given, (begin, stop) in zip(keys, shown, pairwise(bounds), strict=True):
            yield key, given, iter(rows[begin - start : stop - start])
