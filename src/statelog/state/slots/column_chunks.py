"""
Arrow columns that only grow, read by row number.

Appended columns are kept as chunks.  The last chunks are merged while they are of similar size, so
that there are few of them and a row is copied only a few times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from statelog.state.kinds.kind import RowNumbers

_CHUNK_BYTES: Final = 1 << 30
"""Chunks are not merged beyond this size: an Arrow column of text holds 2 GiB at most."""
_GROWTH: Final = 2
"""Each chunk has more than so many times the rows of the next one."""

Part = tuple[list[pa.Array], int, RowNumbers]
"""The columns of a chunk, the number of its first row, and places in the rows asked for."""


class ColumnChunks:
    """
    Columns of one length.

    Args:
        types: The Arrow type of each column.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = list(types)
        self._chunks: list[list[pa.Array]] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def nbytes(self) -> int:
        """Size of the columns in bytes."""
        return sum(column.get_total_buffer_size() for chunk in self._chunks for column in chunk)

    def append(self, columns: Sequence[pa.Array]) -> None:
        """Append rows, in columns of these types."""
        chunk = list(columns)
        if not len(chunk[0]):
            return
        end = len(self) + len(chunk[0])
        while self._chunks and self._is_merged_with(chunk):
            before = self._chunks.pop()
            self._ends.pop()
            chunk = [pa.concat_arrays(pair) for pair in zip(before, chunk, strict=True)]
        self._chunks.append(chunk)
        self._ends.append(end)

    def _is_merged_with(self, chunk: list[pa.Array]) -> bool:
        before = self._chunks[-1]
        if len(before[0]) > _GROWTH * len(chunk[0]):
            return False
        return all(
            one.nbytes + other.nbytes <= _CHUNK_BYTES
            for one, other in zip(before, chunk, strict=True)
        )

    def take(self, rows: RowNumbers) -> list[pa.Array]:
        """Return the columns of *rows*, in their order; nulls for a negative number."""
        parts = self.parts(rows)
        if not parts:
            return [pa.nulls(len(rows), kind) for kind in self._types]
        if len(parts) == 1:
            chunk, start, _ = parts[0]
            return taken(chunk, rows - start)
        pieces = [taken(chunk, rows[places] - start) for chunk, start, places in parts]
        # Arrow's own look-up in several chunks copies all of them first.
        order = np.empty(len(rows), np.int64)
        order[np.concatenate([places for _, _, places in parts])] = np.arange(len(rows))
        back = pa.array(order)
        return [pa.concat_arrays(piece).take(back) for piece in zip(*pieces, strict=True)]

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

    def kept(self, rows: RowNumbers) -> ColumnChunks:
        """Return the columns of *rows* only; these stay as they are."""
        kept = ColumnChunks(self._types)
        for some in self._blocks(rows):
            kept.append(self.take(some))
        return kept

    def _blocks(self, rows: RowNumbers) -> Iterator[RowNumbers]:
        """Yield rows in blocks that are of about half a chunk, so that texts fit into a column."""
        per_row = self.nbytes // max(len(self), 1) + 1
        count = max(_CHUNK_BYTES // 2 // per_row, 1)
        for start in range(0, len(rows), count):
            yield rows[start : start + count]


def taken(columns: Sequence[pa.Array], rows: RowNumbers) -> list[pa.Array]:
    """Return rows of columns; nulls for a negative number."""
    missing = rows < 0
    numbers = pa.array(rows, mask=missing if missing.any() else None)
    return [column.take(numbers) for column in columns]
