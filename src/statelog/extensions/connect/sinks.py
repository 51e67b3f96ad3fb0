"""Write the rows of a micro-batch in the worker of a Connect query."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from statelog.errors import InvariantError, UsageError
from statelog.spark.query.delivery import FileOutput, Sink
from statelog.spark.stream.sinks.delta import written_by_spark
from statelog.spark.stream.sinks.simple import (
    Memory,
    OptionValue,
    RowFunction,
    Target,
    columns_of,
    looking_sink,
    no_path,
    refuse_read_only,
)

_FILE_FORMATS: Final = ("avro", "csv", "json", "orc", "parquet", "text", "xml")
_READ_BY_LOG: Final = "MetadataLogFileIndex"
"""In the plan of a read: the files come from the log, which is itself hidden from readers."""


def sink_of(
    session: SparkSession,
    target: Target,
    schema: StructType,
    query_name: str | None,
    file_output: FileOutput,
) -> Sink:
    """
    Return a sink for a format or table that can be pickled.

    Reject what Connect cannot write.
    """
    source = (target.source or session.conf.get("spark.sql.sources.default") or "").lower()
    sink = looking_sink(
        target, source, query_name, lambda name: _memory_in_worker(session, name, schema)
    )
    if sink is not None:
        return sink
    refuse_read_only(source)
    columns_of(schema.names, (*target.partition_by, *target.cluster_by))
    if target.table is not None:
        source = _provider(session, target.table) or source
    if source in _FILE_FORMATS:
        if file_output is not FileOutput.APPEND:
            raise _no_file_sink(source)
        if target.table is None:
            _check_folder(session, source, target.option("path", None))
    return written_by_spark(target, source)


def _memory_in_worker(session: SparkSession, name: str, schema: StructType) -> MemoryInWorker:
    Memory(session, name, schema)  # an empty view, until there are rows
    return MemoryInWorker(name, schema)


def _check_folder(session: SparkSession, source: str, path: OptionValue) -> None:
    if path is None:
        raise no_path(source)
    if _has_log(session, str(path)):
        raise UsageError(
            f"{path} contains a log of streaming output, which would hide appended files from Spark's "
            "readers: write to a different folder"
        )


def _has_log(session: SparkSession, path: str) -> bool:
    """Return whether Spark would read a folder through its streaming file sink's log."""
    files: Any = session.read.format("text").load(path)
    try:
        return _READ_BY_LOG in files._explain_string()
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return False
        raise


def _no_file_sink(source: str) -> UsageError:
    return UsageError(
        f"{source} files cannot be written exactly once by .format() on Spark Connect, which cannot "
        "reach Spark's streaming file sink. Either write each micro-batch to a separate folder, "
        "which is overwritten if the micro-batch is repeated: .foreachBatch(lambda frame, batch_id: "
        f"frame.write.mode('overwrite').format('{source}').save(f'{{folder}}/batch={{batch_id}}')); "
        "or write to a table with transactions (delta); or accept that a repeated micro-batch is "
        "appended again: .option('statelog.fileSink', 'append')"
    )


def _provider(session: SparkSession, table: str) -> str | None:
    """Return a table's format in lower case, or None if the table does not exist."""
    if not session.catalog.tableExists(table):
        return None
    rows = session.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    providers = [row[1] for row in rows if row[0] == "Provider"]
    return str(providers[-1]).lower() if providers else None


class MemoryInWorker:
    """Collects all rows in a temporary view of the user's session."""

    def __init__(self, name: str, schema: StructType) -> None:
        self._name = name
        self._schema = schema
        self._memory: Memory | None = None

    def begin(self, session: SparkSession) -> None:
        """Start using the user's session in the worker."""
        self._memory = Memory(session, self._name, self._schema)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if self._memory is None:
            raise InvariantError("the memory sink was not given the worker's session")
        self._memory(frame, batch_id)


class Foreach:
    """Calls the function of Spark's `foreach` with each row, in the tasks."""

    def __init__(self, f: RowFunction) -> None:
        DataStreamWriter._construct_foreach_function(f)  # checks it
        self._f = f

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        frame.foreachPartition(partial(_process, self._f, batch_id))


def _process(f: Any, batch_id: int, rows: Iterable[Row]) -> None:
    if not hasattr(f, "process"):
        for row in rows:
            f(row)
        return
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    if hasattr(f, "open") and not f.open(partition, batch_id):
        return
    failure: Exception | None = None
    try:
        for row in rows:
            f.process(row)
    except Exception as error:
        failure = error
        raise
    finally:
        if hasattr(f, "close"):
            f.close(failure)
