"""Read the input as Rows: an iterator of `Row`s for each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import Row

from statelog.spark.rows.key_order import KeyedRows
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.types import row_factory
from statelog.state.encoding.values import KeyCodec
from statelog.state.heap.tables import Key


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
        self._rows: list[Row] = []

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read all rows: key group, computed key columns, input columns."""
        layout = self._layout
        parts: list[pa.RecordBatch] = []
        rows: list[Row] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            if not parts:
                make = row_factory(batch.schema.names[layout.first_input :])
            inputs = [column.to_pylist() for column in batch.columns[layout.first_input :]]
            rows.extend(map(make, zip(*inputs, strict=True)))
            parts.append(batch.select([0, *layout.key_positions]))
            if self.kept is not None:
                self.kept.batches.append(batch)
        if not parts:
            return
        groups, *keys = pa.Table.from_batches(parts).combine_chunks().columns
        self._sort(groups.to_numpy(), [column.combine_chunks() for column in keys])
        self._rows = [rows[at] for at in self._order.rows.tolist()]

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[Row]]]:
        """Yield each key, in both its forms, and its rows."""
        first, end = self._order.ranges.get(key_group, (0, 0))
        rows, bounds = self._rows, self._order.bounds
        for at in range(first, end):
            yield self._keys[at], self._shown[at], iter(rows[bounds[at] : bounds[at + 1]])
