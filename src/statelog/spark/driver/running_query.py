"""
Ask a running query in the JVM for what its files do not have.

That is which sources share a log, and the watermark that the next micro-batch would have.
Source: Spark's StreamExecution, WatermarkTracker.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from statelog.checkpoint.offset_log import newest_offsets, recorded_query_id
from statelog.checkpoint.source_logs import QueryFiles
from statelog.errors import StatelogError
from statelog.spark.rows.jvm import JavaObject


class RunningQuery:
    """
    Spark's execution of one query.

    Args:
        session: The session on which the query is started.
        files: The query's checkpointLocation.

    Thread: Spark's thread of the query.
    """

    def __init__(self, session: SparkSession, files: QueryFiles) -> None:
        self._session = session
        self._files = files
        self._execution: JavaObject = None

    def log_folders(self) -> list[int]:
        """
        Return for each source the number of its log below `sources/`.

        Spark numbers the sources in their order; a source that is used twice has one number.
        """
        sources = self._running().sources()
        first = [sources.indexOf(sources.apply(at)) for at in range(sources.size())]
        distinct = sorted(set(first))
        return [distinct.index(one) for one in first]

    def watermark_ms(self) -> int:
        """Return the watermark of the micro-batch that the next trigger would run."""
        watermark_ms: int = self._running().watermarkTracker().currentWatermark()
        return watermark_ms

    def last_watermark_ms(self) -> int:
        """Return the watermark of the last micro-batch that was planned; 0 before the first."""
        latest = newest_offsets(self._files)
        return 0 if latest is None else latest.watermark_ms

    def forget(self) -> None:
        """Drop the reference to Spark's object."""
        self._execution = None

    def _running(self) -> JavaObject:
        if self._execution is None:
            query_id = recorded_query_id(self._files)
            streams: JavaObject = self._session._jsparkSession.streams()
            query = streams.get(query_id) if query_id else None
            if query is None:
                raise StatelogError(
                    f"the watermark of query {query_id} is unknown: it does not run on the session "
                    "of its frame. Start the query on that session"
                )
            self._execution = query.streamingQuery()
        return self._execution
