"""
Convert Spark's types, Rows and batches to and from Arrow.

Spark's Arrow batches end after a number of rows, or of bytes, whichever comes first.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from statelog.errors import CorruptionError, UsageError
from statelog.format.arrow_data import read_stream_table
from statelog.options.kinds import SIZE
from statelog.spark.rows.key_types import parts_of, plain_columns
from statelog.spark.rows.spark_versions import known_arguments, setting_or

_NOT_IN_ARROW: Final = (PySparkException, TypeError, ValueError)
"""The errors that PySpark raises for a type without an Arrow form."""

TIME_ZONE: Final = "spark.sql.session.timeZone"
"""Spark's setting of the time zone of a session."""
MAX_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
MAX_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_LIMIT: Final = 2**31 - 1
"""The most of either; with it as the number of bytes, Spark does not measure the batches."""


def sql_name(name: str) -> str:
    """Quote a column or table name for Spark's SQL, so that a dot does not mean a field."""
    return f"`{name.replace('`', '``')}`"


def arrow_schema(schema: StructType, what: str = "") -> pa.Schema:
    """Convert *schema* to Arrow types; timestamps that have a time zone become UTC."""
    # Before 4.2 the argument does not exist, and the zone is always UTC.
    convert = known_arguments(to_arrow_schema, timezone="UTC")
    try:
        converted: pa.Schema = convert(schema)
    except _NOT_IN_ARROW:
        for field in schema:
            try:
                convert(StructType([field]))
            except _NOT_IN_ARROW as error:
                raise UsageError(
                    f"{what}the column {field.name!r} has the type "
                    f"{field.dataType.simpleString():.100}, which PySpark does not convert to Arrow: "
                    f"{error!s:.200}. Cast it to a different type, or omit it"
                ) from error
        raise
    return converted


def check_input(columns: StructType, names: Collection[str]) -> None:
    """Reject any input column in *names* that cannot be sent to tasks."""
    sent = StructType([field for field in columns if field.name in names])
    for field in sent:
        _check_names(field.name, field.dataType)
    arrow_schema(plain_columns(sent), "the input of a stateful operator: ")


def _check_names(path: str, kind: DataType) -> None:
    for inner, part in parts_of(path, kind):
        if isinstance(part, StructType) and len(set(part.names)) < len(part.names):
            raise UsageError(
                f"the input of a stateful operator: the column {inner!r} is a struct with two fields of "
                f"the same name ({', '.join(part.names):.200}), which Arrow cannot store: rename them, or omit "
                "the column"
            )


def make_row(names: Sequence[str], values: Sequence[object]) -> Row:
    """Convert a struct to a Spark Row."""
    row: Row = tuple.__new__(Row, values)
    row.__fields__ = list(names)
    return row


def row_factory(names: Sequence[str]) -> Callable[[Iterable[object]], Row]:
    """
    Return a function that creates a `Row` from a sequence of values.

    The rows are of a subclass that stores the names once and finds a field by position, so that
    making a row and reading `row.amount` is several times faster than with Spark's class.  In all
    other ways, pickling included, they are Rows.
    """
    return partial(tuple.__new__, _row_class(tuple(names)))


def _item(row: Row, item: object, get: Callable[..., object] = tuple.__getitem__) -> object:
    """Return `row[item]`; twice as fast as in Spark's class, which tests for a number first."""
    try:
        return get(row, item)
    except TypeError:  # a name
        return Row.__getitem__(row, item)


@lru_cache(maxsize=64)  # making a class takes as long as a small task's rows
def _row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these field names."""
    members: dict[str, object] = {
        "__slots__": (),
        "__fields__": list(names),
        "__getitem__": _item,
    }
    # A namedtuple's field descriptors read by position in C, without Row's Python methods.
    by_position = namedtuple("by_position", names, rename=True)  # type: ignore[misc]
    for position, name in enumerate(names):
        # As with Spark's rows, a method of tuple or Row hides a column of the same name.
        if by_position._fields[position] == name and not hasattr(Row, name):
            members[name] = by_position.__dict__[name]
    return type("Row", (Row,), members)


def from_ipc(data: bytes | memoryview) -> pa.Table:
    """Return a task's rows from an Arrow IPC stream, validated; may raise `CorruptionError`."""
    try:
        return read_stream_table(data)
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"the rows of a task cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class ArrowLimits:
    """A session's limits for a batch, explicit or default: maximum rows and bytes, each >= 1."""

    records: int
    size: int

    @classmethod
    def of(cls, session: SparkSession) -> ArrowLimits:
        """Return the current limits of *session*."""
        records = int(session.conf.get(MAX_RECORDS) or 0)
        text = setting_or(session, MAX_BYTES, "-1") or "-1"
        size = 0 if text.strip().startswith("-") else SIZE.parse(text, MAX_BYTES)
        return cls(records if records > 0 else NO_LIMIT, size if size > 0 else NO_LIMIT)


def row_bytes(schema: pa.Schema) -> int | None:
    """Return how many bytes a row can occupy in a batch's buffers; None if sizes vary."""
    total = 0
    for column in schema:
        size = _value_bytes(column.type)
        if size is None:
            return None
        total += size
    return total


def _value_bytes(kind: pa.DataType) -> int | None:
    """Return how many bytes a value can occupy, including one byte for its null flag."""
    if pa.types.is_null(kind):
        return 1
    if pa.types.is_struct(kind):
        inside = row_bytes(pa.schema(list(kind)))
        return None if inside is None else inside + 1
    try:
        bits: int = kind.bit_width
    except ValueError:  # a type without a fixed width
        return None
    return (bits + 7) // 8 + 1


def known_zone(name: str) -> str:
    """
    Return a form of the time zone that both Arrow and Python know.

    UTC for one that only Java does, as `PST` and `Z`.
    """
    try:
        pa.lib.string_to_tzinfo(name)
    except Exception:  # of the package by which Arrow finds time zones
        return "UTC"
    return name


def table_of(values: object, what: str) -> pa.Table:
    """Convert columns in any supported form to a table; raises `UsageError`."""
    try:
        if isinstance(values, pa.Table):
            return values
        if isinstance(values, Mapping):
            return pa.table(dict(values))
        if isinstance(values, pa.RecordBatch):
            return pa.Table.from_batches([values])
        if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
            return _without_views(pa.table(values))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(f"{what}: cannot read the columns: {error}") from error
    raise UsageError(
        f"{what} must be a pyarrow table, a pandas or Polars frame, or a dict of columns, "
        f"not {type(values).__name__}"
    )


def _without_views(table: pa.Table) -> pa.Table:
    """
    Convert string views in a table to strings, because few Arrow functions support views.

    Polars makes them.
    """
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    schema = pa.schema(
        [field.with_type(plain.get(field.type, field.type)) for field in table.schema]
    )
    return table if schema == table.schema else table.cast(schema)
