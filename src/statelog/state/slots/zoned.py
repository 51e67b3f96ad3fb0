"""
The types in which a processor of columns gets rows, keys and state.

Spark sends rows in the session's time zone, and fields inside of them may be NOT NULL.  State is
stored in UTC, and any field of it may be null.  Arrow combines columns of equal types only, so a
processor gets all of them in one type: the stored one, in the session's time zone.
"""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

from statelog.state.encoding.values import stored_field

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)


def known_zone(name: str) -> str:
    """Return a time zone that Arrow and Python know; UTC for one that only Java does, as `PST` and `Z`."""
    try:
        pa.lib.string_to_tzinfo(name)
    except Exception:  # of the package by which Arrow finds time zones
        return "UTC"
    return name


def zoned_field(field: pa.Field, zone: str) -> pa.Field:
    """Return *field* in the type in which a processor gets it."""
    stored = stored_field(field)
    return stored.with_type(_in_zone(stored.type, zone))


def zoned(column: _Column, zone: str) -> _Column:
    """Return a column in the type in which a processor gets it; its values are not copied."""
    kind = zoned_field(pa.field("", column.type), zone).type
    return column if column.type == kind else column.cast(kind)


def zoned_table(table: pa.Table, zone: str) -> pa.Table:
    """Return a table in the types in which a processor gets it."""
    fields = [zoned_field(field, zone) for field in table.schema]
    return pa.Table.from_arrays(
        [zoned(column, zone) for column in table.columns], schema=pa.schema(fields)
    )


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """Return a type with its points in time in a zone."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, zone)
    if pa.types.is_struct(kind):
        return pa.struct([_field_in_zone(field, zone) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_field_in_zone(kind.value_field, zone))
    if pa.types.is_map(kind):
        return pa.map_(_field_in_zone(kind.key_field, zone), _field_in_zone(kind.item_field, zone))
    return kind


def _field_in_zone(field: pa.Field, zone: str) -> pa.Field:
    return field.with_type(_in_zone(field.type, zone))
