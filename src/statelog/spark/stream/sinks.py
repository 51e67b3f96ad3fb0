"""Sinks that write each micro-batch with Spark's batch writer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.spark.driver.arrow_frame import frame_of_arrow
from statelog.spark.query.delivery import Sink
from statelog.spark.rows.jvm import jvm_of
from statelog.spark.stream import temporary_checkpoint

if TYPE_CHECKING:
    from pyspark.sql._typing import SupportsProcess

_READ_ONLY = ("binaryfile", "rate", "rate-micro-batch", "socket", "state-metadata", "statestore")
_FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "text", "xml")

OptionValue = bool | float | int | str | None
"""The value of an option of Spark's writers."""

RowFunction: TypeAlias = "Callable[[Row], None] | SupportsProcess"
"""What `foreach` takes."""


@dataclass(frozen=True, slots=True)
class Target:
    """
    The place and form in which output is written.

    Args:
        source: The format; None for the session's default.
        table: Name of a table, or None.
        partition_by, cluster_by: Columns by which files are partitioned or clustered.
        settings: The sink's options: lower-case key -> key and value.
    """

    source: str | None = None
    table: str | None = None
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, OptionValue]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def with_option(self, key: str, value: OptionValue) -> Target:
        """
        Return the target with one more option.

        The case of a key has no meaning.
        """
        return replace(self, settings={**self.settings, key.lower(): (key, value)})

    @property
    def is_one_time(self) -> bool:
        """Whether Spark gives a query with this sink a temporary checkpointLocation."""
        return self.table is None and (self.source or "").lower() in temporary_checkpoint.SINKS

    def option(self, key: str, default: OptionValue) -> OptionValue:
        """Return the value of an option."""
        return self.settings.get(key.lower(), (key, default))[1]


def batch_sink(
    session: SparkSession, schema: StructType, target: Target, query_name: str | None
) -> Sink:
    """
    Return a sink that appends each micro-batch with Spark's batch writer.

    A batch that is replayed is written again.  Exactly once needs `foreachBatch` with a sink that
    uses the batch id.

    Args:
        session: The user's session, in which a table in memory is visible.
        schema: Columns of the output.
        target: Where to write.
        query_name: Name of the query, and of the table in memory.

    Raises:
        AnalysisException: Spark lacks the package for the format.
        UsageError: `memory` has no query name, files have no path, or a column of *target* is
            missing.
    """
    source = (target.source or session.conf.get("spark.sql.sources.default") or "").lower()
    if target.table is None and source == "console":
        truncate = str(target.option("truncate", "true")).lower() == "true"
        return _Console(int(str(target.option("numRows", 20))), truncate)
    if target.table is None and source == "memory":
        if not query_name:
            raise UsageError("the memory sink needs a queryName, which is the name of its table")
        return _Memory(session, query_name, schema)
    _check_format(session, source)
    if target.table is None and source in _FILE_FORMATS and target.option("path", None) is None:
        raise UsageError(f"the format {source} needs a path: .start(path) or .option('path', ...)")
    columns = {name.lower() for name in schema.names}
    for name in (*target.partition_by, *target.cluster_by):
        if name.lower() not in columns:
            raise UsageError(
                f"cannot partition or cluster the output by {name!r}: it has the columns "
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
    Check a format before the first micro-batch is committed.

    Raises:
        AnalysisException: Spark lacks the package for it.
        UsageError: Spark has no such format, or can only read it.
    """
    if source in _READ_ONLY:
        raise UsageError(f"the format {source} can be read only; use another one")
    if source:
        conf = session._jsparkSession.sessionState().conf()
        find = jvm_of(
            session
        ).org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource
        try:
            find(source, conf)
        except Py4JJavaError as error:  # its text has the whole stack of the JVM
            raise UsageError(
                f"the output cannot be written: {error.java_exception.getMessage()}"
            ) from None


def foreach_sink(f: RowFunction) -> Sink:
    """
    Return a sink that calls *f* with each row, in the tasks.

    Args:
        f: A function of a row, or an object with `process(row)` and, optionally,
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
    """
    Collects all rows in the driver as a temporary view.

    For tests and small results.
    """

    def __init__(self, session: SparkSession, name: str, schema: StructType) -> None:
        self._session = session  # a micro-batch has a copy of it, whose views the user cannot see
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
