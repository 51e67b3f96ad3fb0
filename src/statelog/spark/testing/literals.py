"""
Write recorded values and names as Python code, for a test that a person reads.

The only place that turns stored text into source: `quoted` makes a string literal of it, `comment` a
comment.  A name becomes an identifier only if it is one and no keyword.
"""

from __future__ import annotations

import datetime as dt
import decimal
import keyword
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from statelog.errors import UsageError
from statelog.plain_text import one_line
from statelog.spark.rows.types import sql_name

WIDTH: Final = 96
"""Longest line of a written test, where its literals allow it."""
_AS_REPR: Final = (bool, int, bytes, bytearray)


class Literals:
    """
    Writes values as code, and notes what the code needs.

    Attributes: `imports`: lines to import; `has_local`: whether `local` is called, which makes the
    naive local times that state holds; `has_nan`: whether a NaN was written.
    """

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.has_local = False
        self.has_nan = False

    def take(self, other: Literals) -> None:
        """Note what other code needs too."""
        self.imports |= other.imports
        self.has_local |= other.has_local
        self.has_nan |= other.has_nan

    def of(self, value: object, kind: pa.DataType | None = None, *, in_state: bool = False) -> str:
        """
        Return a value as code.

        Args:
            value: The value.
            kind: Its Arrow type, which has the time zone; None if unknown.
            in_state: Whether it is read from state, where times are naive and local.
        """
        if isinstance(value, Row) and hasattr(value, "__fields__"):
            return self._row(value, kind, in_state)
        if isinstance(value, Mapping):
            return self._mapping(value, kind, in_state)
        if isinstance(value, list):
            inner = kind.value_type if kind is not None and _is_list(kind) else None
            return f"[{', '.join(self.of(each, inner, in_state=in_state) for each in value)}]"
        if isinstance(value, tuple):
            return self.values(value, None, in_state=in_state)
        if isinstance(value, float):
            return self._float(value)
        if isinstance(value, decimal.Decimal):
            self.imports.add("from decimal import Decimal")
            return f'Decimal("{value}")'
        if isinstance(value, dt.date | dt.timedelta | dt.time):
            return self._time(value, kind, in_state)
        if isinstance(value, str):
            return quoted(value)
        if value is None or isinstance(value, _AS_REPR):
            return repr(value)
        return self._other(value, kind, in_state)

    def _other(self, value: object, kind: pa.DataType | None, in_state: bool) -> str:
        if hasattr(value, "tolist"):  # of NumPy
            return self.of(value.tolist(), kind, in_state=in_state)
        raise UsageError(f"a value of type {type(value).__name__} cannot be written as code")

    def values(
        self, values: Sequence[object], schema: pa.Schema | None, *, in_state: bool = False
    ) -> str:
        """Return the values of the fields of *schema* as a tuple."""
        kinds = [None] * len(values) if schema is None else schema.types
        parts = [self.of(*each, in_state=in_state) for each in zip(values, kinds, strict=True)]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def row(self, row: Row, schema: pa.Schema) -> str:
        """Return a Row of the fields of *schema* as code."""
        return self._row(row, pa.struct(list(schema)), in_state=False)

    def _row(self, row: Row, kind: pa.DataType | None, in_state: bool) -> str:
        self.imports.add("from pyspark.sql import Row")
        names = list(row.__fields__)
        kinds = {} if kind is None else {each.name: each.type for each in kind}
        parts = [
            self.of(value, kinds.get(name), in_state=in_state)
            for name, value in zip(names, row, strict=True)
        ]
        if all(map(_is_argument, names)) and len(set(names)) == len(names):
            fields = ", ".join(f"{name}={part}" for name, part in zip(names, parts, strict=True))
            return f"Row({fields})"
        return f"Row({', '.join(map(quoted, names))})({', '.join(parts)})"

    def _mapping(
        self, value: Mapping[object, object], kind: pa.DataType | None, in_state: bool
    ) -> str:
        parts = []
        for name, part in value.items():
            inner, outer = None, None
            if kind is not None and pa.types.is_map(kind):
                outer, inner = kind.key_type, kind.item_type
            elif kind is not None and pa.types.is_struct(kind):
                inner = kind.field(name).type
            written = self.of(part, inner, in_state=in_state)
            parts.append(f"{self.of(name, outer, in_state=in_state)}: {written}")
        return f"{{{', '.join(parts)}}}"

    def _float(self, value: float) -> str:
        if math.isnan(value):
            self.has_nan = True
            return 'float("nan")'
        return repr(float(value)) if math.isfinite(value) else f'float("{float(value)}")'

    def _time(self, value: object, kind: pa.DataType | None, in_state: bool) -> str:
        self.imports.add("import datetime as dt")
        if isinstance(value, dt.timedelta):
            return f"dt.timedelta({value.days}, {value.seconds}, {value.microseconds})"
        if not isinstance(value, dt.datetime):
            return repr(value).replace("datetime.", "dt.", 1)
        zone = kind.tz if kind is not None and pa.types.is_timestamp(kind) else None
        if in_state and zone is not None and value.tzinfo is None:
            self.has_local = True
            return f"local({self._moment(value.astimezone(dt.UTC), 'UTC')})"
        return self._moment(value, zone or ("UTC" if value.tzinfo is not None else None))

    def _moment(self, value: dt.datetime, zone: str | None) -> str:
        parts = [value.year, value.month, value.day, value.hour, value.minute]
        if value.second or value.microsecond:
            parts.append(value.second)
        if value.microsecond:
            parts.append(value.microsecond)
        written = ", ".join(map(str, parts))
        if zone is None:
            return f"dt.datetime({written})"
        if zone in ("UTC", "Etc/UTC"):
            return f"dt.datetime({written}, tzinfo=dt.UTC)"
        self.imports.add("from zoneinfo import ZoneInfo")
        fold = ", fold=1" if value.fold else ""
        return f"dt.datetime({written}, tzinfo=ZoneInfo({quoted(zone)}){fold})"


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_argument(name: str) -> bool:
    """Return whether `Row(name=...)` makes a field of exactly this name."""
    return name.isidentifier() and name.isascii() and not (keyword.iskeyword(name) or name == "cls")


def quoted(text: str) -> str:
    """Return text as a string literal, in double quotes where that needs no more escapes."""
    written = repr(str(text))
    return f'"{written[1:-1]}"' if written[0] == "'" and '"' not in written else written


def comment(text: str) -> str:
    """Return text as a comment of one line."""
    return f"# {one_line(text)}"


def ddl_of(schema: pa.Schema) -> str:
    """Return a schema as DDL text."""
    return ", ".join(f"{_ddl_name(field)} {_ddl_type(field.dataType)}" for field in _fields(schema))


def _fields(schema: pa.Schema) -> list[T.StructField]:
    fields: list[T.StructField] = from_arrow_schema(schema).fields
    return fields


def _ddl_name(field: T.StructField) -> str:
    name = field.name
    return name if name.isidentifier() else sql_name(name)


def _ddl_type(kind: T.DataType) -> str:
    if isinstance(kind, T.StructType):
        parts = [f"{_ddl_name(field)}:{_ddl_type(field.dataType)}" for field in kind.fields]
        return f"struct<{','.join(parts)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{_ddl_type(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{_ddl_type(kind.keyType)},{_ddl_type(kind.valueType)}>"
    return str(kind.simpleString())


def wrapped(begin: str, parts: Iterable[str], end: str, indent: int = 4) -> str:
    """Return *parts* between brackets: on one line if they fit, else each on its own."""
    items = list(parts)
    space = " " * indent
    line = f"{space}{begin}{', '.join(items)}{end}"
    if len(line) <= WIDTH and "\n" not in line:
        return line
    inner = "".join(f"{space}    {item},\n" for item in items)
    return f"{space}{begin}\n{inner}{space}{end}"


def braces(parts: Iterable[str], indent: int) -> str:
    """Return *parts* in braces: on one line if they are short, else each on its own."""
    items = list(parts)
    line = f"{{{', '.join(items)}}}"
    if len(line) + indent + 30 <= WIDTH or not items:
        return line
    inner = "".join(f"{' ' * indent}    {item},\n" for item in items)
    return f"{{\n{inner}{' ' * indent}}}"
