"""
Tables that a query writes to, as the session's catalogs have them.

A table of files is written by the sink of files, in the folder of the table.  All others are written
by Spark's batch writer.
Source: Spark's DataStreamWriter.toTable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from statelog.errors import UsageError
from statelog.spark.rows.jvm import JavaObject, jvm_of
from statelog.spark.stream.sinks.file_sink import FilePlace
from statelog.spark.stream.sinks.target import Target, columns_of

_SESSION_CATALOG: Final = "spark_catalog"
_IGNORE_LOG: Final = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
_FOLDER_EXISTS: Final = "LOCATION_ALREADY_EXISTS"


@dataclass(frozen=True, slots=True)
class KnownTable:
    """
    A table that exists.

    Args:
        name: The name that the caller typed.
        source: Its format in lower case; "" if the catalog has none.
        entry: Its CatalogTable in the session's catalog; None if another catalog has it.
    """

    name: str
    source: str
    entry: JavaObject


class Catalog:
    """
    Finds and creates tables by name.

    Args:
        session: The user's session.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._jvm: JavaObject = jvm_of(session)
        self._state: JavaObject = session._jsparkSession.sessionState()

    def find(self, name: str) -> KnownTable | None:
        """
        Return a table; None if there is none of this name.

        Raises:
            ParseException: The name cannot be read.
            UsageError: It is the name of a view.
        """
        parts = self._state.sqlParser().parseMultipartIdentifier(name)
        if self._state.catalog().isTempView(parts):
            raise _is_view(name)
        catalog, identifier = self._resolve(name)
        if not catalog.tableExists(identifier):
            return None
        table = catalog.loadTable(identifier)
        entry = table.v1Table() if table.getClass().getSimpleName() == "V1Table" else None
        if entry is not None and entry.tableType().name() == "VIEW":
            raise _is_view(name)
        return KnownTable(name, (table.properties().get("provider") or "").lower(), entry)

    def create_of_files(self, target: Target, source: str, schema: StructType) -> None:
        """
        Create a table of files, as Spark's `toTable` does; the option `path` is its folder.

        The folder may have the rows of earlier runs, because a catalog in memory forgets its tables
        when the session ends.

        Raises:
            AnalysisException: The catalog refuses.
            UsageError: The folder exists, and the caller did not name it.
        """
        parts = self._state.sqlParser().parseMultipartIdentifier(target.table)
        names = [_quoted(parts.apply(at)) for at in range(parts.length())]
        every = self._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).asNullable()
        words = [f"CREATE TABLE {'.'.join(names)} ({every.toDDL()}) USING {source}"]
        for verb, columns in (
            ("PARTITIONED BY", target.partition_by),
            ("CLUSTER BY", target.cluster_by),
        ):
            if columns:
                wanted = ", ".join(map(_quoted, columns_of(schema.names, columns)))
                words.append(f"{verb} ({wanted})")
        path = target.option("path", None)
        if path is not None:
            escaped = str(path).replace("\\", "\\\\").replace("'", "\\'")
            words.append(f"LOCATION '{escaped}'")
        # Where a folder has the log of the streaming sink, Spark takes the partition columns for
        # columns of the files too, and stores the table without columns and partitions.
        session = self._session._jsparkSession.cloneSession()
        session.conf().set(_IGNORE_LOG, "true")
        try:
            session.sql(" ".join(words))
        except PySparkException as error:
            if error.getCondition() != _FOLDER_EXISTS:
                raise
            raise UsageError(
                f"the catalog has no table {target.table}, but its folder exists "
                f"({_first_line(error)}). A catalog in memory forgets its tables when the session "
                "ends: name the folder by .option('path', ...) to go on with the rows that it has, "
                "or keep tables in a metastore (enableHiveSupport)"
            ) from error

    def has_session_catalog(self, name: str) -> bool:
        """Return whether a table of this name would be in the session's own catalog."""
        return str(self._resolve(name)[0].name()) == _SESSION_CATALOG

    def place_of(self, table: KnownTable, target: Target, schema: StructType) -> FilePlace:
        """
        Return where and how to write the files of a table.

        Args:
            table: A table of files.
            target: What the caller asked for.
            schema: Columns of the output.

        Raises:
            UsageError: The output does not fit the table.
        """
        entry = table.entry
        if entry.bucketSpec().isDefined():
            raise UsageError(
                f"the table {table.name} has buckets, which streaming output cannot have: write to "
                "a table without CLUSTERED BY"
            )
        stored = StructType.fromJson(json.loads(entry.schema().json()))
        parts = tuple(_texts(entry.partitionColumnNames()))
        if not stored.fields:
            stored, parts = self._read_from_files(table.name, schema)
        wanted = tuple(name.lower() for name in target.partition_by)
        if wanted and wanted != tuple(name.lower() for name in parts):
            raise UsageError(
                f"the table {table.name} is partitioned by {', '.join(parts) or 'no column'}, not by "
                f"{', '.join(target.partition_by)}: leave partitionBy out"
            )
        _check_columns(table.name, stored, schema)
        storage = entry.storage().properties()
        own = {str(key): str(storage.apply(key)) for key in _texts(storage.keys().toSeq())}
        given = {key.lower() for key in target.settings}
        options = {key: value for key, value in own.items() if key.lower() not in given}
        return FilePlace(
            path=self._jvm.org.apache.hadoop.fs.Path(entry.location()).toString(),
            source=table.source,
            schema=schema,
            partition_by=parts,
            options={**options, **target.options()},
            columns=stored.names,
            refresh=self._refresh(entry),
        )

    def _read_from_files(self, name: str, schema: StructType) -> tuple[StructType, tuple[str, ...]]:
        """
        Return the columns and partitions of a table that the catalog has without columns.

        Partition columns have the types of the output: those of the folders' names are guesses.
        """
        relation = self._session.table(name)._jdf.queryExecution().analyzed().collectLeaves()
        files = relation.head().relation()
        found = StructType.fromJson(json.loads(files.schema().json()))
        parts = tuple(StructType.fromJson(json.loads(files.partitionSchema().json())).names)
        own = {field.name.lower(): field for field in schema.fields}
        known = [own.get(one.name.lower(), one) if one.name in parts else one for one in found]
        return StructType(known), parts

    def _refresh(self, entry: JavaObject) -> Callable[[], object]:
        catalog, identifier = self._state.catalog(), entry.identifier()
        return lambda: catalog.refreshTable(identifier)

    def _resolve(self, name: str) -> tuple[JavaObject, JavaObject]:
        """Return the catalog of a name, and its identifier there."""
        parts = self._state.sqlParser().parseMultipartIdentifier(name)
        found = self._state.analyzer().CatalogAndIdentifier().unapply(parts).get()
        return found._1(), found._2()


def _check_columns(name: str, stored: StructType, output: StructType) -> None:
    """Check that the output has the columns of a table, by name and type."""
    have = {field.name.lower(): field.dataType for field in output.fields}
    need = {field.name.lower(): field.dataType for field in stored.fields}
    if have.keys() != need.keys():
        raise UsageError(
            f"the table {name} has the columns {', '.join(stored.names)}, the output has "
            f"{', '.join(output.names)}: select the columns of the table"
        )
    for column, kind in need.items():
        if _shape(have[column]) != _shape(kind):
            raise UsageError(
                f"the column {column} of the table {name} is {kind.simpleString()}, that of the "
                f"output is {have[column].simpleString()}: cast it"
            )


def _shape(kind: DataType) -> str:
    return kind.simpleString().lower()


def _is_view(name: str) -> UsageError:
    return UsageError(f"{name} is a view, and a query cannot write to a view: name a table")


def _first_line(error: PySparkException) -> str:
    return (error.getMessage() or str(error)).splitlines()[0]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _texts(names: JavaObject) -> list[str]:
    """Return a sequence of Scala as a list."""
    return [str(names.apply(at)) for at in range(names.length())]
