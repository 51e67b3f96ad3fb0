"""
The sink of files: Spark's own streaming file sink, with its log beside the data.

A micro-batch that is delivered again is skipped, and what a killed task left behind is in no entry
of the log, so that Spark's readers ignore it.
Source: Spark's DataStreamWriter, DataSource.createSink and FileStreamSink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from statelog.runtime.fail_points import fail_point
from statelog.spark.rows.jvm import JavaObject, jvm_of
from statelog.spark.stream.sinks.file_entries import Delivered, FileEntries
from statelog.spark.stream.sinks.identity import writer_id
from statelog.spark.stream.sinks.target import OptionValue

_DATA_SOURCE: Final = "org.apache.spark.sql.execution.datasources.DataSource"
_FIRST_DEFAULT: Final = 3
"""The first parameter of its constructor that has a default; parameters are counted from 1."""
_PARTITION_COLUMNS: Final = 4
_OPTIONS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlace:
    """
    Where files are written, and how.

    Args:
        path: The folder.
        source: The format.
        schema: Columns of the output.
        partition_by: Columns of the folders inside.
        options: Options of the format.
        columns: Columns of the files in their order; empty for those of the output.
        refresh: Called after each micro-batch, so that the session's readers see it.
    """

    path: str
    source: str
    schema: StructType
    partition_by: Sequence[str] = ()
    options: Mapping[str, OptionValue]
    columns: Sequence[str] = ()
    refresh: Callable[[], object] | None = None


class FileSink:
    """
    Writes each micro-batch once.

    Args:
        session: The user's session.
        place: Where and how.
        entries: The entries of the folder's log.

    Raises:
        AnalysisException: The format cannot write the output.
    """

    def __init__(self, session: SparkSession, place: FilePlace, entries: FileEntries) -> None:
        self._place = place
        self._entries = entries
        self._sink = _spark_sink(session, place)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """
        Write a micro-batch, unless the folder has it.

        Raises:
            CheckpointError: The folder has later micro-batches of this query (`reason` "gap").
            FencedError: Another query writes to the folder.
        """
        entry = self._entries.begin(Delivered(writer_id(frame), batch_id))
        if entry is None:
            return
        fail_point("before-files")
        if self._place.columns:
            frame = frame.select(*map(_column, self._place.columns))
        self._sink.addBatch(entry, frame._jdf)
        fail_point("after-files")
        self._entries.end(entry)
        if self._place.refresh is not None:
            self._place.refresh()


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _spark_sink(session: SparkSession, place: FilePlace) -> JavaObject:
    """Return Spark's sink for files, made as Spark's `DataStreamWriter` makes it."""
    jvm = jvm_of(session)
    sources = jvm.org.apache.spark.sql.execution.datasources.DataSource
    made_by = jvm.java.lang.Class.forName(_DATA_SOURCE).getConstructors()[0]
    # Spark 4.3 has one parameter more than 4.0; the positions of these two are the same.
    arguments = [session._jsparkSession, place.source]
    arguments += [
        getattr(sources, f"apply$default${number}")()
        for number in range(_FIRST_DEFAULT, made_by.getParameterCount() + 1)
    ]
    texts = {key: _text(value) for key, value in place.options.items() if key.lower() != "path"}
    arguments[_PARTITION_COLUMNS] = jvm.PythonUtils.toSeq(list(place.partition_by))
    arguments[_OPTIONS] = jvm.PythonUtils.toScalaMap({**texts, "path": place.path})
    found = sources.apply(*arguments)
    asked = [jvm.org.apache.spark.sql.streaming.OutputMode.Append()]
    methods = found.getClass().getMethods()
    if any(one.getName() == "createSink" and one.getParameterCount() > 1 for one in methods):
        # Newer versions of Spark check the types of the output here.
        asked.append(jvm.org.apache.spark.sql.types.DataType.fromJson(place.schema.json()))
    return found.createSink(*asked)


def _text(value: OptionValue) -> str:
    """Return an option as PySpark passes it to the JVM."""
    return str(value).lower() if isinstance(value, bool) else str(value)
