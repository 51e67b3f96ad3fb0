"""
Broadcast tables: small tables with the same content for all calls in a micro-batch.

The driver reads the source of a table before a micro-batch.  A table that changed is a new version:
it is stored before the tasks run, and the checkpoint of the micro-batch names it.
Source: Flink's broadcast state pattern, where the table is a second stream.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame, Row

from statelog.errors import UsageError
from statelog.format.arrow_data import to_stream
from statelog.options.kinds import DURATION
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.query.declared_state import is_name
from statelog.spark.query.settings import QuerySettings
from statelog.spark.rows.spark_versions import arrow_of
from statelog.spark.rows.types import arrow_schema, row_factory, table_of

BROADCAST_BYTES_MAX: Final = 16 << 20
"""Maximum bytes of a broadcast table in memory."""
_VERSION_DIGITS: Final = 16
_NAME: Final = "the name of a broadcast table must be up to 100 letters, digits, '_' and '.'"


class Repeated(enum.Enum):
    """Which version a micro-batch reads when a restart repeats it."""

    SAME = "same"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """
    The source of a broadcast table, and when to read it.

    Example:
        rules = Broadcast(lambda: spark.read.parquet("s3://bucket/rules"), every="10 min")
        out = transform_with_state(grouped, Check(), "key string", broadcast={"rules": rules})

    Args:
        source: A function without arguments that returns the table: a batch frame of Spark, an
            Arrow table, a frame of pandas or Polars, a dict of columns, or a list of Rows or dicts.
            Or a batch frame, which has the list of files of when it was made.
        every: How long a table is used before the source is read again, as a `timedelta` or text;
            None reads it before each micro-batch.
        repeated: "same": a micro-batch that a restart repeats sees the version that it saw before;
            "newest": it sees what the source has now.

    Raises:
        UsageError: An argument has another type.
    """

    source: object
    every: dt.timedelta | str | None = None
    repeated: str = "same"

    def __post_init__(self) -> None:
        if not callable(self.source) and not isinstance(self.source, DataFrame):
            raise UsageError(
                "the source of a broadcast table must be a function without arguments or a batch frame, not "
                f"{type(self.source).__name__}. To pass a table, use `lambda: table`"
            )
        _ = self.interval_s, self.on_repeat  # wrong values are rejected at once

    @property
    def interval_s(self) -> float:
        """The number of seconds until the source is read again."""
        if self.every is None:
            return 0.0
        return DURATION.parse(self.every, "every").total_seconds()

    @property
    def on_repeat(self) -> Repeated:
        """Which version a repeated micro-batch reads."""
        try:
            return Repeated(self.repeated)
        except ValueError:
            raise UsageError(
                f"repeated must be 'same' or 'newest', not {self.repeated!r}"
            ) from None


def sources(value: object) -> Mapping[str, Broadcast]:
    """Check the value of the setting `broadcast`; raise `TypeError` if it is not a mapping."""
    if not isinstance(value, Mapping):
        raise TypeError
    for name in value:
        if not is_name(name):
            raise UsageError(f"{_NAME}, not {name!r:.200}")
    return {
        name: column if isinstance(column, Broadcast) else Broadcast(column)
        for name, column in value.items()
    }


def sources_of(settings: QuerySettings) -> Mapping[str, Broadcast]:
    """Return the sources listed in the setting `broadcast`."""
    return cast("Mapping[str, Broadcast]", settings.broadcast)  # read by `sources`


class BroadcastTable:
    """
    One version of a broadcast table; in a task, `handle.broadcast(name)` returns it.

    It is shared by all calls of the worker, so what it returns must not be changed.

    Attributes: `table`: the Arrow table; `version`: a digest of its content.

    Thread: one at a time.
    """

    def __init__(self, table: pa.Table, version: str) -> None:
        self.version, self.table = version, table
        self._rows: tuple[Row, ...] | None = None
        self._by: dict[tuple[str, ...], Mapping[object, tuple[Row, ...]]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return BroadcastTable, (self.table, self.version)

    def __repr__(self) -> str:
        names = ", ".join(self.table.column_names)
        return f"<broadcast table {self.version}: {self.table.num_rows} rows of {names}>"

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows in their original order; structs are dicts."""
        if self._rows is None:
            make = row_factory(self.table.column_names)
            columns = [column.to_pylist() for column in self.table.columns]
            self._rows = tuple(map(make, zip(*columns, strict=True)))
        return self._rows

    def by(self, *columns: str) -> Mapping[object, tuple[Row, ...]]:
        """
        Index the rows by the values in some columns; each worker does this once per version.

        Args:
            columns: Names of columns.  With one the keys are its values, with several tuples.

        Raises:
            UsageError: A column does not exist, or none is named.
        """
        index = self._by.get(columns)
        if index is None:
            missing = [name for name in columns if name not in self.table.column_names]
            if missing or not columns:
                raise UsageError(
                    f"the broadcast table does not have the column {', '.join(missing) or '(none named)'}; "
                    f"its columns are {', '.join(self.table.column_names)}"
                )
            groups: dict[object, list[Row]] = {}
            for row in self.rows:
                key = row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns)
                groups.setdefault(key, []).append(row)
            index = MappingProxyType({key: tuple(rows) for key, rows in groups.items()})
            self._by[columns] = index
        return index


BroadcastTables = Mapping[str, BroadcastTable]
"""The broadcast tables of a micro-batch, by name."""


def broadcast_in(tables: BroadcastTables, name: str) -> BroadcastTable:
    """
    Return the version of a broadcast table that a micro-batch reads.

    Raises `UsageError` if the query does not have it.
    """
    table = tables.get(name)
    if table is None:
        raise unknown_broadcast(name, tables)
    return table


def unknown_broadcast(name: str, tables: Mapping[str, object]) -> UsageError:
    """Return the error for a broadcast table that a query does not have."""
    names = f"its tables are {', '.join(tables)}" if tables else "it has no broadcast tables"
    return UsageError(
        f"init() asks for the broadcast table {name!r}, but the query does not have it: {names}. Pass "
        f"broadcast={{{name!r}: ...}} to transform_with_state"
    )


def read_source(name: str, broadcast: Broadcast) -> BroadcastTable:
    """Read a source, and return the version of the table that it contains now."""
    value: object = broadcast.source
    if callable(value) and not isinstance(value, DataFrame):
        function: Callable[[], object] = value
        try:
            value = function()
        except Exception as error:
            raise UsageError(
                f"the function of the broadcast table {name!r} failed: {type(error).__name__}: {error}"
            ) from error
    return version_of(name, value)


def version_of(name: str, value: object) -> BroadcastTable:
    """Convert a table in any supported form to a version of a broadcast table."""
    table = _table(name, value).replace_schema_metadata(None)
    if table.nbytes > BROADCAST_BYTES_MAX:
        raise UsageError(
            f"the broadcast table {name!r} is {table.nbytes / (1 << 20):.0f} MiB; at most "
            f"{BROADCAST_BYTES_MAX >> 20} MiB are allowed: each worker keeps a full copy. Join a larger "
            "table before the operator, or pass it as a second input (tagged_union)"
        )
    table = table.combine_chunks()  # far below what one array can hold
    return BroadcastTable(table, hashlib.sha256(to_stream(table)).hexdigest()[:_VERSION_DIGITS])


def _table(name: str, value: object) -> pa.Table:
    what = f"the broadcast table {name!r}"
    if isinstance(value, DataFrame):
        if value.isStreaming:
            raise UsageError(f"{what} is a stream: pass it as a second input with tagged_union")
        return arrow_of(value, arrow_schema(value.schema))
    if isinstance(value, list | tuple):
        rows = [row.asDict(recursive=True) if isinstance(row, Row) else row for row in value]
        try:
            return pa.Table.from_pylist(rows)
        except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
            raise UsageError(
                f"{what}: its rows cannot be combined into one table: {error}"
            ) from error
    return table_of(value, what)


def refuse_frames(settings: QuerySettings) -> None:
    """Raise `UsageError` for a batch frame of Spark Connect, which the server cannot evaluate."""
    for name, broadcast in sources_of(settings).items():
        if isinstance(broadcast.source, DataFrame) or is_connect(broadcast.source):
            raise UsageError(
                f"the broadcast table {name!r} is a Spark Connect DataFrame, which the server cannot read "
                "for each micro-batch: pass a function that runs on the server and returns an Arrow "
                "table or a list of rows"
            )
