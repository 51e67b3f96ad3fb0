"""
Read the processing time, watermarks and source positions of a micro-batch.

They are Spark's own.  Spark computes the watermark of a query by itself, provided that the rows are
evaluated.  It writes processing time, watermark and source offsets of a micro-batch into its offset
log before the batch runs, so a batch that is repeated, in this process or after a restart, has the
same times.  The watermark of the micro-batch before decides which rows are late; the watermark of
this one decides which timers fire.
Source: Spark's MicroBatchExecution, WatermarkTracker, WatermarkSupport; measured on Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from statelog.core.source_position import SourceLog
from statelog.errors import StatelogError
from statelog.spark.driver.source_position import SourcePositions
from statelog.spark.rows.jvm import JavaObject, jvm_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """
    The times of one micro-batch.

    Args:
        now_ms: Processing time; -1 if unknown.
        watermark_ms: The watermark: timers up to it are due; -1 if unknown.
        late_ms: The watermark of the micro-batch before: rows up to it are late; -1 if unknown.
        position: Position of the sources after this batch; None if unknown.
        position_before: Position of the sources before this batch.
        source_logs: Entries of the batch in the logs of file sources; empty without such sources.
        source_folders: Names of the sources' logs, in their order; empty if unknown.
    """

    now_ms: int = -1
    watermark_ms: int = -1
    late_ms: int = -1
    position: str | None = None
    position_before: str | None = None
    source_logs: tuple[SourceLog, ...] = ()
    source_folders: tuple[str, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether the batch certainly has no new input."""
        return self.position is not None and self.position == self.position_before

    def not_before(self, watermark_ms: int) -> BatchTimes:
        """Return these times with watermarks of at least *watermark_ms*."""
        return replace(
            self,
            watermark_ms=max(self.watermark_ms, watermark_ms),
            late_ms=max(self.late_ms, watermark_ms),
        )


class QueryTimes:
    """
    Reads the times of micro-batches from a running query's offset log.

    Args:
        session: The session on which the query was started.
        has_no_data_source: Whether the last source is that for no-data batches, which is no
            input.
    """

    def __init__(self, session: SparkSession, *, has_no_data_source: bool) -> None:
        self._session = session
        self._has_no_data_source = has_no_data_source
        self._query_id = ""
        self._log: JavaObject = None
        self._positions: SourcePositions | None = None
        self._last: tuple[int, int] | None = None

    def of(self, query_id: str, batch_id: int) -> BatchTimes:
        """
        Return the times of a micro-batch that is running.

        Raises:
            StatelogError: The query or its log entry cannot be found.

        Blocks: For calls of the JVM; Spark keeps the last two entries of the log in memory.
        """
        positions = self._open(query_id, batch_id)
        entry = self._log.get(batch_id)
        if not entry.isDefined():
            raise StatelogError(
                f"Spark's offset log of query {query_id} has no entry for batch {batch_id}, which "
                "is running"
            )
        times = entry.get().metadataOpt().get()
        watermark_ms = times.batchWatermarkMs()
        late_ms, earlier = 0, None
        if self._last is not None and self._last[0] == batch_id - 1:
            late_ms = self._last[1]
        else:
            before = self._log.get(batch_id - 1)
            if before.isDefined():
                earlier = before.get()
                late_ms = earlier.metadataOpt().get().batchWatermarkMs()
        self._last = (batch_id, watermark_ms)
        read = positions.of(batch_id, entry.get(), earlier)
        return BatchTimes(
            now_ms=times.batchTimestampMs(),
            watermark_ms=watermark_ms,
            late_ms=late_ms,
            position=read.position,
            position_before=read.position_before,
            source_logs=read.logs,
            source_folders=read.folders,
        )

    @property
    def checkpoint_location(self) -> str:
        """The query's checkpointLocation as Spark resolved it; "" before the first batch."""
        return "" if self._positions is None else self._positions.checkpoint_location

    def read_again(self, logs: Sequence[SourceLog]) -> list[SourceLog]:
        """
        Read the entries of *logs* in the logs of the sources again.

        Raises:
            StatelogError: `of` was not called before.

        Blocks: On the files of the checkpointLocation.
        """
        if self._positions is None:
            raise StatelogError("the positions of sources are unknown before the first batch")
        return self._positions.read_again(logs)

    def _open(self, query_id: str, batch_id: int) -> SourcePositions:
        """Find the running query, once."""
        if self._positions is not None and self._query_id == query_id:
            return self._positions
        streams: JavaObject = self._session._jsparkSession.streams()
        query = streams.get(query_id)
        if query is None:
            raise StatelogError(
                f"the watermark of batch {batch_id} is unknown: query {query_id} does not run on the "
                "session of its frame. Start the query on that session"
            )
        execution = query.streamingQuery()
        self._query_id, self._log = query_id, execution.offsetLog()
        self._positions = SourcePositions(
            self._session, execution, has_no_data_source=self._has_no_data_source
        )
        return self._positions


def recorded_query_id(session: SparkSession, checkpoint_location: str) -> str:
    """Return the query id in a checkpointLocation; empty if there is none."""
    jvm = jvm_of(session)
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint_location.rstrip('/')}/metadata")
    hadoop = session._jsparkSession.sessionState().newHadoopConf()
    if not path.getFileSystem(hadoop).exists(path):
        return ""
    streaming = jvm.org.apache.spark.sql.execution.streaming
    recorded = streaming.runtime.StreamMetadata.read(path, hadoop)
    return str(recorded.get().id()) if recorded.isDefined() else ""
