"""
Read the rows of one key that do not fit in memory.

The rows are stored on the local disk in the order of arrival.  One pass over the key columns finds
the key; each request for its rows reads the file from the start.  Where several keys have the same
hash, each is read by a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from statelog.errors import InvariantError
from statelog.spark.rows.formats import RowFormat
from statelog.spark.rows.interface import RowLike
from statelog.spark.rows.key_order import key_order
from statelog.spark.rows.layout import InputLayout
from statelog.state.encoding.values import KeyCodec
from statelog.state.heap.tables import Key

_SLICE_ROWS = 16_384


class HugeKeyInput:
    """
    The rows of one or a few keys on the local disk.

    Args:
        layout: The layout of the input.
        key_codec: The operator's key.
        row_format: Converts rows for the processor.
        nulls: Columns that have a null in any row of the task.
        batches: Returns an iterator over all rows from the start.
    """

    def __init__(
        self,
        layout: InputLayout,
        key_codec: KeyCodec,
        row_format: RowFormat,
        nulls: frozenset[int],
        batches: Callable[[], Iterable[pa.RecordBatch]],
    ) -> None:
        self._layout = layout
        self._codec = key_codec
        self._row_format = row_format
        self._nulls = nulls
        self._batches = batches
        self.row_count = 0
        self._keys: dict[int, dict[Key, Key]] = {}
        for batch in batches():
            self._find_keys(batch)

    def _find_keys(self, batch: pa.RecordBatch) -> None:
        self.row_count += batch.num_rows
        groups = batch.column(0).to_numpy()
        columns = [batch.column(at) for at in self._layout.key_positions]
        order = key_order(groups, columns, self._codec)
        # Read one row of each key: the row format decides how the processor gets the key.
        shown = self._row_format.input(self._layout, self._codec, self._nulls)
        shown.read([batch.take(pa.array(order.firsts))])
        for key_group in shown.key_groups():
            keys = self._keys.setdefault(key_group, {})
            for key, as_shown, _ in shown.keys(key_group):
                keys.setdefault(key, as_shown)

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Raise an error: the rows are on the disk already."""
        raise InvariantError("the rows of a huge key are read from the task's file")

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows, ascending."""
        return sorted(self._keys)

    def table_keys(self, key_group: int) -> list[Key]:
        """Return the keys as tables hold them."""
        return list(self._keys.get(key_group, {}))

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[RowLike]]]:
        """Yield each key, in both its forms, and its rows."""
        for key, shown in self._keys.get(key_group, {}).items():
            yield key, shown, self._rows_of(key_group, key)

    def _rows_of(self, key_group: int, key: Key) -> Iterator[RowLike]:
        for batch in _rebatched(self._of_key(key), self._row_format.rows_at_once or _SLICE_ROWS):
            slice_input = self._row_format.input(self._layout, self._codec, self._nulls)
            slice_input.read([batch])
            for _, _, rows in slice_input.keys(key_group):
                yield from rows

    def _of_key(self, key: Key) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a key in the order of arrival."""
        is_only_key = sum(map(len, self._keys.values())) == 1
        for batch in self._batches():
            if is_only_key:
                yield batch
                continue
            columns = [batch.column(at) for at in self._layout.key_positions]
            order = key_order(batch.column(0).to_numpy(), columns, self._codec)
            firsts = pa.array(order.firsts)
            keys = self._codec.decode([column.take(firsts) for column in columns])
            for at, each in enumerate(keys):
                if each == key:
                    yield batch.take(pa.array(order.rows[order.bounds[at] : order.bounds[at + 1]]))


def _rebatched(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of *rows* rows, the last one smaller."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows - count)
            batch = batch.slice(part.num_rows)
            waiting.append(part)
            count += part.num_rows
            if count == rows:
                yield pa.concat_batches(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.concat_batches(waiting)
