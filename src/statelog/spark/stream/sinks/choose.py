"""Choose the sink for a target, and check it before the first micro-batch commits."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from statelog.checkpoint.query_files import QueryFiles, newest_batch, recorded_query_id
from statelog.errors import UsageError
from statelog.spark.jvm.sinks import Tables, is_format_of_files
from statelog.spark.query.delivery import FileOutput, Sink
from statelog.spark.stream.sinks.delta import written_by_spark
from statelog.spark.stream.sinks.file_sink import FileEntries, FilePlace, FileSink
from statelog.spark.stream.sinks.simple import (
    Memory,
    Target,
    columns_of,
    looking_sink,
    no_path,
    refuse_read_only,
)
from statelog.spark.stream.sinks.tables import KnownTable, create_of_files, find_table, place_of

_log = logging.getLogger("statelog.spark")

_RETAINED: Final = "spark.sql.streaming.minBatchesToRetain"
_COMPACTED: Final = "spark.sql.streaming.fileSink.log.compactInterval"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a sink needs to know about its query; an in-memory table is visible in *session*."""

    session: SparkSession
    schema: StructType
    query_name: str | None
    files: QueryFiles
    file_output: FileOutput


def sink_of(context: SinkContext, target: Target) -> Sink:
    """
    Choose the sink for a target, and check it.

    Files and tables of files are written once; a table of files is created if it is missing.  Other
    formats are written by Spark's batch writer: Delta once, all others at least once.
    """
    session = context.session
    schema = context.schema
    source = (target.source or session.conf.get("spark.sql.sources.default") or "").lower()
    # 1. Formats that only show rows: console and memory.
    sink = looking_sink(
        target, source, context.query_name, lambda name: Memory(session, name, schema)
    )
    if sink is not None:
        return sink
    # 2. A table, by its name.
    is_of_files = _check_format(session, source)
    columns_of(schema.names, (*target.partition_by, *target.cluster_by))
    if target.table is not None:
        return _table_sink(context, target, source, is_of_files=is_of_files)
    # 3. Another system, or a folder of files.
    if not is_of_files:
        return written_by_spark(target, source)
    path = target.option("path", None)
    if path is None:
        raise no_path(source)
    place = FilePlace(
        path=str(path),
        source=source,
        schema=schema,
        partition_by=columns_of(schema.names, target.partition_by),
        options=target.options(),
    )
    return _sink_of_files(context, target, place)


def _table_sink(context: SinkContext, target: Target, source: str, *, is_of_files: bool) -> Sink:
    tables = Tables(context.session)
    name = target.table or ""
    table = find_table(tables, name)
    if table is None and is_of_files and tables.in_session_catalog(name):
        create_of_files(tables, target, source, context.schema)
        table = find_table(tables, name)
    if table is None:
        return written_by_spark(target, source)
    if target.source is not None and table.source not in ("", source):
        raise UsageError(
            f"the table {name} has the format {table.source}, but the query writes {source}: omit "
            "format, or set it to the table's format"
        )
    if not _is_table_of_files(context.session, table):
        return written_by_spark(replace(target, source=table.source or target.source), table.source)
    return _sink_of_files(context, target, place_of(tables, table, target, context.schema))


def _is_table_of_files(session: SparkSession, table: KnownTable) -> bool:
    if table.entry is None or table.source in ("", "hive"):  # Hive's formats are not data sources
        return False
    return _check_format(session, table.source)


def _sink_of_files(context: SinkContext, target: Target, place: FilePlace) -> Sink:
    if context.file_output is FileOutput.APPEND:
        if FileEntries(context.session, place.path).has_log():
            raise UsageError(
                f"{place.path} contains a log of streaming output, which would hide appended files from "
                "Spark's readers: omit fileSink='append', or write to a different folder"
            )
        return written_by_spark(target, place.source)
    entries = FileEntries(context.session, place.path, newest_batch(context.files))
    entries.check(recorded_query_id(context.files))
    _warn_of_short_log(context.session)
    return FileSink(context.session, place, entries)


def _warn_of_short_log(session: SparkSession) -> None:
    """
    Warn about settings that make Spark lose log entries.

    After a restart it derives the interval from the two newest entries `<n>.compact`.  Where it has
    kept only one it may derive another interval, and then deletes entries that are in no other.
    """
    retained, interval = (int(session.conf.get(name) or 0) for name in (_RETAINED, _COMPACTED))
    if retained < 2 * interval:
        _log.warning(
            "%s is %d and %s is %d: Spark may delete entries in the log of output files that it "
            "needs, so rows are lost. Set the first to at least twice the second",
            _RETAINED,
            retained,
            _COMPACTED,
            interval,
        )


def _check_format(session: SparkSession, source: str) -> bool:
    """Return whether a format is file-based; reject formats to which Spark cannot write."""
    refuse_read_only(source)
    return bool(source) and is_format_of_files(session, source)
