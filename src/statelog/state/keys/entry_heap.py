"""
Entries in columns, accessed by position.

Entries are appended and never changed, so an attempt that fails leaves nothing to undo: the owner
of a heap keeps the position of the entry that counts for each slot.  `keep` drops the others.
Columns of a fixed width are NumPy arrays, which grow by doubling.  Others (texts, lists, structs)
are chunks of Arrow arrays, read by row number.  The last chunks are merged while they are of
similar size, so that there are few of them and a row is copied only a few times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.format.arrow_limits import joined_arrays, take_rows
from statelog.state.kinds.kind import RowNumbers

_CHUNK_BYTES: Final = 1 << 30
"""Chunks are not merged beyond this size: an Arrow column of text holds 2 GiB at most."""
_GROWTH: Final = 2
"""Minimum ratio of the rows of a chunk to the rows of the next chunk."""

Part = tuple[pa.Array, int, RowNumbers]
"""A chunk, the number of its first row, and places in the rows asked for."""

_FIRST_ROWS: Final = 1024
_Scalar = TypeVar("_Scalar", bound=np.generic)


class ChunkedColumn:
    """
    A column of values of any type, stored as several Arrow arrays.

    *what* they are, for the error that they are too large.
    """

    def __init__(self, kind: pa.DataType, what: str = "") -> None:
        self._kind = kind
        self._what = what
        self._chunks: list[pa.Array] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def nbytes(self) -> int:
        """Memory use in bytes."""
        return sum(chunk.get_total_buffer_size() for chunk in self._chunks)

    def append(self, column: pa.Array) -> None:
        """Append values of this type."""
        if not len(column):
            return
        chunk = column
        end = len(self) + len(column)
        # Like the carry of a counter: a row is copied only a few times.
        while self._chunks and self._is_merged_with(chunk):
            chunk = pa.concat_arrays([self._chunks.pop(), chunk])
            self._ends.pop()
        self._chunks.append(chunk)
        self._ends.append(end)

    def _is_merged_with(self, chunk: pa.Array) -> bool:
        before = self._chunks[-1]
        is_similar = len(before) <= _GROWTH * len(chunk)
        return is_similar and before.nbytes + chunk.nbytes <= _CHUNK_BYTES

    def take(self, rows: RowNumbers, _present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Return the values in *rows*, in that order; null for negative row numbers."""
        # Taken from each chunk at once, then put into the order that was asked for.
        parts = self.parts(rows)
        if not parts:
            return pa.nulls(len(rows), self._kind)
        if len(parts) == 1:
            chunk, start, _ = parts[0]
            return take_rows(chunk, _numbers(rows - start), self._what)
        pieces = [
            take_rows(chunk, _numbers(rows[places] - start), self._what)
            for chunk, start, places in parts
        ]
        # Arrow's own look-up in several chunks copies all of them first.
        order = np.empty(len(rows), np.int64)
        order[np.concatenate([places for _, _, places in parts])] = np.arange(len(rows))
        return joined_arrays(pieces, self._what).take(pa.array(order))

    def parts(self, rows: RowNumbers) -> list[Part]:
        """Return the chunks that contain any of *rows*; negative numbers are in the first chunk."""
        if len(self._chunks) == 1:
            return [(self._chunks[0], 0, np.arange(len(rows)))]
        # Sorted by chunk; 16 bits, so that the sort is a radix sort.
        which = np.searchsorted(self._ends, rows, side="right").astype(np.uint16)
        starts = [0, *self._ends]
        order = np.argsort(which, kind="stable")
        bounds = np.searchsorted(which[order], np.arange(len(self._chunks) + 1)).tolist()
        return [
            (chunk, starts[index], order[bounds[index] : bounds[index + 1]])
            for index, chunk in enumerate(self._chunks)
            if bounds[index] < bounds[index + 1]
        ]

    def keep(self, rows: RowNumbers) -> None:
        """Keep only the values in *rows*, and renumber the rows 0, 1, ..."""
        # Into new chunks: an error while memory runs out leaves the old ones as they are.
        remaining = ChunkedColumn(self._kind, self._what)
        for block in self._blocks(rows):
            remaining.append(self.take(block))
        self._chunks = remaining._chunks
        self._ends = remaining._ends

    def _blocks(self, rows: RowNumbers) -> Iterator[RowNumbers]:
        """Yield rows in blocks of about half a chunk, so that their strings fit into one array."""
        per_row = self.nbytes // max(len(self), 1) + 1
        count = max(_CHUNK_BYTES // 2 // per_row, 1)
        for start in range(0, len(rows), count):
            yield rows[start : start + count]


def taken(columns: Sequence[pa.Array], rows: RowNumbers) -> list[pa.Array]:
    """Return the given rows of columns; nulls for negative row numbers."""
    numbers = _numbers(rows)
    return [column.take(numbers) for column in columns]


def _numbers(rows: RowNumbers) -> pa.Array:
    missing = rows < 0
    return pa.array(rows, mask=missing if missing.any() else None)


class _Store(Protocol):
    """The values of one column."""

    @property
    def nbytes(self) -> int:
        """Memory use in bytes."""

    def append(self, column: pa.Array) -> None:
        """Append values."""

    def take(self, positions: RowNumbers, present: npt.NDArray[np.bool_] | None) -> pa.Array:
        """Return the values at *positions*; null where *present* is false (None: all present)."""

    def keep(self, positions: RowNumbers) -> None:
        """Keep only the values at these positions, in this order."""


class EntryHeap:
    """Entries of one variable, accessed by position; errors call an entry *what*."""

    def __init__(self, fields: Sequence[pa.Field], what: str) -> None:
        self.fields = list(fields)
        self._stores: list[_Store] = [
            _store_of(field.type, f"{what} {field.name!r}") for field in fields
        ]
        self.count = 0

    @property
    def nbytes(self) -> int:
        """Memory use in bytes, including the spare capacity."""
        return sum(store.nbytes for store in self._stores)

    def append(self, columns: Sequence[pa.Array]) -> RowNumbers:
        """Append entries and return their positions."""
        length = len(columns[0])
        # Arrow joins columns of equal types only, and NOT NULL inside of a type is part of it.
        typed = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, self.fields, strict=True)
        ]
        for store, column in zip(self._stores, typed, strict=True):
            store.append(column)
        self.count += length
        return np.arange(self.count - length, self.count)

    def take(self, positions: RowNumbers) -> list[pa.Array]:
        """Return the columns of the entries at these positions; nulls for negative positions."""
        present = _present(positions)
        return [store.take(positions, present) for store in self._stores]

    def take_column(self, index: int, positions: RowNumbers) -> pa.Array:
        """Return one column of the entries at these positions; nulls for negative positions."""
        return self._stores[index].take(positions, _present(positions))

    def keep(self, positions: RowNumbers) -> None:
        """Keep only the entries at these positions, and renumber them 0, 1, ..."""
        for store in self._stores:
            store.keep(positions)
        self.count = len(positions)


def _present(positions: RowNumbers) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the positions that contain entries; None if all of them do."""
    present = positions >= 0
    return None if present.all() else present


def _store_of(kind: pa.DataType, what: str) -> _Store:
    if pa.types.is_boolean(kind):
        return _Booleans(kind, np.dtype(np.bool_))
    try:
        bits: int = kind.bit_width
    except ValueError:
        return ChunkedColumn(kind, what)
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or bits % 8:
        return ChunkedColumn(kind, what)
    width = bits // 8
    return _FixedWidth(kind, np.dtype(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}"))


class _FixedWidth:
    """Values of a fixed width, stored as bytes."""

    def __init__(self, kind: pa.DataType, dtype: np.dtype[np.generic]) -> None:
        self._kind = kind
        self._dtype = dtype
        self._values: npt.NDArray[np.generic] = np.zeros(_FIRST_ROWS, dtype)
        self._valid: npt.NDArray[np.bool_] | None = None
        """None while no value is null."""
        self._count = 0

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + (0 if self._valid is None else self._valid.nbytes)

    def append(self, column: pa.Array) -> None:
        end = self._count + len(column)
        if end > len(self._values):
            self._values = _grown(self._values, end)
            if self._valid is not None:
                self._valid = _grown(self._valid, end)
        self._values[self._count : end] = self._read(column)
        if column.null_count and self._valid is None:
            self._valid = np.ones(len(self._values), np.bool_)
        if self._valid is not None:
            self._valid[self._count : end] = column.is_valid().to_numpy(zero_copy_only=False)
        self._count = end

    def _read(self, column: pa.Array) -> npt.NDArray[np.generic]:
        # The bytes as they are; the bytes of a null do not matter.
        data = column.buffers()[1]
        if data is None or not len(column):
            return np.zeros(len(column), self._dtype)
        start = column.offset * self._dtype.itemsize
        return np.frombuffer(data, self._dtype, len(column), start)

    def take(self, positions: RowNumbers, present: npt.NDArray[np.bool_] | None) -> pa.Array:
        # A negative position reads entry 0, whose value the bitmap hides.
        safe = positions if present is None else np.maximum(positions, 0)
        valid = present
        if self._valid is not None:
            valid = self._valid[safe] if present is None else present & self._valid[safe]
        bitmap = None
        if valid is not None and not valid.all():
            bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(
            self._kind, len(positions), [bitmap, self._buffer(self._values.take(safe))]
        )

    def _buffer(self, values: npt.NDArray[np.generic]) -> pa.Buffer:
        return pa.py_buffer(values)

    def keep(self, positions: RowNumbers) -> None:
        size = max(_FIRST_ROWS, len(positions))
        self._values = _grown(self._values[positions], size)
        if self._valid is not None:
            self._valid = _grown(self._valid[positions], size)
        self._count = len(positions)


class _Booleans(_FixedWidth):
    """Booleans, which Arrow packs into bits."""

    def _read(self, column: pa.Array) -> npt.NDArray[np.generic]:
        filled = pc.fill_null(column, False) if column.null_count else column
        values: npt.NDArray[np.generic] = filled.to_numpy(zero_copy_only=False)
        return values

    def _buffer(self, values: npt.NDArray[np.generic]) -> pa.Buffer:
        return pa.py_buffer(np.packbits(values.astype(np.bool_), bitorder="little"))


def _grown(values: npt.NDArray[_Scalar], least: int) -> npt.NDArray[_Scalar]:
    """Return a copy with space for at least *least* values and at least twice the old size."""
    if len(values) >= least:
        return values
    larger = np.zeros(max(least, 2 * len(values)), values.dtype)
    larger[: len(values)] = values
    return larger
