"""
A streaming source without rows: for no-data batches, and for our figures in Spark's progress.

Spark plans a micro-batch when the offset of a source has changed.  This source is added to the
user's, and Spark asks it for its offset at each trigger, on the thread of the query.  It answers in
the driver's Python process, where the engine knows when the next timer is due, and reads the
watermark from Spark's own tracker.  Spark calls the source through py4j, as it calls the function
given to `foreachBatch`.

At the end of each micro-batch Spark asks its sources for metrics.  This source answers with the
figures of the batch, so that `lastProgress` and every `StreamingQueryListener` has them.
Source: Spark's MicroBatchExecution.constructNextBatch, TransformWithStateExec.shouldRunAnotherBatch,
ProgressContext.extractSourceProgress.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import msgspec
from py4j.java_gateway import is_instance_of
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from statelog.spark.driver.progress import source_metrics
from statelog.spark.driver.running_query import RunningQuery
from statelog.spark.driver.state_location import now_ms
from statelog.spark.query.progress import BatchProgress
from statelog.spark.rows.jvm import JavaObject, jvm_of
from statelog.spark.rows.spark_versions import streaming_class

_ENABLED = "spark.sql.streaming.noDataMicroBatches.enabled"
_COUNT = "noDataBatches"
_DESCRIPTION = "statelog: micro-batches without data"
_CONNECTOR = "org.apache.spark.sql.connector"


class NoDataDecision:
    """
    Decides at each trigger whether a no-data batch is due.

    Args:
        time_mode: "none", "processingtime" or "eventtime".
        watermark_ms: Watermark of the query's last micro-batch; 0 for a new query.
        run_ends: Whether the run ends when its data does (Trigger.AvailableNow).
    """

    def __init__(self, time_mode: str, watermark_ms: int, *, run_ends: bool = False) -> None:
        self._time_mode = time_mode
        self._watermark_ms = watermark_ms
        self._run_ends = run_ends

    def handle(
        self,
        *,
        now_ms: int,
        watermark_ms: int,
        next_due_ms: int | None,
        is_first: bool = True,
    ) -> bool:
        """
        Return whether the micro-batch of this trigger is due without data too.

        In event time it is due as on Spark, once for each advance of the watermark: this batch's
        watermark decides which rows of the next one are late, whether or not a timer fires.
        In processing time a run with Trigger.AvailableNow has one at its beginning only: a timer
        that registers itself repeatedly would keep the run from ending, as on Spark.

        Args:
            now_ms: Processing time.
            watermark_ms: Watermark of the micro-batch that this trigger would run.
            next_due_ms: When the next timer is due after the last commit; None if unknown.
            is_first: Whether the run has had no micro-batch yet.
        """
        if self._time_mode == "eventtime":
            has_advanced = watermark_ms > self._watermark_ms
            self._watermark_ms = max(self._watermark_ms, watermark_ms)
            return has_advanced
        if self._time_mode == "processingtime":
            if self._run_ends and not is_first:
                return False
            return next_due_ms is None or next_due_ms <= now_ms
        return False


class QueryTimers(Protocol):
    """The timers and figures of a query, as its engine knows them."""

    def next_due_ms(self) -> int | None:
        """
        Return when the next timer is due, as of the last commit.

        None if unknown.
        """

    def has_run(self) -> bool:
        """Return whether this run has had a micro-batch."""

    def progress(self) -> BatchProgress | None:
        """
        Return the figures of the newest micro-batch.

        None while it runs, or if it had no effect.
        """


class _PythonObject:
    """The methods of Java's `Object`, for objects of Python that Spark stores."""

    def hashCode(self) -> int:
        """Return a hash for Spark's maps of sources."""
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        """Return whether *other* is this object."""
        return other is self

    def toString(self) -> str:
        """Return the description in the query's progress."""
        return _DESCRIPTION


class NoDataStream(_PythonObject):
    """
    Spark's `MicroBatchStream` of the source.

    Args:
        session: The session on which the query is started.
        time_mode: "none", "processingtime" or "eventtime".
        timers: The timers of the query.
        query: The watermarks of the query.

    Thread: Spark's thread of the query; `hashCode`, `equals` and `toString` any thread.
    """

    def __init__(
        self, session: SparkSession, time_mode: str, timers: QueryTimers, query: RunningQuery
    ) -> None:
        self._session = session
        self._time_mode = time_mode
        self._timers = timers
        self._query = query
        self._run_ends = False
        self._enabled = (session.conf.get(_ENABLED, "true") or "").strip().lower() == "true"
        self._decision: NoDataDecision | None = None
        self._offset_of = streaming_class(session, "SerializedOffset")
        self._initial = self._offset(0)
        self._no_limit = _java_class(session, f"{_CONNECTOR}.read.streaming.ReadLimit")
        self._no_partitions = _empty_array(session, f"{_CONNECTOR}.read.InputPartition")
        # Spark serializes a factory into the tasks, although there is no partition to read.
        factory = (
            "org.apache.spark.sql.execution.streaming.sources.RateStreamMicroBatchReaderFactory$"
        )
        self._factory = getattr(_java_class(session, factory), "MODULE$")

    def latestOffset(self, start: JavaObject = None, limit: JavaObject = None) -> JavaObject:
        """Return *start* if no micro-batch is due; None before the first one."""
        at = start.json()
        if self._is_due():
            return self._offset(_count(at) + 1)
        return None if at == self._initial.json() else start

    def _is_due(self) -> bool:
        if not self._enabled:
            return False
        has_event_time = self._time_mode == "eventtime"
        if self._decision is None:
            last_ms = self._query.last_watermark_ms() if has_event_time else -1
            self._decision = NoDataDecision(self._time_mode, last_ms, run_ends=self._run_ends)
        return self._decision.handle(
            now_ms=now_ms(),
            watermark_ms=self._query.watermark_ms() if has_event_time else -1,
            next_due_ms=self._timers.next_due_ms(),
            is_first=not self._timers.has_run(),
        )

    def _offset(self, count: int) -> JavaObject:
        return self._offset_of(msgspec.json.encode({_COUNT: count}).decode())

    def initialOffset(self) -> JavaObject:
        """Return the offset before the first no-data batch."""
        return self._initial

    def deserializeOffset(self, json: str) -> JavaObject:
        """Return the offset of *json*; older queries have those of `rate-micro-batch`."""
        return self._offset_of(json)

    def getDefaultReadLimit(self) -> JavaObject:
        """Return no limit."""
        return self._no_limit.allAvailable()

    def reportLatestOffset(self) -> None:
        """Return None: there is no data to report."""

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix no offset, so that timers of the last rows fire."""
        self._run_ends = True

    def planInputPartitions(self, start: JavaObject, end: JavaObject) -> JavaObject:
        """Return no partition."""
        return self._no_partitions

    def createReaderFactory(self) -> JavaObject:
        """Return a factory that is never called."""
        return self._factory

    def metrics(self, latest_consumed: JavaObject) -> JavaObject:
        """Return the figures of the micro-batch that has ended, for the query's progress."""
        jvm = jvm_of(self._session)
        found = jvm.java.util.Properties()  # a map of texts, filled by one call
        progress = self._timers.progress()
        if progress is not None:
            lines = (f"{name}={figure}" for name, figure in source_metrics(progress).items())
            found.load(jvm.java.io.StringReader("\n".join(lines)))
        return found

    def commit(self, end: JavaObject) -> None:
        """Do nothing: there is no data to free."""

    def stop(self) -> None:
        """Drop the reference to the query."""
        self._query.forget()

    class Java:  # the name that py4j requires
        implements: ClassVar = [
            f"{_CONNECTOR}.read.streaming.MicroBatchStream",
            f"{_CONNECTOR}.read.streaming.SupportsTriggerAvailableNow",
            f"{_CONNECTOR}.read.streaming.ReportsSourceMetrics",
        ]


class _NoDataTable(_PythonObject):
    """Spark's `Table`, `ScanBuilder` and `Scan` around a `NoDataStream`."""

    def __init__(self, session: SparkSession, stream: NoDataStream) -> None:
        self._stream = stream
        jvm = jvm_of(session)
        self._capabilities = jvm.java.util.HashSet()
        self._capabilities.add(
            _java_class(session, f"{_CONNECTOR}.catalog.TableCapability").MICRO_BATCH_READ
        )
        self._schema = jvm.org.apache.spark.sql.types.StructType()
        self._rows = _java_class(session, f"{_CONNECTOR}.read.Scan$ColumnarSupportMode").UNSUPPORTED
        self._metrics = _empty_array(session, f"{_CONNECTOR}.metric.CustomMetric")
        self._task_metrics = _empty_array(session, f"{_CONNECTOR}.metric.CustomTaskMetric")

    def name(self) -> str:
        return _DESCRIPTION

    def capabilities(self) -> JavaObject:
        return self._capabilities

    def newScanBuilder(self, options: JavaObject) -> _NoDataTable:
        return self

    def build(self) -> _NoDataTable:
        return self

    def readSchema(self) -> JavaObject:
        return self._schema

    def description(self) -> str:
        return _DESCRIPTION

    def toMicroBatchStream(self, checkpoint_location: str) -> NoDataStream:
        return self._stream

    def columnarSupportMode(self) -> JavaObject:
        return self._rows

    def supportedCustomMetrics(self) -> JavaObject:
        return self._metrics

    def reportDriverMetrics(self) -> JavaObject:
        return self._task_metrics

    class Java:  # the name that py4j requires
        implements: ClassVar = [
            f"{_CONNECTOR}.catalog.SupportsRead",
            f"{_CONNECTOR}.read.ScanBuilder",
            f"{_CONNECTOR}.read.Scan",
        ]


def with_no_data_source(frame: DataFrame, stream: NoDataStream) -> DataFrame:
    """Return *frame* with the source of *stream* added as its last source."""
    session = frame.sparkSession
    jvm = jvm_of(session)
    ensure_callback_server_started(session.sparkContext._gateway)
    # Spark makes a relation by the name of a source; this one gets another table afterwards.
    relation = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    plan = relation._jdf.queryExecution().analyzed()
    gateway: JavaObject = session.sparkContext._gateway
    parts = jvm.java.util.ArrayList()
    for at in range(plan.productArity()):
        part = plan.productElement(at)
        is_table = is_instance_of(gateway, part, f"{_CONNECTOR}.catalog.SupportsRead")
        parts.append(_NoDataTable(session, stream) if is_table else part)
    jframe = jvm.org.apache.spark.sql.classic.Dataset.ofRows(
        session._jsparkSession, plan.makeCopy(parts.toArray())
    )
    nulls = [lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return frame.unionAll(DataFrame(jframe, session).select(*nulls))


def _java_class(session: SparkSession, name: str) -> JavaObject:
    return getattr(jvm_of(session), name)


def _empty_array(session: SparkSession, name: str) -> JavaObject:
    gateway: JavaObject = session.sparkContext._gateway
    return gateway.new_array(_java_class(session, name), 0)


def _count(offset: str) -> int:
    """
    Return the number of no-data batches in an offset.

    0 for the offset of another source.
    """
    try:
        count = msgspec.json.decode(offset, type=dict[str, int]).get(_COUNT, 0)
    except msgspec.MsgspecError:
        return 0
    return count
