"""
Read facts about queries that are known only in the JVM.

That is which sources share a log, the watermark that the next micro-batch would have, whether a
query still runs, and the parts of Spark's writer and query that PySpark's classes wrap.
Source: Spark's StreamExecution, WatermarkTracker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.observation import Observation
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from statelog.checkpoint.query_files import QueryFiles, newest_offsets, recorded_query_id
from statelog.errors import StatelogError
from statelog.spark.jvm.files import LOCAL
from statelog.spark.jvm.gateway import (
    JavaObject,
    is_connect,
    jvm_of,
    query_of,
    streaming_class,
    with_setting,
)

LOG_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting for how the logs in a checkpointLocation are written."""
LOCAL_LOGS: Final = "FileSystemBasedCheckpointFileManager"
"""
The class that writes Spark's logs on local disk.

It writes a temporary file and renames it, as Spark's default does.  The default also sets
permissions, for which Hadoop without its native library starts a process for each file.
"""

_log = logging.getLogger("statelog.spark")


class RunningQuery:
    """
    Spark's execution of one query.

    Thread: Spark's thread of the query.
    """

    def __init__(self, session: SparkSession, files: QueryFiles) -> None:
        self._session = session
        self._files = files
        self._execution: JavaObject = None

    def log_folders(self) -> list[int]:
        """
        Return, for each source, the number of its log below `sources/`.

        Spark numbers the sources in their order; a source that is used twice has one number.
        """
        sources = self._found().sources()
        first = [sources.indexOf(sources.apply(index)) for index in range(sources.size())]
        distinct = sorted(set(first))
        return [distinct.index(index) for index in first]

    def watermark_ms(self) -> int:
        """Return the watermark that the next trigger's micro-batch would have."""
        watermark_ms: int = self._running().watermarkTracker().currentWatermark()
        return watermark_ms

    def last_watermark_ms(self) -> int:
        """Return the watermark of the last planned micro-batch, or 0 before the first one."""
        latest = newest_offsets(self._files)
        return 0 if latest is None else latest.watermark_ms

    def forget(self) -> None:
        """Drop the reference to Spark's object."""
        self._execution = None

    def _running(self) -> JavaObject:
        """Return Spark's object, and keep a reference to it until `forget`."""
        if self._execution is None:
            self._execution = self._found()
        return self._execution

    def _found(self) -> JavaObject:
        # A reference that outlives the query would keep the query for ever: Spark's object refers to
        # the function that Spark calls, which refers to this object, through both garbage collectors.
        query_id = recorded_query_id(self._files)
        streams: JavaObject = self._session._jsparkSession.streams()
        query = streams.get(query_id) if query_id else None
        if query is None:
            raise StatelogError(
                f"the watermark of query {query_id} is unknown, because the query does not run in "
                "the session that created its frame. Start the query in that session"
            )
        return query.streamingQuery()


def _is_running(session: SparkSession, query_id: str) -> bool:
    """Return whether a query is active in any session, not only this one as in `streams.active`."""
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    query = running.get(jvm_of(session).java.util.UUID.fromString(query_id))
    return query is not None and bool(query.isActive())


def is_active(frame: DataFrame) -> bool:
    """
    Return whether the query of a micro-batch is still running.

    False if that is unknown.
    """
    if is_connect(frame):
        return False
    session = frame.sparkSession
    query_id = query_of(session)
    if not query_id:
        return False
    try:
        return _is_running(session, query_id)
    except Exception as error:  # the connection ends with the query
        _log.debug("cannot find out whether query %s is active: %s", query_id, error)
        return False


def is_observed(observation: Observation) -> bool:
    """Return whether an action has filled in a classic observation."""
    reported: JavaObject = observation._jo.future()  # type: ignore[union-attr]
    return bool(reported.isCompleted())


def jvm_query(query: StreamingQuery) -> JavaObject:
    """Return the JVM object of a classic query, so that a second PySpark object can be created."""
    return query._jsq


def wait_for_end(query: StreamingQuery) -> Callable[[], None]:
    """Return a thread-safe function that waits until a query ends and raises its error."""
    running: JavaObject = query._jsq
    wait: Callable[[], None] = running.awaitTermination
    return wait


def write_instead(writer: DataStreamWriter, frame: DataFrame) -> None:
    """Make a classic writer write a different frame; set its name and trigger again."""
    writer._jwrite = frame._jdf.writeStream()


def start_query(writer: DataStreamWriter, checkpoint: str, files: QueryFiles) -> StreamingQuery:
    """Start the query of a classic writer at a checkpointLocation; raises Spark's own errors."""
    writer._jwrite = writer._jwrite.option("checkpointLocation", checkpoint)
    if not files.url.startswith(LOCAL):
        return writer._sq(writer._jwrite.start())
    # Spark copies the settings of the session when it starts a query: later ones do not change it.
    manager = streaming_class(writer._spark, LOCAL_LOGS, "checkpointing")
    with with_setting(writer._spark, LOG_FILES, manager._fqn, unless_set=True):
        return writer._sq(writer._jwrite.start())
