"""
Sort the rows of a task by key group, then by key.

The order is computed in columns for all rows at once.  A step of Python for each row would cost
more than the rest of reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.state.encoding.converters import to_python, with_equal_floats
from statelog.state.encoding.values import KeyCodec
from statelog.state.keys.key_hash import Hashes
from statelog.state.kinds import Key

RowNumbers = npt.NDArray[np.int64]
KeyGroups = npt.NDArray[np.int32]
"""The key group of each row."""


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """
    The order of a task's rows.

    Args:
        rows: Row numbers by key group and key; rows of one key in order of arrival.
        firsts: Number of the first row of each key, in the order of keys.
        bounds: The position in *rows* where each key begins, then the length of *rows*.
        ranges: Key group -> index of its first key, and of the key after its last; in the order of
            their first rows.
    """

    rows: RowNumbers
    firsts: RowNumbers
    bounds: list[int]
    ranges: dict[int, tuple[int, int]]


NO_ROWS = KeyOrder(np.empty(0, np.int64), np.empty(0, np.int64), [0], {})


@dataclass(slots=True)
class KeptRows:
    """A task's input rows as columns sorted by key, and the distinct keys."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    order: KeyOrder = NO_ROWS
    key_columns: list[pa.Array] = field(default_factory=list)

    def numbers(self, key: int) -> RowNumbers:
        """Return the row numbers of the key at this index."""
        return self.order.rows[self.order.bounds[key] : self.order.bounds[key + 1]]

    def key_at(self, key_group: int, position: int) -> int:
        """Return the index of the key at this position in its key group."""
        return self.order.ranges[key_group][0] + position


class KeyedRows:
    """The sorted keys of a task's rows, for processors that use Rows or frames."""

    def __init__(self, key_codec: KeyCodec) -> None:
        self._codec = key_codec
        self._order = NO_ROWS
        self._keys: list[Key] = []
        self._shown: list[Key] = []
        self.row_count = 0
        self.kept_rows: KeptRows | None = None

    def keep_rows(self) -> None:
        """Keep the rows from `read` as columns, so that the rows of a key can be recorded."""
        self.kept_rows = KeptRows()

    def _sort(self, key_groups: KeyGroups, key_columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Sort the rows, store the keys, and return the columns that the processor needs."""
        self.row_count = len(key_groups)
        self._order = key_order(key_groups, key_columns, self._codec)
        firsts = pa.array(self._order.firsts)
        given_columns = [with_equal_floats(column.take(firsts)) for column in key_columns]
        columns = self._codec.uniform(given_columns)
        if self.kept_rows is not None:
            self.kept_rows.order = self._order
            self.kept_rows.key_columns = columns
        self._keys = self._codec.decode(columns)
        is_given = self._codec.is_plain and all(
            column.type == field.type
            for column, field in zip(given_columns, self._codec.schema, strict=True)
        )
        self._shown = (
            self._keys if is_given else list(zip(*map(to_python, given_columns), strict=True))
        )
        return given_columns

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows, in the order of their first rows."""
        return list(self._order.ranges)

    def table_keys(self, key_group: int) -> list[Key]:
        """Return the keys in the form in which tables store them."""
        return self._keys[slice(*self._order.ranges.get(key_group, (0, 0)))]


def key_order(key_groups: KeyGroups, key_columns: Sequence[pa.Array], codec: KeyCodec) -> KeyOrder:
    """
    Return the order of a task's rows; there must be at least one row.

    Keys of one key group are ordered by first appearance, and so are key groups: the rows of a
    small micro-batch are delivered nearly in order of arrival.
    """
    by_key = rows_by_key(key_columns, codec)
    starts = by_key.starts
    firsts = by_key.rows[starts]
    groups = key_groups[firsts]
    keys = stable_order(groups, int(groups.max()) + 1)
    sizes = (by_key.ends - starts)[keys]
    ends = np.cumsum(sizes)
    # The rows of a key stay together: only the start of each run of rows changes.
    moves = np.repeat(starts[keys] - (ends - sizes), sizes)
    numbers, first_keys = np.unique(groups[keys], return_index=True)
    end_keys = np.append(first_keys[1:], len(keys))
    # Keys are numbered by first appearance, so the first key of a group has its first row.
    order = np.argsort(keys[first_keys])
    spans = zip(first_keys[order].tolist(), end_keys[order].tolist(), strict=True)
    return KeyOrder(
        rows=by_key.rows[moves + np.arange(len(moves))],
        firsts=firsts[keys],
        bounds=[0, *ends.tolist()],
        ranges=dict(zip(numbers[order].tolist(), spans, strict=True)),
    )


class RowsByKey(NamedTuple):
    """The row numbers of each key in arrival order, with the start and end for each key."""

    rows: RowNumbers
    starts: RowNumbers
    ends: RowNumbers
    hashes: Hashes | None = None
    """The hash of each key, if known."""


def rows_by_key(columns: Sequence[pa.Array], codec: KeyCodec) -> RowsByKey:
    """Group rows by key; the keys are in the order of their first rows."""
    codes = row_codes(columns, codec)
    counts = np.bincount(codes)
    ends = np.cumsum(counts)
    return RowsByKey(stable_order(codes, len(counts)), ends - counts, ends)


def stable_order(numbers: RowNumbers | KeyGroups, end: int) -> RowNumbers:
    """
    Return the permutation that stably sorts numbers from 0 to below *end*.

    NumPy sorts 16 bits by counting, several times faster than it sorts wider numbers.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")  # by the lowest 16 bits
    if end > 1 << 16:
        higher = (numbers[order] >> 16).astype(np.uint16)
        order = order[np.argsort(higher, kind="stable")]
    return order


def row_codes(columns: Sequence[pa.Array], codec: KeyCodec) -> RowNumbers:
    """
    Number the keys in order of first appearance, and return the number for each row.

    A null is a key, all NaNs are one key, and 0.0 and -0.0 are one key.
    """
    codes, _ = _column_codes(columns[0], codec, 0)
    for position, column in enumerate(columns[1:], 1):
        column_codes, parts = _column_codes(column, codec, position)
        # New numbers after each column, so that the product cannot overflow.
        codes, _ = _numbered(pa.array(codes * parts + column_codes))
    return codes


def _column_codes(column: pa.Array, codec: KeyCodec, position: int) -> tuple[RowNumbers, int]:
    key_codec = KeyCodec(pa.schema([codec.schema.field(position)]))
    if not pa.types.is_nested(column.type):
        (column,) = key_codec.uniform([column])  # Arrow compares floats by their bits
        try:
            return _numbered(column)
        except pa.ArrowNotImplementedError:
            pass
    numbers: dict[Key, int] = {}
    codes = [numbers.setdefault(key, len(numbers)) for key in key_codec.decode([column])]
    return np.asarray(codes, np.int64), max(len(numbers), 1)


def _numbered(column: pa.Array) -> tuple[RowNumbers, int]:
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)
