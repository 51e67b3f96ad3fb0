"""From what callers append to the columns that a change set is made of."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import KeyGroupOutOfRangeError, UsageError
from statelog.model import ChangeBatch
from statelog.model.state_change import ChangeRows

_ARROW_BINARY_MAX = 2**31 - 1
FEW_ROWS = 64
"""Up to this many changes are encoded row by row sooner than in columns."""
_FEW_BYTES = 1 << 20


def batch_of_rows(key_groups: array[int], values: list[bytes], value_bytes: int) -> ChangeBatch:
    """
    Return changes that were appended one by one as a batch; neither list may be changed later.

    Few changes stay rows: as columns, one change takes more than a kilobyte.

    Args:
        key_groups: One for each value.
        values: The changes.
        value_bytes: Their summed length, or more.
    """
    if len(values) <= FEW_ROWS and value_bytes <= _FEW_BYTES:
        return ChangeRows(tuple(key_groups), tuple(values))
    kind = pa.large_binary() if value_bytes > _ARROW_BINARY_MAX else pa.binary()
    return ChangeBatch(np.frombuffer(key_groups, dtype=np.int32), pa.array(values, kind))


def as_bytes(value: object) -> bytes:
    """
    Return a change's bytes as an object that nobody changes any more.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)  # a copy: the caller may change its buffer later
    raise UsageError(f"a change must be bytes, not {type(value).__name__}")


def checked_batch(key_groups: npt.ArrayLike, values: pa.Array[Any]) -> ChangeBatch:
    """
    Return the columns of a caller as a batch; the key groups are copied, the values are not.

    Raises:
        KeyGroupOutOfRangeError: A key group has more than 32 bits.
        UsageError: Lengths differ, types do not fit, or a value is null.
    """
    column = np.asarray(key_groups)
    if column.ndim != 1 or (column.dtype.kind not in "iu" and len(column)):
        raise UsageError(
            f"key groups must be a one-dimensional array of integers, not {column!r:.80}"
        )
    if not isinstance(values, pa.Array) or not (
        pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    ):
        kind = getattr(values, "type", type(values).__name__)
        raise UsageError(f"values must be an Arrow array of binary or large_binary, not {kind}")
    if len(column) != len(values):
        raise UsageError(f"{len(column)} key groups beside {len(values)} values")
    if values.null_count:
        raise UsageError(f"{values.null_count} values are null; a change has bytes, maybe none")
    if (
        column.dtype.itemsize > 4
        and len(column)
        and not -(2**31) <= column.min() <= column.max() < 2**31
    ):
        raise KeyGroupOutOfRangeError(
            "a key group does not even fit 32 bits", key_group=int(column.max())
        )
    return ChangeBatch(column.astype(np.int32), values)
