"""
The keys of an index as Arrow columns that only grow.

Keys are equal as the dict tables see them: a null is a key, all NaNs are one key, and 0.0 and -0.0
are one key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.state.encoding.values import KeyCodec
from statelog.state.kinds.kind import RowNumbers
from statelog.state.slots.chunked_column import taken
from statelog.state.slots.entry_heap import EntryHeap


class KeyColumns:
    """
    Key columns, one row per key.

    Args:
        schema: Names and Arrow types of the key columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._keys = EntryHeap(list(schema))

    def __len__(self) -> int:
        return self._keys.count

    @property
    def nbytes(self) -> int:
        """Size of the columns in bytes."""
        return self._keys.nbytes

    def append(self, columns: Sequence[pa.Array], rows: RowNumbers) -> None:
        """
        Append the given rows of *columns*.

        Raises:
            pyarrow.ArrowException: A column does not fit the type of its field.
        """
        self._keys.append(taken(columns, rows))

    def take(self, rows: RowNumbers) -> list[pa.Array]:
        """Return the key columns of these rows, in their order."""
        return self._keys.take(rows)

    def equal(self, rows: RowNumbers, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return whether each of *rows* is the key at the same place of *columns*."""
        result = np.ones(len(rows), np.bool_)
        for at, (one, other) in enumerate(zip(self.take(rows), columns, strict=True)):
            same = _equal(one, other)
            if same is None:
                codec = KeyCodec(pa.schema([self.schema.field(at)]))
                pairs = zip(codec.decode([one]), codec.decode([other]), strict=True)
                same = np.fromiter((a == b for a, b in pairs), np.bool_, len(one))
            result &= same
        return result


def _equal(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return where two columns are equal; None for types that Arrow does not compare."""
    if pa.types.is_struct(one.type):
        result: npt.NDArray[np.bool_] = pc.equal(one.is_null(), other.is_null()).to_numpy(
            zero_copy_only=False
        )
        # The fields of a null are null.
        for left, right in zip(one.flatten(), other.flatten(), strict=True):
            same_field = _equal(left, right)
            if same_field is None:
                return None
            result = result & same_field
        return result
    if pa.types.is_nested(one.type):
        return None
    try:
        same = pc.equal(one, other)
    except pa.ArrowNotImplementedError:
        return None
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    if same.null_count:
        both = pc.and_(one.is_null(), other.is_null())
        same = pc.if_else(same.is_null(), both, same)
    equal: npt.NDArray[np.bool_] = same.to_numpy(zero_copy_only=False)
    return equal
