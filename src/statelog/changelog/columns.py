"""Convert appended changes to the columns of a change set."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.arguments import given
from statelog.errors import KeyGroupOutOfRangeError, UsageError
from statelog.model import ChangeBatch
from statelog.model.state_change import INT32_MAX, ChangeRows, Int32Array, value_bytes

Appended = list[Any]
"""For each change its key group, then its value; for each batch None, then batch and size."""

FEW_ROWS = 64
"""
Up to this many changes are encoded faster row by row than in columns.

As columns, one change takes more than a kilobyte.
"""
_FEW_BYTES = 1 << 20


def batches_of(
    key_groups: list[Any], values: list[Any], has_batches: bool
) -> tuple[tuple[ChangeBatch, ...], int]:
    """
    Return what was appended, in order, as batches, and its size in bytes.

    Args:
        key_groups: The key group of each change that was appended alone; None for a batch.
        values: The bytes of each change, or a batch and its size in bytes.
        has_batches: False if every change was appended alone.
    """
    if not has_batches:
        rows = _batch_of_rows(key_groups, values)
        return (rows,), rows.size_bytes
    batches: list[ChangeBatch] = []
    size_bytes = start = 0
    while start < len(values):
        try:
            end = key_groups.index(None, start)
        except ValueError:
            end = len(values)
        if end > start:
            rows = _batch_of_rows(key_groups[start:end], values[start:end])
            batches.append(rows)
            size_bytes += rows.size_bytes
        for batch, batch_bytes in values[end : end + 1]:
            batches.append(batch)
            size_bytes += batch_bytes
        start = end + 1
    return tuple(batches), size_bytes


def _batch_of_rows(key_groups: list[int], values: list[bytes]) -> ChangeBatch:
    """Return changes that were appended one by one as a batch; few of them stay rows."""
    if len(values) <= FEW_ROWS and sum(map(len, values)) <= _FEW_BYTES:
        return ChangeRows(tuple(key_groups), tuple(values))
    column = pa.array(values, pa.binary())
    if isinstance(column, pa.ChunkedArray):  # 32-bit offsets are too small
        column = pa.array(values, pa.large_binary())
    return ChangeBatch(_key_group_column(key_groups), column)


def _key_group_column(key_groups: list[int]) -> Int32Array:
    try:
        return np.frombuffer(bytes(key_groups), np.uint8).astype(np.int32)  # a third of the time
    except ValueError:  # metadata, or a key group above 255
        return np.frombuffer(array("i", key_groups), dtype=np.int32)


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
