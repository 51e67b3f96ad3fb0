"""
Access Spark's file sink and file formats, and the tables in its catalogs.

PySpark does not have a call for a sink and a micro-batch, looks formats up only when rows are
written, and does not know the partitions of a table.
Source: Spark's DataStreamWriter, DataSource.createSink, FileStreamSink.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.spark.jvm.gateway import JavaObject, elements, jvm_of

_FORMATS: Final = "org.apache.spark.sql.execution.datasources"
_FILE_FORMATS: Final = (f"{_FORMATS}.FileFormat", f"{_FORMATS}.v2.FileDataSourceV2")
_DATA_SOURCE: Final = f"{_FORMATS}.DataSource"
_FIRST_DEFAULT: Final = 3
"""The first parameter of its constructor that has a default; parameters are counted from 1."""
_PARTITION_COLUMNS: Final = 4
_OPTIONS: Final = 6
_SESSION_CATALOG: Final = "spark_catalog"
_IGNORE_LOG: Final = "spark.sql.streaming.fileStreamSink.ignoreMetadata"


def is_format_of_files(session: SparkSession, source: str) -> bool:
    """Return whether a format stores files."""
    jvm = jvm_of(session)
    conf = session._jsparkSession.sessionState().conf()
    lookup = jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource
    try:
        source_class = lookup(source, conf)
    except Py4JJavaError as error:  # its text has the whole stack of the JVM
        raise UsageError(
            f"the output cannot be written: {error.java_exception.getMessage()}"
        ) from None
    of_files = (jvm.java.lang.Class.forName(name) for name in _FILE_FORMATS)
    return any(kind.isAssignableFrom(source_class) for kind in of_files)


class FileStreamSink:
    """Spark's file sink, created in the same way as by Spark's `DataStreamWriter`."""

    def __init__(
        self,
        session: SparkSession,
        source: str,
        schema: StructType,
        partition_by: Sequence[str],
        options: Mapping[str, str],
    ) -> None:
        jvm = jvm_of(session)
        sources = jvm.org.apache.spark.sql.execution.datasources.DataSource
        constructor = jvm.java.lang.Class.forName(_DATA_SOURCE).getConstructors()[0]
        # Spark 4.3 has one parameter more than 4.0; the positions of these two are the same.
        arguments = [session._jsparkSession, source]
        arguments += [
            getattr(sources, f"apply$default${number}")()
            for number in range(_FIRST_DEFAULT, constructor.getParameterCount() + 1)
        ]
        arguments[_PARTITION_COLUMNS] = jvm.PythonUtils.toSeq(list(partition_by))
        arguments[_OPTIONS] = jvm.PythonUtils.toScalaMap(dict(options))
        data_source = sources.apply(*arguments)
        of_sink = [jvm.org.apache.spark.sql.streaming.OutputMode.Append()]
        if any(
            method.getName() == "createSink" and method.getParameterCount() > 1
            for method in data_source.getClass().getMethods()
        ):
            # Newer versions of Spark check the types of the output here.
            of_sink.append(jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()))
        self._sink: JavaObject = data_source.createSink(*of_sink)

    def add(self, entry: int, frame: DataFrame) -> None:
        """Write a micro-batch as an entry in the folder's log."""
        self._sink.addBatch(entry, frame._jdf)


@dataclass(frozen=True, slots=True)
class FileTable:
    """
    A table in the session's own catalog, in its stored form.

    Args:
        schema: Its columns, with the partitions at the end; empty where the catalog has none.
        options, path: Options of its format, and its folder.
        refresh: Lets the session's readers see new files.
    """

    has_buckets: bool
    schema: StructType
    partition_by: tuple[str, ...]
    options: Mapping[str, str]
    path: str
    refresh: Callable[[], object]


class Tables:
    """The tables in a session's catalogs."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._jvm = jvm_of(session)
        self._state: JavaObject = session._jsparkSession.sessionState()

    def parts(self, name: str) -> list[str]:
        """Split a dotted name into its parts, as Spark parses it."""
        return [str(part) for part in elements(self._parsed(name))]

    def is_temporary_view(self, name: str) -> bool:
        """Return whether this is the name of a temporary view."""
        return bool(self._state.catalog().isTempView(self._parsed(name)))

    def in_session_catalog(self, name: str) -> bool:
        """Return whether a table with this name would belong to the session's own catalog."""
        return str(self._resolve(name)[0].name()) == _SESSION_CATALOG

    def load(self, name: str) -> tuple[str, JavaObject] | None:
        """Return a table's format or "", and its CatalogTable in the session's catalog or None."""
        catalog, identifier = self._resolve(name)
        if not catalog.tableExists(identifier):
            return None
        table = catalog.loadTable(identifier)
        entry = table.v1Table() if table.getClass().getSimpleName() == "V1Table" else None
        return (table.properties().get("provider") or "").lower(), entry

    def ddl(self, schema: StructType) -> str:
        """Return the columns as DDL, all of them nullable."""
        types = self._jvm.org.apache.spark.sql.types.DataType
        text: str = types.fromJson(schema.json()).asNullable().toDDL()
        return text

    def create(self, statement: str) -> None:
        """
        Run CREATE TABLE, ignoring the log of a streaming sink in the table's folder.

        With the log, Spark takes the partition columns for columns of the files too, and stores the
        table without columns and partitions.
        """
        session = self._session._jsparkSession.cloneSession()
        session.conf().set(_IGNORE_LOG, "true")
        session.sql(statement)

    def of_files(self, entry: JavaObject) -> FileTable:
        """Return a file-based table in the session's catalog, given its CatalogTable."""
        properties = entry.storage().properties()
        catalog = self._state.catalog()
        identifier = entry.identifier()
        return FileTable(
            has_buckets=entry.bucketSpec().isDefined(),
            schema=_schema(entry.schema()),
            partition_by=tuple(map(str, elements(entry.partitionColumnNames()))),
            options={
                str(key): str(properties.apply(key)) for key in elements(properties.keys().toSeq())
            },
            path=self._jvm.org.apache.hadoop.fs.Path(entry.location()).toString(),
            refresh=lambda: catalog.refreshTable(identifier),
        )

    def read_columns(self, name: str) -> tuple[StructType, tuple[str, ...]]:
        """Return the columns and partitions of a file-based table, as its files store them."""
        relation = self._session.table(name)._jdf.queryExecution().analyzed().collectLeaves()
        files = relation.head().relation()
        return _schema(files.schema()), tuple(_schema(files.partitionSchema()).names)

    def _parsed(self, name: str) -> JavaObject:
        return self._state.sqlParser().parseMultipartIdentifier(name)

    def _resolve(self, name: str) -> tuple[JavaObject, JavaObject]:
        """Return the catalog that a name belongs to, and the name's identifier in it."""
        resolved = self._state.analyzer().CatalogAndIdentifier().unapply(self._parsed(name)).get()
        return resolved._1(), resolved._2()


def is_view(entry: JavaObject) -> bool:
    """Return whether a CatalogTable describes a view."""
    return bool(entry.tableType().name() == "VIEW")


def _schema(schema: JavaObject) -> StructType:
    return StructType.fromJson(json.loads(schema.json()))
