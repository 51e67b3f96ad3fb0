"""
Convert tuples of Python values to Arrow columns and back.

A `StructCodec` carries tuples whose fields have Arrow types.  Plain types are converted by Arrow;
nested ones and timestamps pass the converters of `converters`.  Values read back are what Spark
gives to a processor: structs through *struct_factory*, maps as dicts, timestamps with a zone as
naive local datetimes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from statelog.errors import UsageError
from statelog.format.arrow_limits import one_array
from statelog.state.encoding.converters import (
    ALWAYS_CHECKED,
    Converter,
    StructFactory,
    canonical,
    equal_key,
    from_arrow,
    from_hashable,
    has_floats,
    is_mutable,
    optional,
    relabelled,
    to_arrow,
    to_hashable,
    to_python,
    with_equal_floats,
)
from statelog.state.kinds import Values
from statelog.state.schema import stored_schema

UNENCODABLE: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""The errors that Arrow raises for a value that does not fit its type."""


def tuple_factory(_names: Sequence[str], values: Sequence[object]) -> Values:
    """Return a converter from a struct to a plain tuple."""
    return tuple(values)


def columns_of(rows: Sequence[Values], width: int) -> list[Sequence[object]]:
    """Turn rows into columns, which Arrow converts as a whole."""
    if width == 1:  # without an iterator for each row, as zip makes them
        return [[value for (value,) in rows]]
    return list(zip(*rows, strict=True)) if rows else [()] * width


class StructCodec:
    """Converts between tuples and Arrow columns of one schema."""

    def __init__(
        self, schema: pa.Schema, *, struct_factory: StructFactory = tuple_factory, what: str = ""
    ) -> None:
        self.schema = schema
        self.stored = stored_schema(schema)
        self._what = what
        self._columns = [f"{what}, field {field.name!r}" for field in schema]
        self._canonical = [self._checked(field, struct_factory) for field in schema]
        self._to_arrow = [to_arrow(field.type) for field in schema]
        self._from_arrow = [from_arrow(field.type, struct_factory) for field in schema]
        self._width = len(schema)
        # By the types of a row: the fields that have to be converted, row by row.
        self._converted: dict[tuple[type, ...], tuple[int, ...]] = {}
        self.is_mutable = any(is_mutable(field.type) for field in schema)

    def _checked(self, field: pa.Field, struct_factory: StructFactory) -> Converter:
        """Return the converter of a field to the stored form; reject unsupported types."""
        try:
            return optional(canonical(field.type, struct_factory), field.nullable)
        except UsageError as error:
            raise UsageError(f"{self._what}: the field {field.name!r}: {error}") from error

    def normalize(self, value: Iterable[object]) -> Values:
        """
        Convert *value* to the tuple that a restart would read back.

        Mutable parts are copied, so that a later change of them does not change the state.
        """
        # The fast path of every write: plain values cost one look-up.
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
            for index in fields:
                result[index] = self._canonical[index](result[index])
        except (TypeError, ValueError, ArithmeticError):
            return self._normalize_slowly(values, signature)  # which raises with the field
        return tuple(result)

    def _tuple(self, value: object) -> Values:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise UsageError(
                f"{self._what} takes a tuple of ({', '.join(self.schema.names)}), not "
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
        # Fields that came back as the same object are not converted again for these types.
        self._converted[signature] = tuple(
            index
            for index, kind in enumerate(signature)
            if kind in ALWAYS_CHECKED or result[index] is not values[index]
        )
        return tuple(result)

    def encode(self, rows: Sequence[Values]) -> list[pa.Array]:
        """Return one Arrow column per field."""
        return self.encode_columns(columns_of(rows, self._width))

    def encode_columns(self, columns: Sequence[Sequence[object]]) -> list[pa.Array]:
        """Encode sequences of values, one Arrow column each; see `encode`."""
        arrays = (
            pa.array(
                column
                if convert is None
                else [None if value is None else convert(value) for value in column],
                type=field.type,
            )
            for field, convert, column in zip(self.stored, self._to_arrow, columns, strict=True)
        )
        return list(map(one_array, arrays, self._columns))

    def decode(self, columns: Sequence[pa.Array]) -> list[Values]:
        """Convert the rows of Arrow columns to tuples."""
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


class MapKeyCodec(StructCodec):
    """
    A `StructCodec` for dict keys: hashable tuples in which all NaNs, and both zeros, are equal.

    Raises:
        UsageError: A field is an array or a map.
    """

    def __init__(
        self, schema: pa.Schema, *, struct_factory: StructFactory = tuple_factory, what: str = ""
    ) -> None:
        super().__init__(schema, struct_factory=struct_factory, what=what)
        if self.is_mutable:
            raise UsageError(f"{what}: arrays and maps cannot be part of a map key")
        forms = [equal_key(field.type, struct_factory) for field in schema]
        self._forms = forms if any(forms) else None

    def normalize(self, value: Iterable[object]) -> Values:
        """Convert *value* to the key of its entry; see `StructCodec.normalize`."""
        key = super().normalize(value)
        return key if self._forms is None else _equal(key, self._forms)

    @property
    def normalizer(self) -> Callable[[Iterable[object]], Values]:
        """`normalize`, or the same without a call in between where equal keys have one form."""
        return super().normalize if self._forms is None else self.normalize

    def _tuple(self, value: object) -> Values:
        # On Spark text is the tuple of its letters, so code with keys of one letter works there.
        if isinstance(value, str) and len(value) == self._width:
            return tuple(value)
        return super()._tuple(value)

    def decode(self, columns: Sequence[pa.Array]) -> list[Values]:
        """Convert the rows of Arrow columns to keys."""
        keys = super().decode(columns)
        forms = self._forms
        return keys if forms is None else [_equal(key, forms) for key in keys]


def _equal(key: Values, forms: Sequence[Converter | None]) -> Values:
    return tuple(
        value if convert is None or value is None else convert(value)
        for convert, value in zip(forms, key, strict=True)
    )


class KeyCodec:
    """
    Converts grouping keys between the user's form, dict keys and Arrow columns.

    A key is a tuple of column values.  Keys that group together must be equal: nested columns are
    tuples, which are hashable, every NaN becomes one object, -0.0 becomes 0.0, and points in time
    are in UTC.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._nested = any(pa.types.is_nested(field.type) for field in schema)
        self._floating = any(has_floats(field.type) for field in schema)
        self._zoned = any(
            pa.types.is_timestamp(field.type) and field.type.tz is not None for field in schema
        )

    @property
    def is_plain(self) -> bool:
        """Whether keys in the columns of `uniform` are equal exactly if their bytes are equal."""
        return not (self._nested or self._floating)

    def uniform(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Convert key columns to the schema's types, and bring equal floats into the same form."""
        if self._floating:
            columns = [with_equal_floats(column) for column in columns]
        return [
            relabelled(column, field.type)
            for column, field in zip(columns, self.schema, strict=True)
        ]

    def to_hashable(self, key: Values) -> Values:
        """Convert *key* to the form in which tables store it."""
        if self.is_plain and not self._zoned:
            return key
        return tuple(
            to_hashable(value, field.type) for value, field in zip(key, self.schema, strict=True)
        )

    def from_hashable(self, key: Values) -> Values:
        """Convert a key from the form in which tables store it to the form the user sees."""
        if not self._nested:
            return key
        return tuple(
            None if value is None else from_hashable(value, field.type)
            for value, field in zip(key, self.schema, strict=True)
        )

    def encode(self, keys: Sequence[Values]) -> list[pa.Array]:
        """Return one Arrow column per key column."""
        # Arrow takes dicts for structs, not the tuples that tables hold.
        plain = keys if not self._nested else [self.from_hashable(key) for key in keys]
        columns = columns_of(plain, len(self.schema))
        return [
            one_array(pa.array(column, type=field.type), f"key column {field.name!r}")
            for field, column in zip(self.schema, columns, strict=True)
        ]

    def decode(self, columns: Sequence[pa.Array]) -> list[Values]:
        """Decode keys to the form in which tables store them."""
        keys = zip(*map(to_python, self.uniform(columns)), strict=True)
        return list(keys) if self.is_plain else [self.to_hashable(key) for key in keys]


def _decoded(column: pa.Array, convert: Converter | None) -> list[object]:
    values = to_python(column)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]
