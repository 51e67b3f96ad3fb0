"""
An Arrow column that only grows, read by row number.

What is appended is kept as chunks.  The last chunks are merged while they are of similar size, so
that there are few of them and a row is copied only a few times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.state.kinds.kind import RowNumbers

_CHUNK_BYTES: Final = 1 << 30
"""Chunks are not merged beyond this size: an Arrow column of text holds 2 GiB at most."""
_GROWTH: Final = 2
"""Minimum ratio of the rows of a chunk to the rows of the next chunk."""

Part = tuple[pa.Array, int, RowNumbers]
"""A chunk, the number of its first row, and places in the rows asked for."""


class ChunkedColumn:
    """
    Values of any type, as Arrow arrays.

    Args:
        kind: Their Arrow type.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._chunks: list[pa.Array] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(chunk.get_total_buffer_size() for chunk in self._chunks)

    def append(self, column: pa.Array) -> None:
        """Append values of this type."""
        if not len(column):
            return
        chunk, end = column, len(self) + len(column)
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
        """Return the values of *rows*, in their order; nulls for a negative number."""
        parts = self.parts(rows)
        if not parts:
            return pa.nulls(len(rows), self._kind)
        if len(parts) == 1:
            chunk, start, _ = parts[0]
            return chunk.take(_numbers(rows - start))
        pieces = [chunk.take(_numbers(rows[places] - start)) for chunk, start, places in parts]
        # Arrow's own look-up in several chunks copies all of them first.
        order = np.empty(len(rows), np.int64)
        order[np.concatenate([places for _, _, places in parts])] = np.arange(len(rows))
        return pa.concat_arrays(pieces).take(pa.array(order))

    def parts(self, rows: RowNumbers) -> list[Part]:
        """Return the chunks that have some of *rows*; negative numbers are in the first one."""
        if len(self._chunks) == 1:
            return [(self._chunks[0], 0, np.arange(len(rows)))]
        which = np.searchsorted(self._ends, rows, side="right").astype(np.uint16)
        starts = [0, *self._ends]
        order = np.argsort(which, kind="stable")
        bounds = np.searchsorted(which[order], np.arange(len(self._chunks) + 1)).tolist()
        return [
            (chunk, starts[at], order[bounds[at] : bounds[at + 1]])
            for at, chunk in enumerate(self._chunks)
            if bounds[at] < bounds[at + 1]
        ]

    def keep(self, rows: RowNumbers) -> None:
        """Keep only the values of *rows*; they are at 0, 1, ... then."""
        kept = ChunkedColumn(self._kind)
        for some in self._blocks(rows):
            kept.append(self.take(some))
        self._chunks, self._ends = kept._chunks, kept._ends

    def _blocks(self, rows: RowNumbers) -> Iterator[RowNumbers]:
        """Yield rows in blocks that are of about half a chunk, so that texts fit into a column."""
        per_row = self.nbytes // max(len(self), 1) + 1
        count = max(_CHUNK_BYTES // 2 // per_row, 1)
        for start in range(0, len(rows), count):
            yield rows[start : start + count]


def taken(columns: Sequence[pa.Array], rows: RowNumbers) -> list[pa.Array]:
    """Return rows of columns; nulls for a negative number."""
    numbers = _numbers(rows)
    return [column.take(numbers) for column in columns]


def _numbers(rows: RowNumbers) -> pa.Array:
    missing = rows < 0
    return pa.array(rows, mask=missing if missing.any() else None)
