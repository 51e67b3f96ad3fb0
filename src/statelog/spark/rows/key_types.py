"""
The types of keys: how statelog compares their values, and which types it rejects.

Spark groups rows by the values of the grouping columns, and statelog finds the state of a key by
the bytes or the Python value of the key.  `KEY_TYPES` says of each type of Spark that both give the
same groups, what is made equal for it, or why the type is rejected when a query starts.
docs/reference/key-types.md is made from it.

A key's type does not say whether a column, or a field inside of it, may be null: a program that
computes the key in another way goes on with the state.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
)

from statelog.errors import UsageError

_BINARY_COLLATION: Final = "UTF8_BINARY"
_MOST_TIME_DIGITS: Final = 6


class KeyUse(enum.Enum):
    """How to compare values of a type when they are keys."""

    EXACT = "exact"
    NORMALISED = "normalised"
    BY_PARTS = "by its parts"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class KeyType:
    """
    A row of the table.

    Args:
        name: The types, as SQL names them.
        classes: The names of their classes in PySpark.
        grouping: Their use as a grouping column, or inside of one.
        map_key: Their use in the key of a map state.
        note: What is made equal; of a rejected type the reason, and what to use instead.
        matches: Whether a type of these classes is meant.
    """

    name: str
    classes: tuple[str, ...]
    grouping: KeyUse
    map_key: KeyUse
    note: str = ""
    matches: Callable[[DataType], bool] = lambda kind: True


def _has_collation(kind: DataType) -> bool:
    # Spark 3.5 does not have collations.
    return getattr(kind, "collation", _BINARY_COLLATION) != _BINARY_COLLATION


def _exceeds_microseconds(kind: DataType) -> bool:
    digits: int = getattr(kind, "precision", 0)
    return digits > _MOST_TIME_DIGITS


def _is_unfit_struct(kind: DataType) -> bool:
    names = kind.names if isinstance(kind, StructType) else []
    return not names or len(set(names)) < len(names)


_EXACT = KeyUse.EXACT
_NORMALISED = KeyUse.NORMALISED
_BY_PARTS = KeyUse.BY_PARTS
_REJECTED = KeyUse.REJECTED

KEY_TYPES: Final = (
    KeyType(
        "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT",
        ("BooleanType", "ByteType", "ShortType", "IntegerType", "LongType"),
        _EXACT,
        _EXACT,
    ),
    KeyType("DECIMAL", ("DecimalType",), _EXACT, _EXACT),
    KeyType(
        "FLOAT, DOUBLE",
        ("FloatType", "DoubleType"),
        _NORMALISED,
        _NORMALISED,
        "0.0 stands for -0.0, and one NaN for all NaNs",
    ),
    KeyType(
        "STRING with a collation other than UTF8_BINARY",
        ("StringType",),
        _REJECTED,
        _REJECTED,
        "Spark compares such text by its collation, and statelog by its bytes. Use text without a collation "
        "that is identical for equal values, such as lower(...) COLLATE UTF8_BINARY",
        _has_collation,
    ),
    KeyType("STRING", ("StringType",), _EXACT, _EXACT),
    KeyType(
        "CHAR, VARCHAR",
        ("CharType", "VarcharType"),
        _EXACT,
        _REJECTED,
        "Spark turns such a grouping column into a STRING. PySpark does not convert a declared one to Arrow: declare STRING",
    ),
    KeyType("BINARY", ("BinaryType",), _EXACT, _EXACT),
    KeyType("DATE", ("DateType",), _EXACT, _EXACT),
    KeyType(
        "TIMESTAMP",
        ("TimestampType",),
        _EXACT,
        _EXACT,
        "a point in time, regardless of the session's time zone. In the key of a map it is a local time, as PySpark "
        "returns it",
    ),
    KeyType("TIMESTAMP_NTZ", ("TimestampNTZType",), _EXACT, _EXACT),
    KeyType(
        "TIMESTAMP_NTZ(7) to (9), TIMESTAMP_LTZ(7) to (9)",
        (),
        _REJECTED,
        _REJECTED,
        "PySpark cannot read the type. Cast it to a timestamp without digits",
    ),
    KeyType(
        "TIME(7) to TIME(9)",
        ("TimeType",),
        _REJECTED,
        _REJECTED,
        "a Python time has microsecond resolution. Cast it to TIME(6), or use its nanoseconds as a BIGINT",
        _exceeds_microseconds,
    ),
    KeyType(
        "TIME(0) to TIME(6)",
        ("TimeType",),
        _EXACT,
        _REJECTED,
        "state cannot store times of day. Use a BIGINT or STRING in the key of a map",
    ),
    KeyType("INTERVAL DAY to SECOND", ("DayTimeIntervalType",), _EXACT, _EXACT),
    KeyType(
        "INTERVAL YEAR, INTERVAL MONTH, calendar intervals",
        ("YearMonthIntervalType", "CalendarIntervalType"),
        _REJECTED,
        _REJECTED,
        "PySpark does not convert it to Arrow. Use its months as an INT, or cast it to STRING",
    ),
    KeyType(
        "VARIANT",
        ("VariantType",),
        _REJECTED,
        _REJECTED,
        "Spark does not group by this type. Use to_json(...) or variant_get(...)",
    ),
    KeyType(
        "GEOMETRY, GEOGRAPHY",
        ("GeometryType", "GeographyType"),
        _REJECTED,
        _REJECTED,
        "Spark does not group by this type. Use ST_AsBinary(...)",
    ),
    KeyType(
        "MAP",
        ("MapType",),
        _REJECTED,
        _REJECTED,
        "Spark does not hash maps. Use map_entries(...) sorted with array_sort, or to_json(...)",
    ),
    KeyType(
        "ARRAY",
        ("ArrayType",),
        _BY_PARTS,
        _REJECTED,
        "the key of a map must be hashable in Python. Use a STRUCT, or to_json(...)",
    ),
    KeyType(
        "STRUCT without fields, or with two fields of the same name",
        ("StructType",),
        _REJECTED,
        _REJECTED,
        "Parquet and Arrow cannot store it. Give it fields with distinct names",
        _is_unfit_struct,
    ),
    KeyType("STRUCT", ("StructType",), _BY_PARTS, _BY_PARTS),
    KeyType("VOID", ("NullType",), _EXACT, _EXACT),
)


# The table is read from the top, so a row for some values of a type comes before the row for all.


def rule_of(kind: DataType) -> KeyType:
    """Return the row for a type; a type that is not in the table gets a row that rejects it."""
    name = type(kind).__name__
    for rule in KEY_TYPES:
        if name in rule.classes and rule.matches(kind):
            return rule
    return KeyType(
        name,
        (name,),
        _REJECTED,
        _REJECTED,
        "this version of statelog does not know the type. Cast it to a different type",
    )


def grouping_keys(columns: StructType) -> StructType:
    """
    Return the grouping columns in the form of key columns.

    All of them, and all inside of them, may be null.
    """
    for field in columns:
        for path, kind in parts_of(field.name, field.dataType):
            rule = rule_of(kind)
            if rule.grouping is _REJECTED:
                raise UsageError(
                    f"the column {path!r} of type {kind.simpleString():.100} cannot be a key: "
                    f"{rule.note}"
                )
    return plain_columns(columns)


def check_map_key(state: str, columns: StructType) -> None:
    """Reject the key of a map state if a field has a type that cannot be a key."""
    for field in columns:
        for path, kind in parts_of(field.name, field.dataType):
            rule = rule_of(kind)
            if rule.map_key is _REJECTED:
                raise UsageError(
                    f"state {state!r}: the field {path!r} of its map key has the type "
                    f"{kind.simpleString():.100}, which is not supported: {rule.note}"
                )


def parts_of(path: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    """Yield a type and its nested types, each with its column or field path."""
    while isinstance(kind, UserDefinedType):
        kind = kind.sqlType()
    yield path, kind
    if isinstance(kind, StructType):
        for field in kind:
            yield from parts_of(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        yield from parts_of(f"{path}[]", kind.elementType)
    elif isinstance(kind, MapType):
        yield from parts_of(f"{path}{{}}", kind.valueType)


def plain_columns(columns: StructType) -> StructType:
    """Make columns nullable at all levels, with STRING in place of CHAR and VARCHAR."""
    return StructType(
        [
            StructField(column.name, plain_type(column.dataType), True, column.metadata)
            for column in columns
        ]
    )


def plain_type(kind: DataType) -> DataType:
    """Convert a type in the same way as `plain_columns`."""
    if isinstance(kind, StructType):
        return plain_columns(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(plain_type(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(plain_type(kind.keyType), plain_type(kind.valueType), True)
    return StringType() if type(kind).__name__ in ("CharType", "VarcharType") else kind
