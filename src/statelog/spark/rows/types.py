"""Spark's types as Arrow's, and rows as fast as Python allows."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return *schema* in Arrow's types; timestamps with a zone are kept in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


def make_row(names: Sequence[str], values: Sequence[Any]) -> Row:
    """Return a struct as Spark's Row."""
    row: Row = tuple.__new__(Row, values)
    row.__fields__ = list(names)
    return row


def row_factory(names: Sequence[str]) -> Callable[[Iterable[Any]], Row]:
    """
    Return a function that makes a `Row` with these fields from its values.

    The rows are of a subclass that holds the names once and finds a field by position, which makes
    `row.amount` and the row itself several times cheaper than Spark's.  They are Rows in every
    other way, also when pickled.
    """
    members: dict[str, Any] = {"__slots__": (), "__fields__": list(names)}
    # A namedtuple's field descriptors read by position in C, past Row's Python methods.
    by_position = namedtuple("by_position", names, rename=True)  # type: ignore[misc]
    for position, name in enumerate(names):
        # As with Spark's rows, a method of tuple or Row hides a column of the same name.
        if by_position._fields[position] == name and not hasattr(Row, name):
            members[name] = by_position.__dict__[name]
    kind = type("Row", (Row,), members)
    return partial(tuple.__new__, kind)
