"""Convert appended changes to the columns of a change set."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.arguments import given
from statelog.errors import KeyGroupOutOfRangeError, UsageError
from statelog.model import ChangeBatch
from statelog.model.state_change import INT32_MAX, ChangeRows, value_bytes

FEW_ROWS = 64
"""Up to this many changes are encoded faster row by row than in columns."""
_FEW_BYTES = 1 << 20


def batch_of_rows(key_groups: array[int], values: list[bytes], value_bytes: int) -> ChangeBatch:
    """
    Return changes that were appended one by one as a batch.

    Neither list may be changed later.  Few changes stay rows: as columns, one change takes more
    than a kilobyte.

    Args:
        key_groups: One for each value.
        values: The changes.
        value_bytes: Their summed length, or more.
    """
    if len(values) <= FEW_ROWS and value_bytes <= _FEW_BYTES:
        return ChangeRows(tuple(key_groups), tuple(values))
    kind = pa.large_binary() if value_bytes > INT32_MAX else pa.binary()
    return ChangeBatch(np.frombuffer(key_groups, dtype=np.int32), pa.array(values, kind))


def as_bytes(value: object) -> bytes:
    """
    Return the bytes of a change as an immutable object.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        check_length(memoryview(value).nbytes)
        return bytes(value)  # a copy: the caller may change its buffer later
    raise UsageError(f"a change must be bytes, not {given(value)}")


def check_length(length: int) -> None:
    """
    Refuse a value that no change set can hold.

    Raises:
        UsageError: *length* is above 2**31-1.
    """
    if length > INT32_MAX:
        raise UsageError(
            f"a change of {length:,} bytes is too long: the limit is {INT32_MAX:,} bytes; split "
            "the value",
            size_bytes=length,
        )


def checked_batch(key_groups: npt.ArrayLike, values: pa.Array | pa.ChunkedArray) -> ChangeBatch:
    """
    Return the columns of a caller as a batch.

    The key groups are copied, the values are not.

    Raises:
        KeyGroupOutOfRangeError: A key group has more than 32 bits.
        UsageError: Lengths differ, types do not fit, or a value is null or too long.
    """
    if isinstance(values, pa.ChunkedArray):
        values = _one_chunk(values)
    column = np.asarray(key_groups)
    if column.ndim != 1 or (column.dtype.kind not in "iu" and len(column)):
        raise UsageError(
            f"key groups must be a one-dimensional array of integers, not {column!r:.80}"
        )
    if not isinstance(values, pa.Array) or not (
        pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    ):
        kind = getattr(values, "type", None)
        shown = given(values) if kind is None else f"an array of {kind}"
        raise UsageError(f"values must be an Arrow array of binary or large_binary, not {shown}")
    if len(column) != len(values):
        raise UsageError(
            f"{len(column)} key groups and {len(values)} values; give one key group for each value"
        )
    if values.null_count:
        raise UsageError(f'{values.null_count} values are null; use b"" for an empty change')
    if (
        column.dtype.itemsize > 4
        and len(column)
        and not ~INT32_MAX <= column.min() <= column.max() <= INT32_MAX
    ):
        raise KeyGroupOutOfRangeError(
            "a key group exceeds 32 bits; use those of the writer's range",
            key_group=int(column.max()),
        )
    if pa.types.is_large_binary(values.type) and value_bytes(values) > INT32_MAX:
        check_length(pc.max(pc.binary_length(values)).as_py())
    return ChangeBatch(column.astype(np.int32), values)


def _one_chunk(values: pa.ChunkedArray) -> pa.Array:
    """Return the chunks as one array, without a copy where there is one chunk."""
    if values.num_chunks == 1:
        return values.chunk(0)
    if pa.types.is_binary(values.type) and values.nbytes > INT32_MAX:
        values = values.cast(pa.large_binary())  # 32-bit offsets are too small
    return pa.concat_arrays(values.chunks) if values.chunks else pa.array([], values.type)
