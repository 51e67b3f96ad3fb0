"""
The tables to which a query writes, as stored in the session's catalogs.

A table of files is written by the sink of files, in the folder of the table.  All others are
written by Spark's batch writer.
Source: Spark's DataStreamWriter.toTable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructType

from statelog.errors import UsageError
from statelog.spark.jvm.gateway import JavaObject
from statelog.spark.jvm.sinks import Tables, is_view
from statelog.spark.rows.spark_versions import condition_of
from statelog.spark.rows.types import sql_name
from statelog.spark.stream.sinks.file_sink import FilePlace
from statelog.spark.stream.sinks.simple import Target, columns_of

_FOLDER_EXISTS: Final = "LOCATION_ALREADY_EXISTS"


@dataclass(frozen=True, slots=True)
class KnownTable:
    """
    An existing table, named as the caller typed it.

    Args:
        source: Its format in lower case; "" if the catalog has none.
        entry: Its CatalogTable in the session's catalog; None if another catalog has it.
    """

    name: str
    source: str
    entry: JavaObject


def find_table(tables: Tables, name: str) -> KnownTable | None:
    """Return the table with this name, or None; raise `UsageError` if it is a view."""
    if tables.is_temporary_view(name):
        raise _view_error(name)
    table = tables.load(name)
    if table is None:
        return None
    source, entry = table
    if entry is not None and is_view(entry):
        raise _view_error(name)
    return KnownTable(name, source, entry)


def create_of_files(tables: Tables, target: Target, source: str, schema: StructType) -> None:
    """
    Create a file-based table, like Spark's `toTable`; the option `path` sets its folder.

    The folder may have the rows of earlier runs, because a catalog in memory forgets its tables
    when the session ends.  A folder that exists and that the caller did not name is rejected.
    """
    name = ".".join(map(sql_name, tables.parts(target.table or "")))
    words = [f"CREATE TABLE {name} ({tables.ddl(schema)}) USING {source}"]
    for verb, columns in (
        ("PARTITIONED BY", target.partition_by),
        ("CLUSTER BY", target.cluster_by),
    ):
        if columns:
            names = map(sql_name, columns_of(schema.names, columns))
            words.append(f"{verb} ({', '.join(names)})")
    path = target.option("path", None)
    if path is not None:
        escaped = str(path).replace("\\", "\\\\").replace("'", "\\'")
        words.append(f"LOCATION '{escaped}'")
    try:
        tables.create(" ".join(words))
    except PySparkException as error:
        if condition_of(error) != _FOLDER_EXISTS:
            raise
        raise UsageError(
            f"the catalog does not contain the table {target.table}, but its folder exists "
            f"({_first_line(error)}). An in-memory catalog loses its tables when the session "
            "ends: set the folder with .option('path', ...) to continue with its rows, "
            "or store tables in a metastore (enableHiveSupport)"
        ) from error


def place_of(tables: Tables, table: KnownTable, target: Target, schema: StructType) -> FilePlace:
    """Return where and how to write the files of a table, if the output fits the table."""
    stored = tables.of_files(table.entry)
    if stored.has_buckets:
        raise UsageError(
            f"the table {table.name} is bucketed, which streaming output does not support: write to "
            "a table without CLUSTERED BY"
        )
    columns = stored.schema
    parts = stored.partition_by
    if not columns.fields:
        columns, parts = _columns_of_files(tables, table.name, schema)
    partition_by = tuple(name.lower() for name in target.partition_by)
    if partition_by and partition_by != tuple(name.lower() for name in parts):
        raise UsageError(
            f"the table {table.name} is partitioned by {', '.join(parts) or 'no column'}, not by "
            f"{', '.join(target.partition_by)}: omit partitionBy"
        )
    _check_columns(table.name, columns, schema)
    option_names = {key.lower() for key in target.settings}
    options = {
        key: value for key, value in stored.options.items() if key.lower() not in option_names
    }
    return FilePlace(
        path=stored.path,
        source=table.source,
        schema=schema,
        partition_by=parts,
        options={**options, **target.options()},
        columns=columns.names,
        refresh=stored.refresh,
    )


def _columns_of_files(
    tables: Tables, name: str, output: StructType
) -> tuple[StructType, tuple[str, ...]]:
    """
    Return the columns and partitions of a table whose columns the catalog does not list.

    Partition columns have the types of the output: their types in the folders' names are guesses.
    """
    columns, parts = tables.read_columns(name)
    types = {field.name.lower(): field for field in output.fields}
    return StructType(
        [
            types.get(column.name.lower(), column) if column.name in parts else column
            for column in columns
        ]
    ), parts


def _check_columns(name: str, stored: StructType, output: StructType) -> None:
    """Check that the output columns match the columns of a table by name and type."""
    have = {field.name.lower(): field.dataType for field in output.fields}
    need = {field.name.lower(): field.dataType for field in stored.fields}
    if have.keys() != need.keys():
        raise UsageError(
            f"the table {name} has the columns {', '.join(stored.names)}, but the output has "
            f"{', '.join(output.names)}: select the columns of the table"
        )
    for column, kind in need.items():
        if _shape(have[column]) != _shape(kind):
            raise UsageError(
                f"the column {column} of the table {name} is {kind.simpleString()}, but in the "
                f"output it is {have[column].simpleString()}: cast it"
            )


def _shape(kind: DataType) -> str:
    return kind.simpleString().lower()


def _view_error(name: str) -> UsageError:
    return UsageError(f"{name} is a view, and a query cannot write to a view: use a table")


def _first_line(error: PySparkException) -> str:
    return (error.getMessage() or str(error)).splitlines()[0]
