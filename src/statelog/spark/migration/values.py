"""
Values of a frame of state as those that Spark's state takes.

A worker gets a struct as a dict, a Row or a tuple, a map as a dict or a list of pairs, an array as a
list or one of numpy's, and times as Python's or pandas'.  Which of them depends on the row format
and the version of Spark; what they are is known from the declared type only.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from pyspark.sql import types as T  # noqa: N812

from statelog.errors import UsageError

_EXACT = 2**53
"""Floats hold each whole number below this."""

Plain: TypeAlias = Callable[[Any], Any]
"""Converts a value that is not null."""


def plain_struct(schema: T.StructType, *, is_utc: bool) -> Callable[[Any], tuple[Any, ...]]:
    """
    Return a function that makes a tuple of a struct.

    Args:
        schema: The declared fields, which are those of the struct in their order.
        is_utc: Whether a timestamp without a zone is one of UTC.

    Raises:
        UsageError: In a call: the struct has another number of fields.
    """
    converters = [_optional(_plain(field.dataType, is_utc)) for field in schema.fields]

    def convert(struct: Any) -> tuple[Any, ...]:
        values = tuple(struct.values() if isinstance(struct, Mapping) else struct)
        if len(values) != len(converters):
            raise UsageError(
                f"the initial state has {len(values)} values where init() declares the "
                f"{len(converters)} fields ({', '.join(schema.names)}); declare those of the frame"
            )
        return tuple(convert(value) for convert, value in zip(converters, values, strict=True))

    return convert


def _plain(kind: T.DataType, is_utc: bool) -> Plain:
    match kind:
        case T.StructType():
            # Not a Row, which Spark 4.0 does not take there.
            return plain_struct(kind, is_utc=is_utc)
        case T.ArrayType():
            element = _optional(_plain(kind.elementType, is_utc))
            return lambda values: [element(value) for value in values]
        case T.MapType():
            key = _plain(kind.keyType, is_utc)
            item = _optional(_plain(kind.valueType, is_utc))
            return lambda pairs: {
                key(each): item(value)
                for each, value in (pairs.items() if isinstance(pairs, Mapping) else pairs)
            }
        case T.TimestampType():
            return _timestamp_utc if is_utc else _time
        case T.TimestampNTZType() | T.DateType() | T.DayTimeIntervalType():
            return _time
        case T.BinaryType():
            return bytes
        case T.IntegralType():
            return _whole
        case _:
            return _scalar


def _optional(convert: Plain) -> Plain:
    return lambda value: None if value is None else convert(value)


def _scalar(value: Any) -> Any:
    """Return a value of numpy or pandas as one of Python."""
    if isinstance(value, np.datetime64 | np.timedelta64):  # `item` of nanoseconds is a number
        value = value.astype(f"{'M' if isinstance(value, np.datetime64) else 'm'}8[us]")
    for name in ("to_pydatetime", "to_pytimedelta", "item"):
        if hasattr(value, name):
            return getattr(value, name)()
    return value


def _whole(value: Any) -> int | None:
    """
    Return a whole number, also of a float.

    In frames of Spark before 4.2 an array of whole numbers with a null is an array of floats.

    Raises:
        UsageError: It is so large that the float may be another number.
    """
    if not isinstance(value, float | np.floating):
        return int(value)
    number = float(value)
    if math.isnan(number):
        return None
    if abs(number) >= _EXACT:
        raise UsageError(
            f"the initial state has {number!r} in an array with nulls, where this version of Spark gives "
            "frames floats, which do not hold such numbers exactly. Use a processor of Rows, or Spark "
            "4.2 or later"
        )
    return int(number)


def _time(value: Any) -> Any:
    """Return a time of numpy or pandas as one of Python; None for their missing time."""
    return None if value != value else _scalar(value)


def _timestamp_utc(value: Any) -> dt.datetime | None:
    """Return the moment of a timestamp of UTC."""
    plain: dt.datetime | None = _time(value)
    if plain is None or plain.tzinfo is not None:
        return plain
    return plain.replace(tzinfo=dt.UTC)
