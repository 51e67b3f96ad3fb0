"""
The sink of files: Spark's own streaming file sink, with its log beside the data.

A micro-batch that is delivered again is skipped, and what a killed task left behind is in no entry
of the log, so that Spark's readers ignore it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from statelog.runtime.fail_points import fail_point
from statelog.spark.jvm.sinks import FileStreamSink
from statelog.spark.query.writer_name import writer_id
from statelog.spark.stream.sinks.file_entries import Delivered, FileEntries
from statelog.spark.stream.sinks.target import OptionValue


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
        options = {key: _text(value) for key, value in place.options.items()}
        options = {key: text for key, text in options.items() if key.lower() != "path"}
        self._sink = FileStreamSink(
            session,
            place.source,
            place.schema,
            place.partition_by,
            {**options, "path": place.path},
        )

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
        self._sink.add(entry, frame)
        fail_point("after-files")
        self._entries.end(entry)
        if self._place.refresh is not None:
            self._place.refresh()


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _text(value: OptionValue) -> str:
    """Return an option as PySpark passes it to the JVM."""
    return str(value).lower() if isinstance(value, bool) else str(value)
