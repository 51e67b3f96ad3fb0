"""The Row flavour: each key's rows as an iterator of `Row`s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statelog.spark.key_order import NO_ROWS, key_order
from statelog.spark.types import row_factory
from statelog.state.codec import KeyCodec
from statelog.state.tables import Key


@dataclass(frozen=True, slots=True)
class InputLayout:
    """
    What stands where in the batches of a task: key group, computed key columns, input columns.

    Args:
        key_positions: Where the key columns stand.
        first_input: Where the columns begin that the processor sees.
    """

    key_positions: tuple[int, ...]
    first_input: int


class RowInput:
    """
    The input rows of one task, by key group and key; arrival order within a key is kept.

    Args:
        layout: The layout of the input.
        key_codec: The operator's key.
    """

    def __init__(self, layout: InputLayout, key_codec: KeyCodec) -> None:
        self._layout = layout
        self._codec = key_codec
        self._order = NO_ROWS
        self._rows: list[Any] = []
        self._keys: list[Key] = []
        self._shown: list[Key] = []
        self.row_count = 0

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take in all rows: key group, computed key columns, input columns."""
        layout = self._layout
        parts: list[pa.RecordBatch] = []
        rows: list[Any] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            if not parts:
                make = row_factory(batch.schema.names[layout.first_input :])
            inputs = [column.to_pylist() for column in batch.columns[layout.first_input :]]
            rows.extend(map(make, zip(*inputs, strict=True)))
            parts.append(batch.select([0, *layout.key_positions]))
        if not parts:
            return
        self.row_count = len(rows)
        groups, *keys = pa.Table.from_batches(parts).combine_chunks().columns
        key_columns = [column.combine_chunks() for column in keys]
        self._order = order = key_order(groups.to_numpy(), key_columns, self._codec)
        self._rows = [rows[at] for at in order.rows.tolist()]
        firsts = pa.array(order.firsts)
        parts_of_keys = [column.take(firsts).to_pylist() for column in key_columns]
        self._shown = shown = list(zip(*parts_of_keys, strict=True))
        self._keys = shown if self._codec.is_plain else [self._codec.freeze(key) for key in shown]

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows, ascending."""
        return list(self._order.ranges)

    def table_keys(self, key_group: int) -> list[Key]:
        """Return the keys as tables hold them."""
        return self._keys[slice(*self._order.ranges.get(key_group, (0, 0)))]

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[Any]]]:
        """Yield each key as tables hold it, as the processor sees it, and its rows."""
        first, end = self._order.ranges.get(key_group, (0, 0))
        rows, bounds = self._rows, self._order.bounds
        for at in range(first, end):
            yield self._keys[at], self._shown[at], iter(rows[bounds[at] : bounds[at + 1]])
