"""
Find the key group that the filters of a query leave.

Where all columns of the key are compared with values, the rows are in the key group of that key.  Spark
applies the filters itself as well, so what is not understood here costs time only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.keys.key_groups import key_group_of


def key_groups_left(
    filters: Iterable[object], key: pa.Schema, operator: KeyGroupRange
) -> KeyGroupRange:
    """
    Return the key groups in which rows can be that pass *filters*.

    Args:
        filters: Spark's filters, all of which hold.
        key: The columns of the operator's key.
        operator: All key groups of the operator.
    """
    equal = _equalities(filters)
    left = operator
    number = equal.get((KEY_GROUP_COLUMN,))
    if isinstance(number, int):
        left = left.intersection(KeyGroupRange(number, number)) if number >= 0 else left
    columns = [("key", name) for name in key.names]
    if all(column in equal for column in columns):
        found = _key_group([equal[column] for column in columns], key, operator)
        left = left if found is None else left.intersection(KeyGroupRange(found, found))
    return left


def _equalities(filters: Iterable[object]) -> dict[tuple[str, ...], object]:
    """Return the columns that are compared with one value; Spark 4.0 has no classes of filters."""
    found: dict[tuple[str, ...], object] = {}
    for one in filters:
        if type(one).__name__ == "EqualTo":
            found[tuple(getattr(one, "attribute", ()))] = getattr(one, "value", None)
    return found


def _key_group(values: Sequence[object], key: pa.Schema, operator: KeyGroupRange) -> int | None:
    if None in values:
        return None
    try:
        return operator.start + key_group_of(values, key, len(operator))
    except UsageError:  # a type that only Spark hashes
        return None
