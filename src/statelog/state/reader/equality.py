"""
Compare state in columns: which rows of two columns hold equal state.

Equal means equal for a reader of state, which is not what Arrow's kernels mean by it: NaN equals
itself, 0.0 and -0.0 differ, null equals null, and a field that is null equals one that the other
schema does not have.  Elements of a list and entries of a map are compared in their order.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask: TypeAlias = npt.NDArray[np.bool_]
"""One switch for each row."""


def equal_rows(left: pa.Array, right: pa.Array) -> Mask:
    """
    Return for each row whether both columns hold equal state in it.

    Args:
        left: A column.
        right: Another one as long; its type may be of another schema.
    """
    valid, other = valid_rows(left), valid_rows(right)
    both = valid & other
    if not both.any():
        return ~(valid | other)
    equal = _equal_values(left, right, both)
    equal &= both
    equal |= ~(valid | other)
    return equal


def valid_rows(column: pa.Array) -> Mask:
    """Return for each row whether it is not null."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def comparable(value: Any) -> Any:
    """
    Return a hashable form of a Python value that is equal for equal state.

    It defines what `equal_rows` computes in columns, and serves types that have no kernel there.
    """
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return frozenset(
            (name, comparable(each)) for name, each in value.items() if each is not None
        )
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return value


def _equal_values(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    """Return whether the values are equal; any result where *both* is False."""
    kind, other = left.type, right.type
    if pa.types.is_floating(kind) and pa.types.is_floating(other):
        return _equal_floats(left, right)
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        return _equal_structs(left, right)
    if _is_list(kind) and _is_list(other):
        return _equal_lists(left, right, both)
    if pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(other) and kind != other:
        left, right = left.cast(pa.int64()), right.cast(pa.int64())
    if left.type == right.type and not pa.types.is_nested(kind):
        try:
            return _mask(pc.equal(left, right))
        except pa.ArrowNotImplementedError:
            pass  # a type without the kernel
    pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
    return np.array([comparable(old) == comparable(new) for old, new in pairs], np.bool_)


def _equal_floats(left: pa.Array, right: pa.Array) -> Mask:
    """Compare bits, so that zeros differ by their sign; every NaN is the same."""
    values, other = (
        pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        for column in (left, right)
    )
    equal: Mask = values.view(np.int64) == other.view(np.int64)
    equal |= np.isnan(values) & np.isnan(other)
    return equal


def _equal_structs(left: pa.Array, right: pa.Array) -> Mask:
    fields = [dict(zip(each.type.names, each.flatten(), strict=True)) for each in (left, right)]
    equal = np.ones(len(left), np.bool_)
    for name in dict.fromkeys((*fields[0], *fields[1])):
        old, new = fields[0].get(name), fields[1].get(name)
        if old is None or new is None:
            equal &= ~valid_rows(new if old is None else old)
        else:
            equal &= equal_rows(old, new)
    return equal


def _equal_lists(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    lengths = [_lengths(each) for each in (left, right)]
    equal: Mask = (lengths[0] == lengths[1]) & both
    compared = equal & (lengths[0] > 0)
    if not compared.any():
        return equal
    if not compared.all():
        keep = pa.array(compared)
        left, right = left.filter(keep), right.filter(keep)
    same = equal_rows(*(_elements(each) for each in (left, right)))
    starts = np.concatenate(([0], np.cumsum(lengths[0][compared])[:-1]))
    equal[compared] = np.logical_and.reduceat(same, starts)
    return equal


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the length of each list; 0 for a null."""
    if pa.types.is_map(column.type):
        lengths: npt.NDArray[np.int64] = np.diff(column.offsets.to_numpy()).astype(np.int64)
        lengths[~valid_rows(column)] = 0
        return lengths
    counts: npt.NDArray[np.int64] = pc.fill_null(
        pc.list_value_length(column).cast(pa.int64()), 0
    ).to_numpy()
    return counts


def _elements(column: pa.Array) -> pa.Array:
    """Return the elements of lists that are not null."""
    if not pa.types.is_map(column.type):
        return column.flatten()
    start, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
    parts = [column.keys.slice(start, stop - start), column.items.slice(start, stop - start)]
    return pa.StructArray.from_arrays(parts, names=["key", "value"])


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def _mask(equal: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
    return mask.copy()
