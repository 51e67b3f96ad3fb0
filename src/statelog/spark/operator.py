"""
`transform_with_state`: Spark's stateful operator, with its state in the changelog.

Source: pyspark.sql.GroupedData.transformWithState, whose arguments it takes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statelog.checkpoint.options import CheckpointOptions
from statelog.core.materialization_policy import MaterializationPolicy
from statelog.errors import UsageError
from statelog.metrics import Metrics
from statelog.model import DEFAULT_MAX_PARALLELISM
from statelog.options.units import parse_size
from statelog.spark.config import EngineConfig
from statelog.spark.delivery import Delivery, Sink
from statelog.spark.engine import MicroBatchEngine
from statelog.spark.grouping import KeyedFrame, keyed_frame
from statelog.spark.handle import operator_schema
from statelog.spark.progress import BatchProgress
from statelog.spark.sinks import format_sink, table_sink
from statelog.spark.types import arrow_schema
from statelog.state.backend import DEFAULT_BUDGET, StateBackend
from statelog.store.object_store import normalize_url

DEFAULT_INLINE_BYTES = 1024 * 1024
STATE_FOLDER = "statelog"
"""Folder inside the checkpointLocation that holds the state unless stateLocation says otherwise."""

_TIME_MODES = ("none", "processingtime")
_OUTPUT_MODES = ("append", "update")


def transform_with_state(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str = "Update",
    timeMode: str = "None",
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    stateLocation: str | None = None,
    delivery: str = "staged",
    tasks: int | None = None,
    maxParallelism: int = DEFAULT_MAX_PARALLELISM,
    operatorId: str = "transform_with_state",
    restore: int | str = "latest",
    adopt: bool = False,
    retained: int = 3,
    inlineBytes: int = DEFAULT_INLINE_BYTES,
    memoryBudget: int | str = DEFAULT_BUDGET,
    stateBackend: str = "auto",
    localDirectory: str | None = None,
    storeOptions: Mapping[str, Any] | None = None,
    fsync: bool = True,
    materialization: MaterializationPolicy | None = None,
    onProgress: Callable[[BatchProgress], None] | None = None,
    metrics: Metrics | None = None,
) -> StatefulStream:
    """
    Run an unmodified `StatefulProcessor` over the groups of a stream, its state in statelog.

    Args:
        grouped: `df.groupBy(...)` of a streaming frame.
        statefulProcessor: The processor, Row flavour; written for Spark's transformWithState.
        outputStructType: Schema of the output rows, also as DDL text.
        outputMode: "Update" or "Append"; both hand on what the processor yields.
        timeMode: "None" or "ProcessingTime" (timers and time to live).
        initialState: Not offered yet; must be None.
        eventTimeColumnName: Not offered yet; must be empty.
        stateLocation: Path or URL of the state; default: the folder `statelog` inside the query's
            checkpointLocation.
        delivery: "staged": rows are committed with the state and redelivered identically, exactly
            once for a sink that honours the batch id.  "direct": one Spark job less, at least once.
        tasks: Number of parallel tasks, 1 to *maxParallelism*; free at every restart.  Default: the
            number of cores.
        maxParallelism: Number of key groups; fixed for the life of the state.
        operatorId: Name of the operator; state of another one is refused.
        restore: "latest", "empty" (insist on starting without state), or the id of an older
            checkpoint.
        adopt: Go on from state that another query wrote.
        retained: Checkpoints to keep, >= 1.
        inlineBytes: Deltas and rows of one task up to this size travel through the driver into the
            one object of the micro-batch; larger ones go to files of their own.
        memoryBudget: Memory of a Python worker, in bytes or as "512 mb"; at least 64 MiB.  State that
            does not fit goes to local disk.
        stateBackend: "auto": in memory while it fits, else on local disk; "memory"; or "disk".
        localDirectory: Folder on each host for state on local disk; default: one of the user's in
            the system's temporary directory.
        storeOptions: Client options of the object store (credentials, endpoint, ...).
        fsync: On local disk, make objects durable before they count.
        materialization: When to write snapshots.
        onProgress: Called on the driver with a `BatchProgress` after each micro-batch.
        metrics: Where the driver counts checkpoints and snapshots; see `statelog.exporters`.

    Returns:
        A stream whose `writeStream ... start()` gives a real `StreamingQuery`.

    Raises:
        UsageError: An argument is wrong, or asks for what is not offered.
        ProcessorError: The processor's `init` failed.
    """
    if initialState is not None:
        raise UsageError("initialState is not offered yet; leave it out")
    if eventTimeColumnName or timeMode.lower() == "eventtime":
        raise UsageError("the time mode EventTime is not offered yet; use None or ProcessingTime")
    _one_of("timeMode", timeMode, _TIME_MODES)
    _one_of("outputMode", outputMode, _OUTPUT_MODES)
    _one_of("delivery", delivery, tuple(mode.value for mode in Delivery))
    if not isinstance(restore, int) and restore not in ("latest", "empty"):
        raise UsageError(f"restore is 'latest', 'empty' or a checkpoint id, not {restore!r}")
    keyed = keyed_frame(grouped, maxParallelism)
    if not keyed.frame.isStreaming:
        raise UsageError("transform_with_state takes a streaming frame; this one is a batch frame")
    session = keyed.frame.sparkSession
    _use_this_python(session)
    output = _parse(session, outputStructType)
    time_mode = timeMode.lower()
    schema = operator_schema(
        statefulProcessor,
        operatorId,
        arrow_schema(keyed.key_schema),
        lambda ddl: _parse(session, ddl),
        has_timers=time_mode != "none",
    )
    config = EngineConfig(
        location="",
        store_options=dict(storeOptions or {}),
        fsync=fsync,
        schema=schema,
        processor=statefulProcessor,
        output=output,
        arrow_output=arrow_schema(output),
        key_positions=keyed.key_positions,
        first_input=keyed.first_input,
        time_mode=time_mode,
        delivery=Delivery(delivery.lower()),
        tasks=_tasks(session, tasks, maxParallelism),
        max_parallelism=maxParallelism,
        inline_bytes=inlineBytes,
        backend=StateBackend(
            stateBackend, parse_size(memoryBudget, key="memoryBudget"), localDirectory
        ),
        checkpoints=CheckpointOptions(retained=retained),
        materialization=materialization or MaterializationPolicy(),
        restore=restore,
        adopt=adopt,
        on_progress=onProgress,
        metrics=metrics if metrics is not None else Metrics(),
    )
    return StatefulStream(keyed, config, stateLocation)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value.lower() not in allowed:
        raise UsageError(f"{name} is one of {', '.join(allowed)}; got {value!r}")


def _use_this_python(session: SparkSession) -> None:
    """Let local workers run on the driver's interpreter where nobody chose another."""
    context = session.sparkContext
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python")
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def _tasks(session: SparkSession, tasks: int | None, max_parallelism: int) -> int:
    if tasks is None:
        return min(session.sparkContext.defaultParallelism, max_parallelism)
    if not 1 <= tasks <= max_parallelism:
        raise UsageError(f"tasks is 1 to maxParallelism ({max_parallelism}); got {tasks}")
    return tasks


def _parse(session: SparkSession, schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    parsed = session._parse_ddl(schema)
    if not isinstance(parsed, StructType):
        raise UsageError(f"a schema of named columns is needed, not {schema!r}")
    return parsed


class StatefulStream:
    """The output of a stateful operator: a stream to be written."""

    def __init__(self, keyed: KeyedFrame, config: EngineConfig, state_location: str | None) -> None:
        self._keyed = keyed
        self._config = config
        self._state_location = state_location

    @property
    def schema(self) -> StructType:
        """Schema of the output rows."""
        return self._config.output

    @property
    def columns(self) -> list[str]:
        """Names of the output columns."""
        return list(self._config.output.names)

    @property
    def isStreaming(self) -> bool:
        """True: only streams are transformed."""
        return True

    @property
    def sparkSession(self) -> SparkSession:
        """The session of the input."""
        return self._keyed.frame.sparkSession

    @property
    def writeStream(self) -> StatefulStreamWriter:
        """Return a writer that works like Spark's `DataStreamWriter`."""
        return StatefulStreamWriter(self._keyed, self._config, self._state_location)


@dataclass
class _Target:
    """Where the output goes."""

    source: str | None = None
    sink: Sink | None = None
    query_name: str | None = None
    partition_by: tuple[str, ...] = ()


class StatefulStreamWriter:
    """Spark's `DataStreamWriter` for a stateful stream; `start` gives a real `StreamingQuery`."""

    def __init__(self, keyed: KeyedFrame, config: EngineConfig, state_location: str | None) -> None:
        self._keyed = keyed
        self._config = config
        self._state_location = state_location
        self._options: dict[str, Any] = {}
        self._trigger: dict[str, Any] = {}
        self._target = _Target()

    def outputMode(self, outputMode: str) -> StatefulStreamWriter:
        """Accept "update" or "append"; both hand on what the processor yields."""
        _one_of("outputMode", outputMode, _OUTPUT_MODES)
        return self

    def format(self, source: str) -> StatefulStreamWriter:
        """Write each micro-batch in this format (also "console", "memory", "noop")."""
        self._target.source = source
        return self

    def option(self, key: str, value: Any) -> StatefulStreamWriter:
        """Set an option; `checkpointLocation` is the query's, the others are the sink's."""
        self._options[key] = value
        return self

    def options(self, **options: Any) -> StatefulStreamWriter:
        """Set several options."""
        self._options.update(options)
        return self

    def partitionBy(self, *cols: str) -> StatefulStreamWriter:
        """Partition the files or table that is written."""
        self._target.partition_by = cols
        return self

    def queryName(self, queryName: str) -> StatefulStreamWriter:
        """Name the query."""
        self._target.query_name = queryName
        return self

    def trigger(self, **trigger: Any) -> StatefulStreamWriter:
        """Set the trigger, with the arguments of Spark's `trigger`."""
        self._trigger = trigger
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], Any]) -> StatefulStreamWriter:
        """Give each micro-batch's output and id to *func*."""
        self._target.sink = func
        return self

    def start(self, path: str | None = None, **options: Any) -> StreamingQuery:
        """
        Start the query.

        Args:
            path: Where a file format writes.
            options: More options, as with `option`.

        Raises:
            CheckpointError: The state location cannot be used by this query.
            StoreError: It cannot be read or written.
        """
        self._options.update(options)
        location = self._checkpoint_location()
        sink_options = {k: v for k, v in self._options.items() if k.lower() != "checkpointlocation"}
        target = self._target
        sink = target.sink or format_sink(
            target.source or "parquet",
            sink_options,
            path if path is not None else sink_options.pop("path", None),
            target.partition_by,
            target.query_name,
        )
        return self._start(location, sink)

    def toTable(self, tableName: str, **options: Any) -> StreamingQuery:
        """Start the query, appending each micro-batch to a table."""
        self._options.update(options)
        location = self._checkpoint_location()
        sink_options = {k: v for k, v in self._options.items() if k.lower() != "checkpointlocation"}
        return self._start(location, table_sink(tableName, sink_options, self._target.partition_by))

    def _checkpoint_location(self) -> str:
        for key, value in self._options.items():
            if key.lower() == "checkpointlocation":
                return str(value)
        session = self._keyed.frame.sparkSession
        base = session.conf.get("spark.sql.streaming.checkpointLocation", None)
        if base and self._target.query_name:
            return f"{base.rstrip('/')}/{self._target.query_name}"
        raise UsageError(
            "a stateful query needs .option('checkpointLocation', ...), so that its state can be "
            "found again"
        )

    def _start(self, checkpoint_location: str, sink: Sink) -> StreamingQuery:
        location = self._state_location or f"{checkpoint_location.rstrip('/')}/{STATE_FOLDER}"
        config = replace(self._config, location=normalize_url(location))
        engine = MicroBatchEngine(config, sink)
        engine.open()
        writer = self._keyed.frame.writeStream.foreachBatch(engine).option(
            "checkpointLocation", checkpoint_location
        )
        if self._target.query_name:
            writer = writer.queryName(self._target.query_name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return writer.start()
