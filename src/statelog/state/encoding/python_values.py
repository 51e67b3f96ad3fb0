"""
Arrow columns in another form: as Python values, in another type of the same bytes, with equal floats.

The Python values are the same as of Arrow's own `to_pylist`.  For times and decimals, which Arrow
converts one by one, they are made many at once: a column of timestamps with a zone takes a twentieth of
the time.  Arrow's `cast` rejects a null in a NOT NULL field even where the struct around it is null;
`relabelled` does not.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LEAST_DAYS: Final = dt.date.min.toordinal() - dt.date(1970, 1, 1).toordinal()
_MOST_DAYS: Final = dt.date.max.toordinal() - dt.date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_Converter: TypeAlias = Callable[[pa.Array], list[object]]

_Leaf: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]
"""(column that is not nested, its type in the result) -> column."""


def to_python(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return the values of a column, as its `to_pylist` does."""
    values: list[object]
    convert = _converter(column.type)
    if convert is None:
        values = column.to_pylist()
        return values
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in convert(chunk)]
    return convert(column)


def _converter(kind: pa.DataType) -> _Converter | None:
    """Return the converter of a type; None where Arrow's own is as fast."""
    if pa.types.is_timestamp(kind):
        if kind.unit != "us":
            return None
        return _naive_timestamps if kind.tz is None else _zoned_timestamps
    if pa.types.is_date32(kind):
        return _dates
    if pa.types.is_duration(kind):
        return _durations if kind.unit == "us" else None
    if pa.types.is_decimal128(kind):
        return _decimals
    if pa.types.is_struct(kind):
        slow = any(_converter(field.type) is not None for field in kind)
        names = {field.name for field in kind}
        return _structs if slow and len(names) == kind.num_fields else None
    if pa.types.is_list(kind):
        return None if _converter(kind.value_type) is None else _lists
    return None


def _in_range(column: pa.Array, least: int, most: int) -> bool:
    """Return whether all values of a column of times are such that Python has them."""
    numbers = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return low is None or (least <= low and high <= most)


def _from_numpy(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _dates(column: pa.Array) -> list[object]:
    # For a value that Python cannot hold NumPy gives a number, and Arrow raises an error.
    return _from_numpy(column) if _in_range(column, _LEAST_DAYS, _MOST_DAYS) else _slowly(column)


def _durations(column: pa.Array) -> list[object]:
    # The smallest number is NumPy's null.
    fits = _in_range(column, np.iinfo(np.int64).min + 1, np.iinfo(np.int64).max)
    return _from_numpy(column) if fits else _slowly(column)


def _naive_timestamps(column: pa.Array) -> list[object]:
    fits = _in_range(column, _LEAST_DAYS * _DAY_US, (_MOST_DAYS + 1) * _DAY_US - 1)
    return _from_numpy(column) if fits else _slowly(column)


def _zoned_timestamps(column: pa.Array) -> list[object]:
    # A zone moves a time by less than a day.
    if not _in_range(column, (_LEAST_DAYS + 1) * _DAY_US, _MOST_DAYS * _DAY_US - 1):
        return _slowly(column)
    zone = pa.lib.string_to_tzinfo(column.type.tz)
    combine = dt.datetime.combine
    # Python's own replace(tzinfo=...) takes five times as long as this.
    values: list[object] = [
        None if value is None else combine(value, value.time(), zone)
        for value in _from_numpy(column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")))
    ]
    if column.type.tz == "UTC":
        return values
    local = zone.fromutc
    return [None if value is None else local(value) for value in values]


def _decimals(column: pa.Array) -> list[object]:
    return _from_numpy(column)


def _structs(column: pa.Array) -> list[object]:
    names = [field.name for field in column.type]
    parts = [to_python(part) for part in column.flatten()]
    values: list[object] = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
    return _with_nulls(column, values)


def _lists(column: pa.Array) -> list[object]:
    parts = to_python(column.flatten())  # without the elements of a null
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
    ends = accumulate(lengths)
    values: list[object] = [
        parts[end - length : end] for end, length in zip(ends, lengths, strict=True)
    ]
    return _with_nulls(column, values)


def _with_nulls(column: pa.Array, values: list[object]) -> list[object]:
    if column.null_count:
        for at in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[at] = None
    return values


def _slowly(column: pa.Array) -> list[object]:
    values: list[object] = column.to_pylist()
    return values


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
