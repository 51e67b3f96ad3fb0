"""
Sort, compare and match rows that are stored in columns.

Keys are looked up by their hash and then compared, so that two keys of one hash stay two keys.

Rows are equal if they are equal for a reader of state, which is not what Arrow's kernels mean by
it: NaN equals itself, 0.0 and -0.0 differ, null equals null, and a field that is null equals one
that the other schema does not have.  Elements of a list and entries of a map are compared in their
order.

Sorting is many times faster than numpy's `argsort`: a number and the position of its row are packed
into one word, and the words are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.state.keys.key_hash import Hashes, hash_columns
from statelog.state.kinds.kind import RowNumbers, Values

_WORD_BITS = 63

Mask: TypeAlias = npt.NDArray[np.bool_]
"""One switch for each row."""


def stable_order(numbers: npt.NDArray[np.int64]) -> RowNumbers:
    """Return the permutation that stably sorts *numbers*, which must not be negative."""
    bits = len(numbers).bit_length()
    most = int(numbers.max(initial=0))
    if most.bit_length() + bits > _WORD_BITS:
        order: RowNumbers = np.argsort(numbers, kind="stable")
        return order
    words = (numbers << bits) | np.arange(len(numbers))
    words.sort()
    words &= (1 << bits) - 1
    return words


def hash_order(hashes: Hashes) -> RowNumbers:
    """Return the permutation that stably sorts *hashes*."""
    bits = len(hashes).bit_length()
    mask = np.uint64((1 << bits) - 1)
    words = (hashes & ~mask) | np.arange(len(hashes), dtype=np.uint64)
    words.sort()
    order = (words & mask).astype(np.int64)
    words >>= np.uint64(bits)
    # Hashes that differ only in the bits that gave way are put in order here; there are few.
    ordered = hashes[order]
    same = words[1:] == words[:-1]
    for row in np.flatnonzero(same & (ordered[1:] != ordered[:-1])).tolist():
        start = np.searchsorted(words, words[row])
        stop = np.searchsorted(words, words[row], "right")
        equal_words = order[start:stop]
        order[start:stop] = equal_words[np.argsort(hashes[equal_words], kind="stable")]
    return order


def numbered(
    numbers: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], RowNumbers]:
    """Return the distinct numbers, ascending, and the index of each row's number among them."""
    order = stable_order(numbers)
    ordered = numbers[order]
    starts = np.concatenate((np.ones(min(len(order), 1), np.bool_), ordered[1:] != ordered[:-1]))
    index = np.empty(len(order), np.int64)
    index[order] = np.cumsum(starts) - 1
    return ordered[starts], index


def equal_rows(left: pa.Array, right: pa.Array) -> Mask:
    """
    Return, for each row, whether both columns contain equal state.

    Args:
        left: A column.
        right: Another one as long; its type may be of another schema.
    """
    valid = valid_rows(left)
    other = valid_rows(right)
    both = valid & other
    if not both.any():
        return ~(valid | other)
    equal = _equal_values(left, right, both)
    equal &= both
    equal |= ~(valid | other)
    return equal


def valid_rows(column: pa.Array) -> Mask:
    """Return, for each row, whether it is not null."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def any_valid(columns: Sequence[pa.Array], rows: int) -> Mask:
    """Return, for each row, whether it is not null in at least one column."""
    is_valid = np.zeros(rows, np.bool_)
    for column in columns:
        is_valid |= valid_rows(column)
    return is_valid


def comparable(value: object) -> object:
    """
    Return a hashable form of a Python value that is equal for equal state.

    It defines what `equal_rows` computes in columns, and serves types that have no kernel there.
    """
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return frozenset(
            (name, comparable(inner)) for name, inner in value.items() if inner is not None
        )
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return value


def _equal_values(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    """Return whether the values are equal; where *both* is False, the result is arbitrary."""
    kind = left.type
    other = right.type
    if pa.types.is_floating(kind) and pa.types.is_floating(other):
        return _equal_floats(left, right)
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        return _equal_structs(left, right)
    if _is_list(kind) and _is_list(other):
        return _equal_lists(left, right, both)
    if pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(other) and kind != other:
        left = left.cast(pa.int64())
        right = right.cast(pa.int64())
    if left.type == right.type and not pa.types.is_nested(kind):
        try:
            return _mask(pc.equal(left, right))
        except pa.ArrowNotImplementedError:
            pass  # a type without the kernel
    pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
    return np.array([comparable(old) == comparable(new) for old, new in pairs], np.bool_)


def _equal_floats(left: pa.Array, right: pa.Array) -> Mask:
    """Compare floats by their bits, so that zeros differ by sign and all NaNs are equal."""
    values, other = (
        pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        for column in (left, right)
    )
    equal: Mask = values.view(np.int64) == other.view(np.int64)
    equal |= np.isnan(values) & np.isnan(other)
    return equal


def _equal_structs(left: pa.Array, right: pa.Array) -> Mask:
    fields = [
        dict(zip(column.type.names, column.flatten(), strict=True)) for column in (left, right)
    ]
    equal = np.ones(len(left), np.bool_)
    for name in dict.fromkeys((*fields[0], *fields[1])):
        old = fields[0].get(name)
        new = fields[1].get(name)
        if old is None or new is None:
            equal &= ~valid_rows(new if old is None else old)
        else:
            equal &= equal_rows(old, new)
    return equal


def _equal_lists(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    lengths = [lengths_of(column) for column in (left, right)]
    equal: Mask = (lengths[0] == lengths[1]) & both
    compared = equal & (lengths[0] > 0)
    if not compared.any():
        return equal
    if not compared.all():
        keep = pa.array(compared)
        left = left.filter(keep)
        right = right.filter(keep)
    same = equal_rows(*(_elements(column) for column in (left, right)))
    starts = np.concatenate(([0], np.cumsum(lengths[0][compared])[:-1]))
    equal[compared] = np.logical_and.reduceat(same, starts)
    return equal


def lengths_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the length of each list, with 0 for a null list."""
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
    start = column.offsets[0].as_py()
    stop = column.offsets[-1].as_py()
    parts = [column.keys.slice(start, stop - start), column.items.slice(start, stop - start)]
    return pa.StructArray.from_arrays(parts, names=["key", "value"])


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def _mask(equal: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
    return mask.copy()


def matching_rows(
    left: Sequence[pa.Array], right: Sequence[pa.Array], schema: pa.Schema
) -> RowNumbers:
    """
    Return, for each row on the left, the row on the right with the same key, or -1.

    Args:
        left: The key columns of one side; no key is in it twice.
        right: Those of the other side, likewise.
        schema: Their types.
    """
    matches = np.full(len(left[0]), -1, np.int64)
    if not len(left[0]) or not len(right[0]):
        return matches
    asked = hash_columns(left, schema)
    stored = hash_columns(right, schema)
    order = hash_order(stored)
    ordered = stored[order]
    places = np.minimum(np.searchsorted(ordered, asked), len(ordered) - 1)
    hits = np.flatnonzero(ordered[places] == asked)
    rows = order[places[hits]]
    same = np.ones(len(hits), np.bool_)
    for column, other in zip(left, right, strict=True):
        same &= equal_rows(column.take(pa.array(hits)), other.take(pa.array(rows)))
    if not same.all() or (ordered[1:] == ordered[:-1]).any():
        return _by_value(left, right)  # two keys of one hash
    matches[hits] = rows
    return matches


def numbered_keys(
    columns: Sequence[pa.Array], hashes: Hashes, decode: Callable[..., list[Values]]
) -> tuple[RowNumbers, RowNumbers]:
    """Number rows so that equal keys get the same number; return one row for each number."""
    if not len(columns[0]):
        none = np.empty(0, np.int64)
        return none, none
    order = hash_order(hashes)
    ordered = hashes[order]
    again = ordered[1:] == ordered[:-1]
    repeated = np.flatnonzero(again)
    before = pa.array(order[repeated])
    after = pa.array(order[repeated + 1])
    for column in columns:
        if len(repeated) and not equal_rows(column.take(before), column.take(after)).all():
            return _numbered_by_value(decode(columns))
    starts = np.concatenate(([True], ~again))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(starts) - 1
    return numbers, order[starts]


def _numbered_by_value(keys: Sequence[Values]) -> tuple[RowNumbers, RowNumbers]:
    numbered: dict[Values, int] = {}
    numbers = np.array([numbered.setdefault(key, len(numbered)) for key in keys], np.int64)
    return numbers, np.unique(numbers, return_index=True)[1]


def _by_value(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> RowNumbers:
    rows_by_key = {key: row for row, key in enumerate(_keys(right))}
    return np.array([rows_by_key.get(key, -1) for key in _keys(left)], np.int64)


def _keys(columns: Sequence[pa.Array]) -> list[tuple[object, ...]]:
    values = (list(map(comparable, column.to_pylist())) for column in columns)
    return list(starmap(lambda *key: key, zip(*values, strict=True)))


def change_words(numbers: npt.NDArray[np.int8]) -> pa.Array:
    """Return "insert", "update" and "delete" for the numbers 0, 1 and 2."""
    return pa.array(("insert", "update", "delete")).take(pa.array(numbers))
