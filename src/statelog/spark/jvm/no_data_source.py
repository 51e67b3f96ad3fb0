"""
A streaming source without rows: it triggers no-data batches and adds figures to progress.

Spark plans a micro-batch when the offset of a source has changed.  This source is added to the
user's, and Spark asks it for its offset at each trigger, on the thread of the query.  It answers in
the driver's Python process, where the engine knows when the next timer is due, and reads the
watermark from Spark's own tracker.  Spark calls the source through py4j, as it calls the function
given to `foreachBatch`.

At the end of each micro-batch Spark asks its sources for metrics.  This source answers with the
figures of the batch, so that `lastProgress` and every `StreamingQueryListener` has them.
Source: Spark's MicroBatchExecution.constructNextBatch,
TransformWithStateExec.shouldRunAnotherBatch, ProgressContext.extractSourceProgress.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Protocol

import msgspec
from py4j.java_gateway import is_instance_of
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from statelog.spark.jvm.gateway import (
    JavaObject,
    classic_class,
    empty_array,
    java_class,
    jvm_of,
    scala_object,
    streaming_class,
)

_COUNT: Final = "noDataBatches"
_DESCRIPTION = "statelog: micro-batches without data"
_CONNECTOR = "org.apache.spark.sql.connector"


class NoDataTriggers(Protocol):
    """Decides when a query's no-data batches are due, and provides figures of its micro-batches."""

    def is_due(self, *, run_ends: bool) -> bool:
        """
        Return whether this trigger should run a micro-batch, with data or without.

        With *run_ends* the run ends when its data does (Trigger.AvailableNow).
        """

    def figures(self) -> Mapping[str, str]:
        """Return the figures of the newest micro-batch; empty while one is running."""

    def stopped(self) -> None:
        """Record that the query has ended."""


class _PythonObject:
    """Java's `Object` methods, for Python objects that Spark stores."""

    def hashCode(self) -> int:
        """Return a hash code, for Spark's maps of sources."""
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        """Return whether *other* is this object."""
        return other is self

    def toString(self) -> str:
        """Return the description that appears in the query's progress."""
        return _DESCRIPTION


class NoDataStream(_PythonObject):
    """
    The source's implementation of Spark's `MicroBatchStream`.

    Thread: Spark's thread of the query; `hashCode`, `equals` and `toString` any thread.
    """

    def __init__(self, session: SparkSession, triggers: NoDataTriggers) -> None:
        self._session = session
        self._triggers = triggers
        self._run_ends = False
        self._offset_of = streaming_class(session, "SerializedOffset")
        self._initial = self._offset(0)
        self._no_limit = java_class(session, f"{_CONNECTOR}.read.streaming.ReadLimit")
        self._no_partitions = empty_array(session, f"{_CONNECTOR}.read.InputPartition")
        # Spark serializes a factory into the tasks, although there is no partition to read.
        self._factory = scala_object(
            session,
            "org.apache.spark.sql.execution.streaming.sources.RateStreamMicroBatchReaderFactory",
        )

    def latestOffset(self, start: JavaObject = None, limit: JavaObject = None) -> JavaObject:
        """Return *start* if no micro-batch is due; return None before the first one."""
        offset = start.json()
        if self._triggers.is_due(run_ends=self._run_ends):
            return self._offset(_count(offset) + 1)
        return None if offset == self._initial.json() else start

    def _offset(self, count: int) -> JavaObject:
        return self._offset_of(msgspec.json.encode({_COUNT: count}).decode())

    def initialOffset(self) -> JavaObject:
        """Return the offset before the first no-data batch."""
        return self._initial

    def deserializeOffset(self, json: str) -> JavaObject:
        """Parse an offset from *json*; older queries contain `rate-micro-batch` offsets."""
        return self._offset_of(json)

    def getDefaultReadLimit(self) -> JavaObject:
        """Return the read limit that means no limit."""
        return self._no_limit.allAvailable()

    def reportLatestOffset(self) -> None:
        """Return None: the source does not have data to report."""

    def prepareForTriggerAvailableNow(self) -> None:
        """Do not fix an end offset, so that timers set by the last rows can still fire."""
        self._run_ends = True

    def planInputPartitions(self, start: JavaObject, end: JavaObject) -> JavaObject:
        """Return an empty list of partitions."""
        return self._no_partitions

    def createReaderFactory(self) -> JavaObject:
        """Return a factory that Spark never calls."""
        return self._factory

    def metrics(self, latest_consumed: JavaObject) -> JavaObject:
        """Return the figures of the last micro-batch, for the query's progress."""
        jvm = jvm_of(self._session)
        properties = jvm.java.util.Properties()  # a map of texts, filled by one call
        lines = [f"{name}={figure}" for name, figure in self._triggers.figures().items()]
        if lines:
            properties.load(jvm.java.io.StringReader("\n".join(lines)))
        return properties

    def commit(self, end: JavaObject) -> None:
        """Do nothing: the source does not have data to free."""

    def stop(self) -> None:
        """Report that the query has ended."""
        self._triggers.stopped()

    class Java:  # the name that py4j requires
        implements: ClassVar = [
            f"{_CONNECTOR}.read.streaming.MicroBatchStream",
            f"{_CONNECTOR}.read.streaming.SupportsTriggerAvailableNow",
            f"{_CONNECTOR}.read.streaming.ReportsSourceMetrics",
        ]


class _NoDataTable(_PythonObject):
    """Spark's `Table`, `ScanBuilder` and `Scan` interfaces for a `NoDataStream`."""

    def __init__(self, session: SparkSession, stream: NoDataStream) -> None:
        self._stream = stream
        jvm = jvm_of(session)
        self._capabilities = jvm.java.util.HashSet()
        self._capabilities.add(
            java_class(session, f"{_CONNECTOR}.catalog.TableCapability").MICRO_BATCH_READ
        )
        self._schema = jvm.org.apache.spark.sql.types.StructType()
        self._rows = java_class(session, f"{_CONNECTOR}.read.Scan$ColumnarSupportMode").UNSUPPORTED
        self._metrics = empty_array(session, f"{_CONNECTOR}.metric.CustomMetric")
        self._task_metrics = empty_array(session, f"{_CONNECTOR}.metric.CustomTaskMetric")

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
    """Return *frame* with *stream* added as its last source."""
    session = frame.sparkSession
    jvm = jvm_of(session)
    ensure_callback_server_started(session.sparkContext._gateway)
    # Spark makes a relation by the name of a source; this one gets another table afterwards.
    relation = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    plan = relation._jdf.queryExecution().analyzed()
    gateway: JavaObject = session.sparkContext._gateway
    parts = jvm.java.util.ArrayList()
    for index in range(plan.productArity()):
        field_value = plan.productElement(index)
        is_table = is_instance_of(gateway, field_value, f"{_CONNECTOR}.catalog.SupportsRead")
        parts.append(_NoDataTable(session, stream) if is_table else field_value)
    of_plan = classic_class(session, "Dataset").ofRows
    jframe = of_plan(session._jsparkSession, plan.makeCopy(parts.toArray()))
    nulls = [lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return frame.unionAll(DataFrame(jframe, session).select(*nulls))


def _count(offset: str) -> int:
    """Return the number of no-data batches in an offset, which is 0 for other sources."""
    try:
        count = msgspec.json.decode(offset, type=dict[str, int]).get(_COUNT, 0)
    except msgspec.MsgspecError:
        return 0
    return count
