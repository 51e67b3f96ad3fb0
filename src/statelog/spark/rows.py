"""The Row flavour: each key's rows as an iterator of `Row`s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

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
        self._grouped: dict[int, dict[Key, list[Any]]] = {}
        self._shown_keys: dict[Key, Key] = {}
        self.row_count = 0

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take in all rows: key group, computed key columns, input columns."""
        layout = self._layout
        plain = self._codec.is_plain
        grouped = self._grouped
        make = None
        for batch in batches:
            if make is None:
                make = row_factory(batch.schema.names[layout.first_input :])
            columns = [column.to_pylist() for column in batch.columns]
            self.row_count += batch.num_rows
            inputs = zip(*columns[layout.first_input :], strict=True)
            keys: Iterable[Key] = zip(*(columns[at] for at in layout.key_positions), strict=True)
            if not plain:
                keys = self._freeze(keys)
            for key_group, key, row in zip(columns[0], keys, map(make, inputs), strict=True):
                try:
                    grouped[key_group][key].append(row)
                except KeyError:
                    grouped.setdefault(key_group, {}).setdefault(key, []).append(row)

    def _freeze(self, keys: Iterable[Key]) -> Iterator[Key]:
        for key in keys:
            frozen = self._codec.freeze(key)
            self._shown_keys.setdefault(frozen, key)
            yield frozen

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows, ascending."""
        return sorted(self._grouped)

    def table_keys(self, key_group: int) -> Iterable[Key]:
        """Return the keys as tables hold them."""
        return self._grouped[key_group]

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[Any]]]:
        """Yield each key as tables hold it, as the processor sees it, and its rows."""
        keyed = self._grouped.get(key_group, {})
        shown = keyed if self._codec.is_plain else map(self._shown_keys.__getitem__, keyed)
        return zip(keyed, shown, map(iter, keyed.values()), strict=True)
