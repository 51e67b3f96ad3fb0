"""
Sort the rows of a task by the hash of their key, for keys whose hash tells them apart.

One sort of 64-bit numbers groups the rows: the upper bits are those of the hash, the lower ones the
number of the row, so that the rows of a key stay in the order of arrival.  For many rows that takes
three fifths of the time of a dictionary of the keys, and the hashes are needed anyway.  The keys come
in the order in which a `SlotIndex` has them, so that a look-up goes through its memory once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from statelog.spark.rows.key_order import RowsByKey
from statelog.state.keys.key_hash import hash_columns, is_one_to_one

_LEAST_ROWS: Final = 8192
"""With fewer rows the sort saves little, and output in the order of arrival is easier to read."""


def hash_order(columns: Sequence[pa.Array], schema: pa.Schema) -> RowsByKey | None:
    """
    Return the rows by key; None where the hash does not decide, or the rows are few.

    Args:
        columns: The key of each row.
        schema: Names and types of the key.
    """
    length = len(columns[0])
    if length < _LEAST_ROWS or not is_one_to_one(schema) or columns[0].null_count:
        return None
    hashes = hash_columns(columns, schema)
    mask = np.uint64((1 << length.bit_length()) - 1)
    sorted_rows = hashes & ~mask
    sorted_rows |= np.arange(length, dtype=np.uint64)
    sorted_rows.sort()
    rows = (sorted_rows & mask).astype(np.int64)
    sorted_hashes = hashes[rows]
    # Of keys that differ in lower bits only, the rows are mixed: then one of them is out of order.
    if (sorted_hashes[1:] < sorted_hashes[:-1]).any():
        return None
    starts = np.flatnonzero(np.append(True, sorted_hashes[1:] != sorted_hashes[:-1]))
    return RowsByKey(rows, starts, np.append(starts[1:], length), sorted_hashes[starts])
