"""
Convert values between the user's Python form, the stored form and Arrow.

One converter is made per Arrow type.  `canonical` gives the one form in which a value is kept, and
raises if the value does not fit.  `to_arrow` and `from_arrow` are needed for few types only; they
give None where Arrow's own conversion is right.

Whole columns become Python values by `to_python`, which are the same as of Arrow's own `to_pylist`.
For times and decimals, which Arrow converts one by one, they are made many at once: a column of
timestamps with a zone takes a twentieth of the time.  Arrow's `cast` rejects a null in a NOT NULL
field even where the struct around it is null; `relabelled` does not.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import UsageError

_LEAST_DAYS: Final = dt.date.min.toordinal() - dt.date(1970, 1, 1).toordinal()
_MOST_DAYS: Final = dt.date.max.toordinal() - dt.date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_Converter: TypeAlias = Callable[[pa.Array], list[object]]

_Leaf: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]
"""(column that is not nested, its type in the result) -> column."""


def to_python(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Convert a column to Python values, like its `to_pylist`."""
    values: list[object]
    convert = _converter(column.type)
    if convert is None:
        values = column.to_pylist()
        return values
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in convert(chunk)]
    return convert(column)


def _converter(kind: pa.DataType) -> _Converter | None:
    """Return the converter for a type, or None if Arrow's own conversion is as fast."""
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
    """Return whether Python can represent every time in a column."""
    # As numbers: `as_py` raises for a time that Python cannot hold.
    numbers = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    bounds = pc.min_max(numbers)
    low = bounds["min"].as_py()
    high = bounds["max"].as_py()
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
    parts = [to_python(field) for field in column.flatten()]
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
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


def _slowly(column: pa.Array) -> list[object]:
    values: list[object] = column.to_pylist()
    return values


def relabelled(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """
    Cast a column to a type that differs only in time zones and NOT NULL.

    It takes nulls in a NOT NULL field of a struct that itself is null.
    """
    return column if column.type == kind else _rebuilt(column, kind, _cast)


def with_equal_floats(column: pa.Array) -> pa.Array:
    """Normalize the floats in a column: -0.0 becomes 0.0, and all NaNs become the same NaN."""
    return _rebuilt(column, column.type, _equal_floats) if has_floats(column.type) else column


def has_floats(kind: pa.DataType) -> bool:
    """Return whether a type is a float or contains one."""
    if pa.types.is_nested(kind):
        return any(has_floats(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _equal_floats(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_floating(kind):
        return column
    positive = pc.add(column, pa.scalar(0.0, kind))  # -0.0 + 0.0 is 0.0
    return pc.if_else(pc.is_nan(positive), pa.scalar(float("nan"), kind), positive)


def _rebuilt(column: pa.Array, kind: pa.DataType, leaf: _Leaf) -> pa.Array:
    """Convert the leaves of a column to a type with the same structure."""
    if not pa.types.is_nested(kind):
        return leaf(column, kind)
    if pa.types.is_struct(kind):
        parts = [
            _rebuilt(column.field(index), field.type, leaf) for index, field in enumerate(kind)
        ]
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


Converter: TypeAlias = Callable[[Any], Any]
"""From a value of the user's or of Arrow's, which may be of any type."""
StructFactory: TypeAlias = Callable[[Sequence[str], Sequence[object]], object]
"""Makes a nested struct of names and values."""
_UTC: Final = pa.lib.string_to_tzinfo("UTC")
"""UTC as the object with which Arrow makes times, so that they need no conversion."""
NAN: Final = float("nan")
"""The one NaN of keys: a NaN equals itself in a dict only as the same object."""


def is_mutable(kind: pa.DataType) -> bool:
    """Return whether values of this type are, or contain, lists or dicts."""
    if pa.types.is_struct(kind):
        return any(is_mutable(field.type) for field in kind)
    return bool(pa.types.is_nested(kind))


def canonical(kind: pa.DataType, factory: StructFactory) -> Converter:
    """Return a converter to the stored form, which rejects values that do not fit the type."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if not names:
            raise UsageError("a struct without fields cannot be stored in state")
        inner = [optional(canonical(field.type, factory), field.nullable) for field in kind]
        return lambda value: factory(
            names,
            [
                convert(field_value)
                for convert, field_value in zip(inner, _parts(value, names), strict=True)
            ],
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = optional(canonical(kind.value_type, factory), kind.value_field.nullable)
        return lambda value: [element(item) for item in _iterable(value)]
    if pa.types.is_map(kind):
        key = canonical(kind.key_type, factory)
        item = optional(canonical(kind.item_type, factory), kind.item_field.nullable)
        return lambda value: {key(k): item(v) for k, v in dict(value).items()}
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    for matches, convert in _CANONICAL_BY_TYPE:
        if matches(kind):
            return convert
    raise UsageError(f"state of type {kind} is not supported")


def optional(convert: Converter, nullable: bool) -> Converter:
    """Return a converter for a field, depending on whether it is nullable."""
    return lambda value: (None if nullable else _missing()) if value is None else convert(value)


def _missing() -> None:
    raise TypeError("it is NOT NULL")


def _iterable(value: object) -> Iterable[object]:
    # Python would take them as a sequence of letters, of numbers, of keys.
    if isinstance(value, str | bytes | Mapping):
        raise TypeError("expected a list")
    return value  # type: ignore[return-value]  # else the loop raises TypeError


def _parts(value: object, names: Sequence[str]) -> Sequence[object]:
    """Return the field values of a struct that is a Row, a dict or a sequence."""
    if isinstance(value, Mapping):
        return [value.get(name) for name in names]
    # A Row whose fields have another order is taken by name, as Spark does.
    fields = getattr(value, "__fields__", None)
    if fields is not None and list(fields) != list(names) and set(fields) == set(names):
        by_name = dict(zip(fields, _iterable(value), strict=True))
        return [by_name[name] for name in names]
    parts = tuple(_iterable(value))
    if len(parts) != len(names):
        raise ValueError(f"{len(parts)} values for the struct fields {', '.join(names)}")
    return parts


def _unwrapped(value: object) -> object:
    """Convert a NumPy scalar to a Python scalar."""
    item = getattr(value, "item", None)
    return item() if item is not None and getattr(value, "shape", None) == () else value


def _integer(value: object) -> int:
    value = _unwrapped(value)
    if type(value) is not int:
        raise TypeError("expected an int")
    return value


def _floating(value: object) -> float:
    value = _unwrapped(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("expected a float")
    return value if type(value) is float else float(value)


def _single(value: object) -> float:
    """Round a float to single precision, which is what a restart would read."""
    return float(struct.unpack("f", struct.pack("f", _floating(value)))[0])


def _string(value: object) -> str:
    value = _unwrapped(value)
    if type(value) is int:  # Spark takes any object's text; an int's is the same everywhere
        return str(value)
    if not isinstance(value, str):
        raise TypeError("expected a str")
    return value if type(value) is str else str(value)


def _binary(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("expected bytes")
    return value if type(value) is bytes else bytes(value)


def _boolean(value: object) -> bool:
    value = _unwrapped(value)
    if type(value) is not bool:
        raise TypeError("expected a bool")
    return value


def _decimal(precision: int, scale: int) -> Converter:
    """Return a converter that rounds half up to the scale, as Spark does."""
    quantum = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_UP)

    def convert(value: object) -> decimal.Decimal:
        if type(value) is int:
            value = decimal.Decimal(value)
        if not isinstance(value, decimal.Decimal):
            raise TypeError("expected a Decimal")
        if not value.is_finite():
            raise ValueError("it is not a finite number")
        try:
            return value.quantize(quantum, context=context)
        except decimal.InvalidOperation as error:
            raise ValueError("it has too many digits") from error

    return convert


def _date(value: object) -> dt.date:
    value = _unwrapped(value)
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise TypeError("expected a date")
    return value


def _datetime(value: object) -> dt.datetime | None:
    if type(value) is dt.datetime:
        return value
    to_datetime = getattr(value, "to_pydatetime", None)
    value = _unwrapped(value) if to_datetime is None else to_datetime()
    if value != value:  # pandas' NaT, which is how a frame shows a null
        return None
    if not isinstance(value, dt.datetime):
        raise TypeError("expected a datetime")
    return value


def _local_datetime(value: object) -> dt.datetime | None:
    moment = _datetime(value)
    return (
        moment
        if moment is None or moment.tzinfo is None
        else moment.astimezone().replace(tzinfo=None)
    )


def _duration(value: object) -> dt.timedelta | None:
    to_timedelta = getattr(value, "to_pytimedelta", None)
    value = _unwrapped(value) if to_timedelta is None else to_timedelta()
    if value != value:
        return None
    if not isinstance(value, dt.timedelta):
        raise TypeError("expected a timedelta")
    return value


def _is_local_timestamp(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


_CANONICAL_BY_TYPE: Final[tuple[tuple[Callable[[pa.DataType], bool], Converter], ...]] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _integer),
    (pa.types.is_float32, _single),
    (pa.types.is_floating, _floating),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), _string),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), _binary),
    (pa.types.is_date, _date),
    (_is_local_timestamp, _local_datetime),
    (pa.types.is_timestamp, _datetime),
    (pa.types.is_duration, _duration),
    (pa.types.is_null, lambda value: None),
)

ALWAYS_CHECKED: Final = frozenset({list, dict, tuple, decimal.Decimal, dt.datetime})
"""Types whose values need a conversion, a copy or a time zone, each time."""


def to_arrow(kind: pa.DataType) -> Converter | None:
    """Return a converter to the form that Arrow accepts, or None if none is needed."""
    if pa.types.is_struct(kind):
        fields = [(field.name, to_arrow(field.type)) for field in kind]
        names = [name for name, _ in fields]
        return lambda value: {
            name: field_value if convert is None or field_value is None else convert(field_value)
            for (name, convert), field_value in zip(fields, _parts(value, names), strict=True)
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = to_arrow(kind.value_type)
        if element is None:
            return None
        return lambda value: [None if item is None else element(item) for item in value]
    if pa.types.is_map(kind):
        key = to_arrow(kind.key_type) or _same
        item = to_arrow(kind.item_type) or _same
        return lambda value: [
            (key(k), None if v is None else item(v)) for k, v in dict(value).items()
        ]
    if _is_local_timestamp(kind):
        return lambda value: value.astimezone(dt.UTC)
    return None


def _same(value: object) -> object:
    return value


def from_arrow(kind: pa.DataType, factory: StructFactory) -> Converter | None:
    """Return a converter from the Python value that Arrow returns, or None if none is needed."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        inner = [from_arrow(field.type, factory) for field in kind]
        return lambda value: factory(
            names,
            [
                value[name] if convert is None or value[name] is None else convert(value[name])
                for name, convert in zip(names, inner, strict=True)
            ],
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = from_arrow(kind.value_type, factory)
        if element is None:
            return None
        return lambda value: [None if item is None else element(item) for item in value]
    if pa.types.is_map(kind):
        key = from_arrow(kind.key_type, factory) or _same
        item = from_arrow(kind.item_type, factory) or _same
        return lambda value: {key(k): None if v is None else item(v) for k, v in value}
    if _is_local_timestamp(kind):
        return lambda value: value.astimezone().replace(tzinfo=None)
    return None


def to_hashable(value: Any, kind: pa.DataType) -> object:
    """
    Convert a part of a key to the form in which tables store it.

    It is hashable, and equal to what equals it in Spark: there is one NaN and one zero, and a point
    in time is in UTC.  Python compares two times of one zone by their clocks, which show an hour of
    autumn twice.
    """
    if isinstance(value, float):
        return equal_float(value)
    if isinstance(value, dict):
        parts = zip(kind, value.values(), strict=True)
        return tuple(to_hashable(field_value, field.type) for field, field_value in parts)
    if isinstance(value, list | tuple):
        if pa.types.is_struct(kind):
            parts = zip(kind, value, strict=True)
            return tuple(to_hashable(field_value, field.type) for field, field_value in parts)
        return tuple(to_hashable(item, kind.value_type) for item in value)
    if isinstance(value, dt.datetime) and _is_local_timestamp(kind):
        return value.astimezone(_UTC)
    return value


def equal_float(value: float) -> float:
    """Normalize a float in a key: -0.0 becomes 0.0, and all NaNs become the same object."""
    return value + 0.0 if value == value else NAN


def equal_key(kind: pa.DataType, factory: StructFactory) -> Converter | None:
    """
    Return a converter that brings map keys into their canonical form.

    Or None.
    """
    if pa.types.is_floating(kind):
        return equal_float
    if not pa.types.is_struct(kind):
        return None
    names = [field.name for field in kind]
    inner = [equal_key(field.type, factory) for field in kind]
    if not any(inner):
        return None
    return lambda value: factory(
        names,
        [
            field_value if convert is None or field_value is None else convert(field_value)
            for convert, field_value in zip(inner, value, strict=True)
        ],
    )


def from_hashable(value: Any, kind: pa.DataType) -> object:
    """Convert a part of a key from its hashable form to the form the user sees."""
    if pa.types.is_struct(kind):
        return {
            field.name: None if value_part is None else from_hashable(value_part, field.type)
            for field, value_part in zip(kind, value, strict=True)
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [
            None if element is None else from_hashable(element, kind.value_type)
            for element in value
        ]
    return value
