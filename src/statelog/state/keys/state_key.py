"""
Parse a key from values or text, according to the key types of an operator.

`5` finds a key in a column of any whole-number type, and `"5"` is refused there.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.state.keys.key_groups import key_group_of
from statelog.state.schema import schema_text

_REFUSED: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""The errors that Arrow raises for a value that does not fit a type."""


class StateKey:
    """A key of an operator."""

    def __init__(self, key: object, schema: pa.Schema) -> None:
        self._schema = schema
        values = list(key) if isinstance(key, tuple | list) else [key]
        if len(values) != len(schema):
            raise UsageError(
                f"a key requires a value for each of ({schema_text(schema)}); got {len(values)}: "
                f"{tuple(values)!r:.100}",
                fields=("key",),
            )
        self.values = tuple(
            _converted(value, field) for value, field in zip(values, schema, strict=True)
        )

    def key_groups(self, groups: KeyGroupRange) -> KeyGroupRange:
        """Return the range that contains only the key's own key group."""
        key_group = groups.start + key_group_of(self.values, self._schema, len(groups))
        return KeyGroupRange(key_group, key_group)

    def columns(self) -> list[pa.Array]:
        """Return the key as columns with a single row."""
        return [
            pa.array([value], field.type)
            for value, field in zip(self.values, self._schema, strict=True)
        ]

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have this key, from rows in the columns of `StateReader`."""
        for value, field in zip(self.values, self._schema, strict=True):
            # Arrow's `equal` finds neither nulls nor NaNs.
            column = batch.column(f"key.{field.name}")
            if value is None:
                batch = batch.filter(pc.is_null(column))
            elif isinstance(value, float) and math.isnan(value):
                batch = batch.filter(pc.is_nan(column))
            else:
                batch = batch.filter(pc.equal(column, pa.scalar(value, field.type)))
        return batch


NULL_TEXT: Final = r"\N"
"""Text that means null in a key; further backslashes before it make it text."""


def key_from_text(texts: Sequence[str], schema: pa.Schema) -> tuple[object, ...]:
    r"""Parse a key from the command line: `\N` is null, and `\\N` is the text `\N`."""
    if len(texts) != len(schema):
        raise UsageError(
            f"a key requires a value for each of ({schema_text(schema)}); got {len(texts)}: "
            f"{' '.join(texts):.100}",
            fields=("key",),
        )
    values: list[object] = []
    for text, field in zip(texts, schema, strict=True):
        if text == NULL_TEXT:
            values.append(None)
            continue
        if text.endswith(NULL_TEXT) and not text[:-1].strip("\\"):
            text = text[1:]
        try:
            values.append(pa.scalar(text, pa.string()).cast(field.type).as_py())
        except _REFUSED as error:
            raise UsageError(
                f"key column {field.name!r} takes {field.type}, not {text!r:.100}",
                fields=("key",),
            ) from error
    return tuple(values)


def _converted(value: object, field: pa.Field) -> object:
    """Convert *value* to what Arrow would return from a column with the type of *field*."""
    kind = field.type
    if value is None:
        return None
    try:
        if isinstance(value, bool) != pa.types.is_boolean(kind) and not pa.types.is_nested(kind):
            raise TypeError("a bool is not a number")
        if isinstance(value, dt.datetime) and value.tzinfo is None:
            # As in PySpark, a time without a zone is local.
            zoned = pa.types.is_timestamp(kind) and kind.tz is not None
            value = value.astimezone() if zoned else value
        if pa.types.is_integer(kind):
            value = operator.index(value)  # type: ignore[arg-type]  # Arrow cuts off fractions
        return pa.scalar(value, kind).as_py()
    except _REFUSED as error:
        raise UsageError(
            f"key column {field.name!r} takes {kind}, not {type(value).__name__} {value!r:.100}",
            fields=("key",),
        ) from error
