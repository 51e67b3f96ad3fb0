"""
Python values to Arrow columns and back.

A `StructCodec` carries tuples whose fields have Arrow types.  Plain types go straight through
Arrow's converters; nested ones and timestamps pass converters made once for each type.  Values
that come back are what Spark hands to a processor: structs through *struct_factory*, maps as
dicts, timestamps with a zone as naive local datetimes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from statelog.errors import UsageError

Converter = Callable[[Any], Any]
StructFactory = Callable[[Sequence[str], Sequence[Any]], Any]
Values = tuple[Any, ...]

_NAN: Final = float("nan")


def tuple_factory(_names: Sequence[str], values: Sequence[Any]) -> Values:
    """Return a struct as a plain tuple."""
    return tuple(values)


class StructCodec:
    """
    Converts between tuples and Arrow columns of one schema.

    Args:
        schema: Names and types of the fields.
        struct_factory: Builds nested structs from (names, values).
        what: What the tuples are, for messages ("state 'total'").
    """

    def __init__(
        self, schema: pa.Schema, *, struct_factory: StructFactory = tuple_factory, what: str = ""
    ) -> None:
        self.schema = schema
        self.stored = stored_schema(schema)
        self._what = what
        self._canonical = [
            _optional(_canonical(field.type, struct_factory), field.nullable) for field in schema
        ]
        self._to_arrow = [_to_arrow(field.type) for field in schema]
        self._from_arrow = [_from_arrow(field.type, struct_factory) for field in schema]
        self._width = len(schema)
        # By the types of a row: the fields that have to be converted, row by row.
        self._converted: dict[tuple[type, ...], tuple[int, ...]] = {}
        self.is_mutable = any(_is_mutable(field.type) for field in schema)

    def normalize(self, value: Iterable[Any]) -> Values:
        """
        Return *value* as the tuple it will be when it is read back from a file.

        Mutable parts are copied, so that a later change of them does not change the state.

        Raises:
            UsageError: Wrong number of fields, or a field has the wrong type.
        """
        values = value if value.__class__ is tuple else self._tuple(value)
        # Plain values of types that passed once need no second look.
        signature = tuple(map(type, values))
        fields = self._converted.get(signature)
        if fields is None:
            return self._normalize_slowly(values, signature)
        if not fields:
            return values
        result = list(values)
        try:
            for at in fields:
                result[at] = self._canonical[at](result[at])
        except (TypeError, ValueError, ArithmeticError):
            return self._normalize_slowly(values, signature)  # which says what is wrong
        return tuple(result)

    def _tuple(self, value: Any) -> Values:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise UsageError(
                f"{self._what}: takes a tuple of ({', '.join(self.schema.names)}), not "
                f"{type(value).__name__} {value!r:.100}"
            )
        return tuple(value)

    def _normalize_slowly(self, values: Values, signature: tuple[type, ...]) -> Values:
        if len(values) != self._width:
            raise UsageError(
                f"{self._what}: {len(values)} values for the {self._width} fields "
                f"({', '.join(self.schema.names)})"
            )
        result = []
        for field, convert, value in zip(self.schema, self._canonical, values, strict=True):
            try:
                result.append(convert(value))
            except (TypeError, ValueError, ArithmeticError) as error:
                raise UsageError(
                    f"{self._what}: field {field.name!r} takes {field.type}, not "
                    f"{type(value).__name__} {value!r:.100} ({error})"
                ) from error
        self._converted[signature] = tuple(
            at
            for at, kind in enumerate(signature)
            if kind in _ALWAYS_CHECKED or result[at] is not values[at]
        )
        return tuple(result)

    def encode(self, rows: Sequence[Values]) -> list[pa.Array[Any]]:
        """
        Return one Arrow column per field.

        Raises:
            pyarrow.ArrowException: A value does not fit its type (an integer out of range).
        """
        columns = list(zip(*rows, strict=True)) if rows else [()] * self._width
        return self.encode_columns(columns)

    def encode_columns(self, columns: Sequence[Sequence[Any]]) -> list[pa.Array[Any]]:
        """Return one Arrow column per sequence of values; see `encode`."""
        return [
            pa.array(
                column
                if convert is None
                else [None if value is None else convert(value) for value in column],
                type=field.type,
            )
            for field, convert, column in zip(self.stored, self._to_arrow, columns, strict=True)
        ]

    def decode(self, columns: Sequence[pa.Array[Any]]) -> list[Values]:
        """Return the rows of Arrow columns as tuples."""
        if self._width == 0:
            return []
        return list(
            zip(
                *(
                    _decoded(column, convert)
                    for column, convert in zip(columns, self._from_arrow, strict=True)
                ),
                strict=True,
            )
        )


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """
    Return *schema* as files have it: every field may be null.

    A key without a value has nulls even in the columns of a NOT NULL field.
    """
    return pa.schema([_stored_field(field) for field in schema])


def _stored_field(field: pa.Field) -> pa.Field:
    return field.with_type(_stored_type(field.type)).with_nullable(True)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_stored_field(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_stored_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, _stored_field(kind.item_field))
    return kind


class MapKeyCodec(StructCodec):
    """
    A `StructCodec` whose tuples are keys of a dict: hashable, and every NaN is one object.

    Raises:
        UsageError: A field is an array or a map.
    """

    def __init__(
        self, schema: pa.Schema, *, struct_factory: StructFactory = tuple_factory, what: str = ""
    ) -> None:
        super().__init__(schema, struct_factory=struct_factory, what=what)
        if self.is_mutable:
            raise UsageError(f"{what}: arrays and maps cannot be part of a map key")
        self._floating = any(pa.types.is_floating(field.type) for field in schema)

    def normalize(self, value: Iterable[Any]) -> Values:
        """Return *value* as the key under which its entry lies; see `StructCodec.normalize`."""
        key = super().normalize(value)
        return _with_one_nan(key) if self._floating else key

    def decode(self, columns: Sequence[pa.Array[Any]]) -> list[Values]:
        """Return the rows of Arrow columns as keys."""
        keys = super().decode(columns)
        return list(map(_with_one_nan, keys)) if self._floating else keys


def _with_one_nan(key: Values) -> Values:
    return tuple(_NAN if part != part else part for part in key)


def _is_mutable(kind: pa.DataType) -> bool:
    """Return whether values of this type are lists or dicts, or hold some."""
    if pa.types.is_struct(kind):
        return any(_is_mutable(field.type) for field in kind)
    return bool(pa.types.is_nested(kind))


def _decoded(column: pa.Array[Any], convert: Converter | None) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _canonical(kind: pa.DataType, factory: StructFactory) -> Converter:
    """Return a converter to the value's one true form; it raises if the type is wrong."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if not names:
            raise UsageError("a struct without fields cannot be kept in state")
        inner = [_optional(_canonical(field.type, factory), field.nullable) for field in kind]
        return lambda value: factory(
            names,
            [convert(part) for convert, part in zip(inner, _parts(value, names), strict=True)],
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _optional(_canonical(kind.value_type, factory), kind.value_field.nullable)
        return lambda value: [element(part) for part in _iterable(value)]
    if pa.types.is_map(kind):
        key = _canonical(kind.key_type, factory)
        item = _optional(_canonical(kind.item_type, factory), kind.item_field.nullable)
        return lambda value: {key(k): item(v) for k, v in dict(value).items()}
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    for matches, convert in _CANONICAL_BY_TYPE:
        if matches(kind):
            return convert
    raise UsageError(f"state of type {kind} is not supported")


def _optional(convert: Converter, nullable: bool) -> Converter:
    return lambda value: (None if nullable else _missing()) if value is None else convert(value)


def _missing() -> None:
    raise TypeError("it is NOT NULL")


def _iterable(value: Any) -> Iterable[Any]:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError("a list is needed")
    return value  # type: ignore[no-any-return]


def _parts(value: Any, names: Sequence[str]) -> Sequence[Any]:
    """Return the fields of a struct given as a Row, a dict or a sequence."""
    if isinstance(value, Mapping):
        return [value.get(name) for name in names]
    fields = getattr(value, "__fields__", None)
    if fields is not None and list(fields) != list(names) and set(fields) == set(names):
        by_name = dict(zip(fields, value, strict=True))
        return [by_name[name] for name in names]
    parts = tuple(_iterable(value))
    if len(parts) != len(names):
        raise ValueError(f"{len(parts)} values for the struct fields {', '.join(names)}")
    return parts


def _unwrapped(value: Any) -> Any:
    """Return numpy's scalars as Python's."""
    item = getattr(value, "item", None)
    return item() if item is not None and getattr(value, "shape", None) == () else value


def _integer(value: Any) -> int:
    value = _unwrapped(value)
    if type(value) is not int:
        raise TypeError("an int is needed")
    return value


def _floating(value: Any) -> float:
    value = _unwrapped(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a float is needed")
    return value if type(value) is float else float(value)


def _single(value: Any) -> float:
    """Round to single precision now, because that is what a restart would read."""
    return float(struct.unpack("f", struct.pack("f", _floating(value)))[0])


def _string(value: Any) -> str:
    value = _unwrapped(value)
    if type(value) is int:  # Spark takes any object's text; an int's is the same everywhere
        return str(value)
    if not isinstance(value, str):
        raise TypeError("a str is needed")
    return value if type(value) is str else str(value)


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes are needed")
    return value if type(value) is bytes else bytes(value)


def _boolean(value: Any) -> bool:
    value = _unwrapped(value)
    if type(value) is not bool:
        raise TypeError("a bool is needed")
    return value


def _decimal(precision: int, scale: int) -> Converter:
    """Return a converter that rounds to the type's digits now, half up as Spark does."""
    quantum = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_UP)

    def convert(value: Any) -> decimal.Decimal:
        if type(value) is int:
            value = decimal.Decimal(value)
        if not isinstance(value, decimal.Decimal):
            raise TypeError("a Decimal is needed")
        if not value.is_finite():
            raise ValueError("it is not a finite number")
        try:
            return value.quantize(quantum, context=context)
        except decimal.InvalidOperation as error:
            raise ValueError("it has too many digits") from error

    return convert


def _date(value: Any) -> dt.date:
    value = _unwrapped(value)
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise TypeError("a date is needed")
    return value


def _datetime(value: Any) -> dt.datetime | None:
    if type(value) is dt.datetime:
        return value
    to_datetime = getattr(value, "to_pydatetime", None)
    value = _unwrapped(value) if to_datetime is None else to_datetime()
    if value != value:  # pandas' NaT, which is how a frame shows a null
        return None
    if not isinstance(value, dt.datetime):
        raise TypeError("a datetime is needed")
    return value


def _local_datetime(value: Any) -> dt.datetime | None:
    moment = _datetime(value)
    return (
        moment
        if moment is None or moment.tzinfo is None
        else moment.astimezone().replace(tzinfo=None)
    )


def _duration(value: Any) -> dt.timedelta | None:
    to_timedelta = getattr(value, "to_pytimedelta", None)
    value = _unwrapped(value) if to_timedelta is None else to_timedelta()
    if value != value:
        return None
    if not isinstance(value, dt.timedelta):
        raise TypeError("a timedelta is needed")
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

_ALWAYS_CHECKED: Final = frozenset({list, dict, tuple, decimal.Decimal, dt.datetime})
"""Types whose values differ in more than their type: copied, or seen with a zone, each time."""


def _to_arrow(kind: pa.DataType) -> Converter | None:
    """Return a converter to what Arrow takes, or None where it takes the value itself."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _to_arrow(field.type)) for field in kind]
        names = [name for name, _ in fields]
        return lambda value: {
            name: part if convert is None or part is None else convert(part)
            for (name, convert), part in zip(fields, _parts(value, names), strict=True)
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _to_arrow(kind.value_type)
        if element is None:
            return None
        return lambda value: [None if part is None else element(part) for part in value]
    if pa.types.is_map(kind):
        key = _to_arrow(kind.key_type) or _same
        item = _to_arrow(kind.item_type) or _same
        return lambda value: [
            (key(k), None if v is None else item(v)) for k, v in dict(value).items()
        ]
    if _is_local_timestamp(kind):
        return lambda value: value.astimezone(dt.UTC)
    return None


def _same(value: Any) -> Any:
    return value


def _from_arrow(kind: pa.DataType, factory: StructFactory) -> Converter | None:
    """Return a converter from Arrow's Python value, or None where that is right already."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        inner = [_from_arrow(field.type, factory) for field in kind]
        return lambda value: factory(
            names,
            [
                value[name] if convert is None or value[name] is None else convert(value[name])
                for name, convert in zip(names, inner, strict=True)
            ],
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _from_arrow(kind.value_type, factory)
        if element is None:
            return None
        return lambda value: [None if part is None else element(part) for part in value]
    if pa.types.is_map(kind):
        key = _from_arrow(kind.key_type, factory) or _same
        item = _from_arrow(kind.item_type, factory) or _same
        return lambda value: {key(k): None if v is None else item(v) for k, v in value}
    if _is_local_timestamp(kind):
        return lambda value: value.astimezone().replace(tzinfo=None)
    return None


class KeyCodec:
    """
    Converts grouping keys between what the user sees, what a dict can hold, and Arrow columns.

    A key is a tuple of column values.  Nested columns are frozen into tuples to be hashable, and
    every NaN becomes one object, because keys that group together must be equal.

    Args:
        schema: Names and Arrow types of the key columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._nested = any(pa.types.is_nested(field.type) for field in schema)
        self._floating = any(pa.types.is_floating(field.type) for field in schema)

    @property
    def is_plain(self) -> bool:
        """Whether keys are hashable and comparable as they come."""
        return not (self._nested or self._floating)

    def freeze(self, key: Values) -> Values:
        """Return *key* in the form that tables hold."""
        return key if self.is_plain else tuple(map(_frozen, key))

    def thaw(self, key: Values) -> Values:
        """Return a frozen key as the user sees it."""
        if not self._nested:
            return key
        return tuple(
            None if part is None else _thawed(part, field.type)
            for part, field in zip(key, self.schema, strict=True)
        )

    def encode(self, keys: Sequence[Values]) -> list[pa.Array[Any]]:
        """Return one Arrow column per key column."""
        thawed = keys if not self._nested else [self.thaw(key) for key in keys]
        columns = list(zip(*thawed, strict=True)) if thawed else [()] * len(self.schema)
        return [
            pa.array(column, type=field.type)
            for field, column in zip(self.schema, columns, strict=True)
        ]

    def decode(self, columns: Sequence[pa.Array[Any]]) -> list[Values]:
        """Return frozen keys."""
        keys = zip(*(column.to_pylist() for column in columns), strict=True)
        return list(keys) if self.is_plain else [self.freeze(key) for key in keys]


def _frozen(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return _NAN
    if isinstance(value, dict):
        return tuple(_frozen(part) for part in value.values())
    if isinstance(value, list | tuple):
        return tuple(_frozen(part) for part in value)
    return value


def _thawed(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {
            field.name: None if part is None else _thawed(part, field.type)
            for field, part in zip(kind, value, strict=True)
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [None if part is None else _thawed(part, kind.value_type) for part in value]
    return value
