"""
Arrow columns in another type of the same bytes, or with floats in one form; nested ones too.

Arrow's `cast` rejects a null in a NOT NULL field even where the struct around it is null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

_Leaf: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]
"""(column that is not nested, its type in the result) -> column."""


def relabelled(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """
    Return a column in a type that differs in time zones and in NOT NULL only.

    It takes nulls in a NOT NULL field of a struct that itself is null.
    """
    return column if column.type == kind else _rebuilt(column, kind, _cast)


def with_equal_floats(column: pa.Array) -> pa.Array:
    """Return a column in which 0.0 stands for -0.0, and one NaN for all NaNs."""
    return _rebuilt(column, column.type, _equal_floats) if has_floats(column.type) else column


def has_floats(kind: pa.DataType) -> bool:
    """Return whether values of a type are floats or contain some."""
    if pa.types.is_nested(kind):
        return any(has_floats(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _equal_floats(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_floating(kind):
        return column
    positive = pc.add(column, pa.scalar(0.0, kind))  # -0.0 + 0.0 is 0.0
    return pc.if_else(pc.is_nan(positive), pa.scalar(float("nan"), kind), positive)


def _rebuilt(column: pa.Array, kind: pa.DataType, leaf: _Leaf) -> pa.Array:
    """Return a column in a type of the same form, with its leaves converted."""
    if not pa.types.is_nested(kind):
        return leaf(column, kind)
    if pa.types.is_struct(kind):
        parts = [_rebuilt(column.field(at), field.type, leaf) for at, field in enumerate(kind)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        keys = _rebuilt(column.keys, kind.key_type, leaf)
        items = _rebuilt(column.items, kind.item_type, leaf)
        fields = [kind.key_field, kind.item_field]
        inner = pa.StructArray.from_arrays([keys, items], fields=fields)
    else:
        inner = _rebuilt(column.values, kind.value_type, leaf)
    return pa.Array.from_buffers(
        kind, len(column), column.buffers()[:2], offset=column.offset, children=[inner]
    )
