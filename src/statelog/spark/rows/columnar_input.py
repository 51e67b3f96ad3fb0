"""Read the input as columns: the distinct keys, and one table of rows sorted by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from statelog.errors import InvariantError
from statelog.spark.rows.hash_order import hash_order
from statelog.spark.rows.interface import RowLike
from statelog.spark.rows.key_order import rows_by_key
from statelog.spark.rows.layout import InputLayout
from statelog.state.encoding.values import KeyCodec
from statelog.state.heap.tables import Key
from statelog.state.slots import Keys, zoned_table


class ColumnarInput:
    """
    The input rows of one task, in columns.

    Args:
        layout: The layout of the input.
        key_codec: The operator's key.
        is_distinct: Whether each key has one row.
    """

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
        """Read all rows: key group, computed key columns, input columns."""
        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        table = pa.Table.from_batches(parts).combine_chunks()
        self.row_count = table.num_rows
        key_groups = table.column(0).to_numpy()
        columns = [_whole(table.column(at)) for at in self._layout.key_positions]
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
        taken = pa.array(firsts)
        keys = self._codec.uniform([column.take(taken) for column in columns])
        self._keys = Keys(self._codec.schema, keys, key_groups[firsts], starts, ends, hashes)
        self._rows = rows.take(pa.array(order))

    def keyed(self, zone: str) -> tuple[Keys, pa.Table] | None:
        """
        Return the keys and the rows, or None without any row.

        Args:
            zone: The session's time zone, in which points in time are shown.
        """
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
        """Refuse: the keys of a columnar input are columns."""
        raise InvariantError("a columnar input has no keys as objects")

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[RowLike]]]:
        """Refuse, as `table_keys`."""
        raise InvariantError("a columnar input has no keys as objects")


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
