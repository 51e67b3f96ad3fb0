"""
Match the keys of two sets of rows, in columns.

Keys are found by their hash and then compared, so that two keys of one hash stay two keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any

import numpy as np
import pyarrow as pa

from statelog.state.keys.key_hash import hash_columns
from statelog.state.kinds.kind import RowNumbers
from statelog.state.reader.equality import comparable, equal_rows


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
    found = np.full(len(left[0]), -1, np.int64)
    if not len(left[0]) or not len(right[0]):
        return found
    asked, known = hash_columns(left, schema), hash_columns(right, schema)
    order = np.argsort(known)
    ordered = known[order]
    at = np.minimum(np.searchsorted(ordered, asked), len(ordered) - 1)
    hits = np.flatnonzero(ordered[at] == asked)
    rows = order[at[hits]]
    same = np.ones(len(hits), np.bool_)
    for one, other in zip(left, right, strict=True):
        same &= equal_rows(one.take(pa.array(hits)), other.take(pa.array(rows)))
    if not same.all() or (ordered[1:] == ordered[:-1]).any():
        return _by_value(left, right)  # two keys of one hash
    found[hits] = rows
    return found


def _by_value(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> RowNumbers:
    known = {key: row for row, key in enumerate(_keys(right))}
    return np.array([known.get(key, -1) for key in _keys(left)], np.int64)


def _keys(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    values = (list(map(comparable, column.to_pylist())) for column in columns)
    return list(starmap(lambda *key: key, zip(*values, strict=True)))
