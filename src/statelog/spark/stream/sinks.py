"""Sinks for what `writeStream` is told: each micro-batch written as a batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.spark.driver.arrow_frame import frame_of_arrow
from statelog.spark.query.delivery import Sink
from statelog.spark.stream import temporary_checkpoint

_READ_ONLY = ("binaryfile", "rate", "rate-micro-batch", "socket", "state-metadata", "statestore")
_FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "text", "xml")


@dataclass(frozen=True, slots=True)
class Target:
    """
    Where output is written, and how.

    Args:
        source: The format; None for the session's default.
        table: Name of a table, or None.
        partition_by, cluster_by: Columns to lay it out by.
        settings: The sink's options: lower-case key -> key and value.
    """

    source: str | None = None
    table: str | None = None
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, Any]] = field(default_factory=lambda: MappingProxyType({}))

    def with_option(self, key: str, value: Any) -> Target:
        """Return the target with one more option; keys differ by more than case."""
        return replace(self, settings={**self.settings, key.lower(): (key, value)})

    @property
    def is_one_time(self) -> bool:
        """Whether Spark gives a query with this sink a temporary_checkpoint checkpointLocation."""
        return self.table is None and (self.source or "").lower() in temporary_checkpoint.SINKS

    def option(self, key: str, default: Any) -> Any:
        """Return the value of an option."""
        return self.settings.get(key.lower(), (key, default))[1]


def batch_sink(
    session: SparkSession, schema: StructType, target: Target, query_name: str | None
) -> Sink:
    """
    Return a sink that appends each micro-batch with Spark's batch writer.

    A batch that is replayed is written again, so only `foreachBatch` with a sink that honours the
    batch id is exactly once.

    Args:
        session: The user's session, where a table in memory can be seen.
        schema: Columns of the output.
        target: Where to write.
        query_name: Name of the query; that of the table in memory.

    Raises:
        AnalysisException: Spark lacks the package for the format.
        UsageError: `memory` without a query name, files without a path, or a column to lay the
            output out by that is not there.
    """
    source = (target.source or session.conf.get("spark.sql.sources.default") or "").lower()
    if target.table is None and source == "console":
        truncate = str(target.option("truncate", "true")).lower() == "true"
        return _Console(int(target.option("numRows", 20)), truncate)
    if target.table is None and source == "memory":
        if not query_name:
            raise UsageError("the memory sink needs a queryName: the table is called so")
        return _Memory(session, query_name, schema)
    _check_format(session, source)
    if target.table is None and source in _FILE_FORMATS and target.option("path", None) is None:
        raise UsageError(f"the format {source} needs a path: .start(path) or .option('path', ...)")
    columns = {name.lower() for name in schema.names}
    for name in (*target.partition_by, *target.cluster_by):
        if name.lower() not in columns:
            raise UsageError(
                f"cannot lay the output out by {name!r}: it has the columns "
                f"{', '.join(schema.names)}"
            )

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.mode("append").options(**dict(target.settings.values()))
        if target.source is not None:
            writer = writer.format(target.source)
        if target.partition_by:
            writer = writer.partitionBy(*target.partition_by)
        if target.cluster_by:
            writer = writer.clusterBy(*target.cluster_by)
        if target.table is not None:
            writer.saveAsTable(target.table)
        else:
            writer.save()

    return write


def _check_format(session: SparkSession, source: str) -> None:
    """
    Refuse a format before the first micro-batch is committed.

    Raises:
        AnalysisException: Spark lacks the package for it.
        UsageError: Spark knows no such format, or it can be read only.
    """
    if source in _READ_ONLY:
        raise UsageError(f"the format {source} can be read only; write to another one")
    if source:
        jvm: Any = session._jvm
        conf = session._jsparkSession.sessionState().conf()
        find = jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource
        try:
            find(source, conf)
        except Py4JJavaError as error:  # as Spark leaves it: with the whole stack of the JVM
            raise UsageError(
                f"the output cannot be written: {error.java_exception.getMessage()}"
            ) from None


def foreach_sink(f: Any) -> Sink:
    """
    Return a sink that gives each row to *f*, in the tasks.

    Args:
        f: A function of a row, or an object with `process(row)` and, if it likes,
            `open(partition_id, epoch_id)` and `close(error)`.

    Raises:
        PySparkAttributeError: *f* is neither.
    """
    process: Any = DataStreamWriter._construct_foreach_function(f)

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.rdd.mapPartitionsWithIndex(process).count()

    return write


class _Console:
    """Prints each micro-batch."""

    def __init__(self, rows: int, truncate: bool) -> None:
        self._rows = rows
        self._truncate = truncate

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        line = "-" * 43
        sys.stdout.write(f"{line}\nBatch: {batch_id}\n{line}\n")
        frame.show(self._rows, self._truncate)


class _Memory:
    """Gathers all rows in the driver, as a temporary_checkpoint view; for tests and small results."""

    def __init__(self, session: SparkSession, name: str, schema: StructType) -> None:
        self._session = session  # that of a micro-batch is a copy, whose views nobody sees
        self._name = name
        self._schema = schema
        self._batches: dict[int, pa.Table] = {}
        self._show()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self._batches[batch_id] = frame.toArrow()
        self._show()

    def _show(self) -> None:
        if self._batches:
            rows = pa.concat_tables(self._batches.values())
            view = frame_of_arrow(self._session, rows, self._schema)
        else:
            view = self._session.createDataFrame([], self._schema)
        view.createOrReplaceTempView(self._name)
