"""
Match the keys of rows, in columns.

Keys are found by their hash and then compared, so that two keys of one hash stay two keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any

import numpy as np
import pyarrow as pa

from statelog.state.keys.key_hash import Hashes, hash_columns
from statelog.state.kinds.kind import RowNumbers, Values
from statelog.state.reader.equality import comparable, equal_rows
from statelog.state.reader.ordering import hash_order


def matching_rows(
    left: Sequence[pa.Array], right: Sequence[pa.Array], schema: pa.Schema
) -> RowNumbers:
    """
    Return for each row on the left the row with the same key on the right, or -1.

    Args:
        left: The key columns of one side; no key is in it twice.
        right: Those of the other side, likewise.
        schema: Their types.
    """
    matches = np.full(len(left[0]), -1, np.int64)
    if not len(left[0]) or not len(right[0]):
        return matches
    asked, stored = hash_columns(left, schema), hash_columns(right, schema)
    order = hash_order(stored)
    ordered = stored[order]
    at = np.minimum(np.searchsorted(ordered, asked), len(ordered) - 1)
    hits = np.flatnonzero(ordered[at] == asked)
    rows = order[at[hits]]
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
    """
    Return a number for each row, the same for equal keys, and a row of each number.

    Args:
        columns: The key columns.
        hashes: The hash of each row.
        decode: Makes of the columns the keys as tables hold them; for keys that share a hash.
    """
    if not len(columns[0]):
        none = np.empty(0, np.int64)
        return none, none
    order = hash_order(hashes)
    ordered = hashes[order]
    again = ordered[1:] == ordered[:-1]
    at = np.flatnonzero(again)
    before, after = pa.array(order[at]), pa.array(order[at + 1])
    for column in columns:
        if len(at) and not equal_rows(column.take(before), column.take(after)).all():
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


def _keys(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    values = (list(map(comparable, column.to_pylist())) for column in columns)
    return list(starmap(lambda *key: key, zip(*values, strict=True)))
