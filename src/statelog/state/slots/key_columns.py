"""
The keys of an index as Arrow columns that only grow.

Appended columns are kept as chunks.  The last chunks are merged while they are of similar size, so
that there are few of them and a key is copied only a few times.  Keys are equal as the dict tables
see them: a null is a key, all NaNs are one key, and 0.0 and -0.0 are one key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.state.encoding.values import KeyCodec
from statelog.state.kinds.kind import RowNumbers

_CHUNK_BYTES: Final = 1 << 30
"""Chunks are not merged beyond this size: an Arrow column of text holds 2 GiB at most."""
_GROWTH: Final = 2
"""Each chunk has more than so many times the rows of the next one."""


class KeyColumns:
    """
    Key columns, one row per key.

    Args:
        schema: Names and Arrow types of the key columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._chunks: list[list[pa.Array]] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def nbytes(self) -> int:
        """Size of the columns in bytes."""
        return sum(column.get_total_buffer_size() for chunk in self._chunks for column in chunk)

    def append(self, columns: Sequence[pa.Array], rows: RowNumbers) -> None:
        """
        Append the given rows of *columns*.

        Raises:
            pyarrow.ArrowException: A column does not have the type of its field.
        """
        taken = pa.array(rows)
        chunk = [
            (column if column.type == field.type else column.cast(field.type)).take(taken)
            for column, field in zip(columns, self.schema, strict=True)
        ]
        start = len(self)
        while self._chunks and self._is_merged_with(chunk):
            before = self._chunks.pop()
            self._ends.pop()
            chunk = [pa.concat_arrays(pair) for pair in zip(before, chunk, strict=True)]
        self._chunks.append(chunk)
        self._ends.append(start + len(rows))

    def _is_merged_with(self, chunk: list[pa.Array]) -> bool:
        before = self._chunks[-1]
        if len(before[0]) > _GROWTH * len(chunk[0]):
            return False
        return all(
            one.nbytes + other.nbytes <= _CHUNK_BYTES
            for one, other in zip(before, chunk, strict=True)
        )

    def take(self, rows: RowNumbers) -> list[pa.Array]:
        """Return the key columns of these rows, in their order."""
        if not len(rows):
            return [pa.array([], field.type) for field in self.schema]
        parts = self._parts(rows)
        if len(parts) == 1:
            chunk, start, _ = parts[0]
            return _taken(chunk, rows - start)
        pieces = [_taken(chunk, rows[places] - start) for chunk, start, places in parts]
        order = np.empty(len(rows), np.int64)
        order[np.concatenate([places for _, _, places in parts])] = np.arange(len(rows))
        back = pa.array(order)
        return [pa.concat_arrays(piece).take(back) for piece in zip(*pieces, strict=True)]

    def equal(self, rows: RowNumbers, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return whether each of *rows* is the key at the same place of *columns*."""
        if not len(rows):
            return np.empty(0, np.bool_)
        parts = self._parts(rows)
        if len(parts) == 1:
            chunk, start, _ = parts[0]
            return self._same(_taken(chunk, rows - start), columns)
        result = np.empty(len(rows), np.bool_)
        for chunk, start, places in parts:
            result[places] = self._same(
                _taken(chunk, rows[places] - start), _taken(columns, places)
            )
        return result

    def _parts(self, rows: RowNumbers) -> list[tuple[list[pa.Array], int, RowNumbers]]:
        """Return the chunks that have some of *rows*: columns, first row, places in *rows*."""
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

    def _same(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        result = np.ones(len(left[0]), np.bool_)
        for at, (one, other) in enumerate(zip(left, right, strict=True)):
            try:
                result &= _equal(one, other)
                continue
            except pa.ArrowNotImplementedError:
                pass
            codec = KeyCodec(pa.schema([self.schema.field(at)]))
            pairs = zip(codec.decode([one]), codec.decode([other]), strict=True)
            result &= np.fromiter((a == b for a, b in pairs), np.bool_, len(one))
        return result


def _taken(columns: Sequence[pa.Array], rows: RowNumbers) -> list[pa.Array]:
    taken = pa.array(rows)
    return [column.take(taken) for column in columns]


def _equal(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where two columns are equal; raises `pyarrow.ArrowNotImplementedError` for lists."""
    if pa.types.is_struct(one.type):
        result: npt.NDArray[np.bool_] = pc.equal(one.is_null(), other.is_null()).to_numpy(
            zero_copy_only=False
        )
        # The fields of a null are null.
        for left, right in zip(one.flatten(), other.flatten(), strict=True):
            result = result & _equal(left, right)
        return result
    if pa.types.is_nested(one.type):
        raise pa.ArrowNotImplementedError(f"no comparison of {one.type}")
    same = pc.equal(one, other)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    if same.null_count:
        both = pc.and_(one.is_null(), other.is_null())
        same = pc.if_else(same.is_null(), both, same)
    equal: npt.NDArray[np.bool_] = same.to_numpy(zero_copy_only=False)
    return equal
