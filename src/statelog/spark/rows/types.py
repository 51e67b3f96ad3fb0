"""Convert Spark's types to Arrow's, and make Rows fast."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from statelog.spark.rows.spark_versions import known_arguments

TIME_ZONE: Final = "spark.sql.session.timeZone"
"""Spark's setting of the time zone of a session."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return *schema* in Arrow's types; timestamps with a zone are in UTC."""
    # Before 4.2 there is no such argument, and UTC always.
    converted: pa.Schema = known_arguments(to_arrow_schema, timezone="UTC")(schema)
    return converted


def make_row(names: Sequence[str], values: Sequence[object]) -> Row:
    """Return a struct as Spark's Row."""
    row: Row = tuple.__new__(Row, values)
    row.__fields__ = list(names)
    return row


def row_factory(names: Sequence[str]) -> Callable[[Iterable[object]], Row]:
    """
    Return a function that makes a `Row` of its values.

    The rows are of a subclass that stores the names once and finds a field by position, so that
    making a row and reading `row.amount` is several times faster than with Spark's class.  In all
    other ways, pickling included, they are Rows.
    """
    return partial(tuple.__new__, _row_class(tuple(names)))


@lru_cache(maxsize=64)  # making a class takes as long as a small task's rows
def _row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the class of the rows with these names."""
    members: dict[str, object] = {"__slots__": (), "__fields__": list(names)}
    # A namedtuple's field descriptors read by position in C, without Row's Python methods.
    by_position = namedtuple("by_position", names, rename=True)  # type: ignore[misc]
    for position, name in enumerate(names):
        # As with Spark's rows, a method of tuple or Row hides a column of the same name.
        if by_position._fields[position] == name and not hasattr(Row, name):
            members[name] = by_position.__dict__[name]
    return type("Row", (Row,), members)
