"""
`StatefulStreamWriter`: starts a query that writes a stateful stream.

It is Spark's `DataStreamWriter` over the input, so that query names, triggers and their errors are
Spark's.  The format, table and options of the output are stored here and used for each micro-batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from statelog.arguments import given
from statelog.checkpoint.query_files import (
    QueryFiles,
    refuse_unfinished_repartition,
    unfinished_batch,
)
from statelog.errors import UsageError
from statelog.spark.driver.batch_times import QueryTimes
from statelog.spark.driver.engine import MicroBatchEngine
from statelog.spark.driver.no_data_batches import QueryTriggers, has_no_data_source
from statelog.spark.jvm.files import checkpoint_files
from statelog.spark.jvm.gateway import settings_of
from statelog.spark.jvm.queries import RunningQuery, start_query, write_instead
from statelog.spark.query.declared_state import with_added
from statelog.spark.query.delivery import ClosableSink, Sink
from statelog.spark.query.query import OperatorDefinition, Query
from statelog.spark.query.resolve import resolve_settings
from statelog.spark.query.settings import OPTION_PREFIX, QuerySettings
from statelog.spark.rows.spark_versions import value_error
from statelog.spark.stream.query_progress import Observations, ProgressFigures, observed_operators
from statelog.spark.stream.recorded_plan import RecordedPlan
from statelog.spark.stream.sinks.simple import OptionValue, RowFunction, Target, foreach_sink
from statelog.spark.stream.stateful_query import (
    Failures,
    StatefulQuery,
    delete_at_end,
    temporary_checkpoint,
)
from statelog.store.location import normalize_url

_CHECKPOINT = "checkpointlocation"
_KEPT_PROGRESS = "spark.sql.streaming.numRecentProgressUpdates"


class StatefulStreamWriter(DataStreamWriter):
    """Spark's `DataStreamWriter` for stateful streams; `start` returns a real `StreamingQuery`."""

    def __init__(self, operators: Sequence[OperatorDefinition], plan: RecordedPlan) -> None:
        super().__init__(operators[0].frame)
        self._begin(operators, plan)

    def _begin(self, operators: Sequence[OperatorDefinition], plan: RecordedPlan) -> None:
        self._operators = tuple(operators)
        self._plan = plan
        self._settings: dict[str, object] = {}
        self._checkpoint: str | None = None
        self._query_name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._sink: Sink | None = None
        self._sinks: dict[str, Sink] = {}
        self._target = Target()

    def outputMode(self, outputMode: str) -> StatefulStreamWriter:
        """Accept "append" or "update"; in both, the rows that the processor yields are written."""
        mode = outputMode.strip().lower() if isinstance(outputMode, str) else ""
        if mode == "complete":
            raise UsageError(
                "the output mode complete requires a streaming aggregation, as in Spark; use append or "
                "update"
            )
        if mode not in ("append", "update"):
            raise UsageError(f"outputMode must be append or update; got {outputMode!r}")
        return self

    def trigger(self, **trigger: Any) -> StatefulStreamWriter:
        """Set the trigger, with the same arguments as Spark; it must run micro-batches."""
        self._check_trigger(trigger)
        super().trigger(**trigger)
        self._trigger = trigger
        return self

    def _check_trigger(self, trigger: dict[str, object]) -> None:
        for name in ("continuous", "realTime"):
            if trigger.get(name) is not None:
                raise UsageError(
                    f"the trigger {name} does not run micro-batches, but statelog commits state per "
                    "micro-batch; use processingTime or availableNow"
                )

    def queryName(self, queryName: str) -> StatefulStreamWriter:
        """Name the query."""
        super().queryName(queryName)
        self._query_name = queryName
        return self

    def format(self, source: str) -> StatefulStreamWriter:
        """Write each micro-batch in this format; "console", "memory" and "noop" work too."""
        self._target = replace(self._target, source=_text("source", source))
        return self

    def option(self, key: str, value: OptionValue) -> StatefulStreamWriter:
        """Set an option: `checkpointLocation`, `statelog.<setting>`, or an option of the sink."""
        if value is None:
            return self
        if key.lower() == _CHECKPOINT:
            self._checkpoint = _text("checkpointLocation", str(value)).rstrip("/")
        elif key.lower().startswith(OPTION_PREFIX):
            self._settings[key[len(OPTION_PREFIX) :]] = value
        else:
            self._target = self._target.with_option(key, value)
        return self

    def options(self, **options: OptionValue) -> StatefulStreamWriter:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def partitionBy(self, *cols: str | list[str]) -> StatefulStreamWriter:
        """Partition the output files or table."""
        self._target = replace(self._target, partition_by=_names(cols))
        return self

    def clusterBy(self, *cols: str | list[str]) -> StatefulStreamWriter:
        """Cluster the output table."""
        self._target = replace(self._target, cluster_by=_names(cols))
        return self

    def foreach(self, f: RowFunction) -> StatefulStreamWriter:
        """Call a function, or the `process` method of an object, with each row."""
        self._sink = foreach_sink(f)
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], object]) -> StatefulStreamWriter:
        """Call *func* with the output and the id of each micro-batch."""
        if not callable(func):
            raise UsageError(
                f"foreachBatch requires a function of frame and batch id, not {given(func)}"
            )
        self._sink = func
        return self

    def sideOutput(
        self, name: str, func: Callable[[DataFrame, int], object]
    ) -> StatefulStreamWriter:
        """
        Call *func* with the rows of a side output and the id of their micro-batch.

        It is called after the commit of the micro-batch, and after the sink of the output; only for
        micro-batches in which the side output has rows.  A micro-batch whose delivery was
        interrupted is delivered again with the same rows.  `exactly_once(sink)` writes each once.

        Example:
            writer = stream.writeStream.option("checkpointLocation", "s3://bucket/queries/totals")
            writer = writer.sideOutput("late", lambda frame, batch_id: frame.write...)
            query = writer.start("s3://bucket/tables/totals", format="parquet")

        Args:
            name: A side output that a processor of the query declares in `init`.
            func: Called with the frame and the batch id.
        """
        if not callable(func):
            raise UsageError(
                f"sideOutput requires a function of frame and batch id, not {given(func)}"
            )
        self._sinks[name] = func
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: OptionValue,
    ) -> StreamingQuery:
        """
        Start the query; each argument is described at the method of the same name.

        Raises:
            CheckpointError: The state location cannot be used by this query.
            StoreError: The state location cannot be read or written.
            UsageError: A setting is wrong.
        """
        self._take(format, outputMode, partitionBy, queryName, options)
        if path is not None:
            self._target = self._target.with_option("path", path)
        return self._start(self._sink, one_time=self._sink is not None or self._target.is_one_time)

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: OptionValue,
    ) -> StreamingQuery:
        """Start the query, appending each micro-batch to a table; see `start`."""
        self._take(format, outputMode, partitionBy, queryName, options)
        self._target = replace(self._target, table=_text("tableName", tableName))
        return self._start(None, one_time=False)

    def _take(
        self,
        source: str | None,
        output_mode: str | None,
        partition_by: str | list[str] | None,
        query_name: str | None,
        options: dict[str, OptionValue],
    ) -> None:
        self.options(**options)
        if output_mode is not None:
            self.outputMode(output_mode)
        if partition_by is not None:
            self.partitionBy(partition_by)
        if source is not None:
            self.format(source)
        if query_name is not None:
            self.queryName(query_name)

    def _start(self, function: Sink | None, *, one_time: bool) -> StreamingQuery:
        location = self._checkpoint_location(one_time)
        checkpoint = temporary_checkpoint(self._spark) if location is None else location
        query = self._query(checkpoint, is_temporary=location is None)
        plan = self._plan
        observations = Observations()
        figures = ProgressFigures(query.operators, observations, self._kept_progress())
        query = _observed(query, observations, figures)
        files = checkpoint_files(self._spark, checkpoint)
        refuse_unfinished_repartition(files)
        sink = function or self._format_sink(query, files)
        has_source = has_no_data_source(query.settings.no_data_batches, query.operators, files)
        running_query = RunningQuery(self._spark, files)
        times = QueryTimes(
            files, has_no_data_source=has_source, log_folders=running_query.log_folders
        )

        def deliver(rows: DataFrame, batch_id: int) -> None:
            sink(plan.apply(rows, observations), batch_id)

        repeated = partial(unfinished_batch, files)
        engine = MicroBatchEngine(query, deliver, times, self._sinks, repeated)
        engine.open(times.query_id())
        if has_source:
            # Imported here: a query without timers does not have that source.
            from statelog.spark.jvm.no_data_source import NoDataStream, with_no_data_source

            triggers = QueryTriggers(self._spark, query.time_mode, engine, running_query)
            stream = NoDataStream(self._spark, triggers)
            self._write_instead(with_no_data_source(query.source.frame, stream))
        failures = Failures(engine)
        super().foreachBatch(failures)

        def at_end() -> None:
            for closable in (sink, *self._sinks.values()):
                if isinstance(closable, ClosableSink):
                    closable.close()
            engine.close()

        started = start_query(self, checkpoint, files)
        running = StatefulQuery(started, failures, figures, at_end)
        if location is None:
            delete_at_end(running, checkpoint, self._spark)
        return running

    def _format_sink(self, query: Query, files: QueryFiles) -> Sink:
        """Return the sink for the chosen format or table."""
        # Imported here: a query whose output is a function needs neither files nor tables.
        from statelog.spark.stream.sinks.choose import SinkContext, sink_of

        context = SinkContext(
            session=self._spark,
            schema=self._plan.shape.schema,
            query_name=self._query_name,
            files=files,
            file_output=query.settings.file_output,
        )
        return sink_of(context, self._target)

    def _query(self, checkpoint: str, *, is_temporary: bool) -> Query:
        """Return everything about the query that does not change while it runs."""
        last = self._operators[-1]
        session = self._spark
        # The frame has its key groups already, and the session may have changed after that.
        arguments = {**last.arguments, "maxParallelism": last.max_parallelism}
        settings = resolve_settings(settings_of(session), arguments, self._settings)
        location = settings.location(checkpoint, self._query_name, temporary=is_temporary)
        _check_columns(self._operators, settings)
        operators = tuple(
            replace(operator, schema=with_added(operator.schema, settings))
            for operator in self._operators
        )
        bounds = settings.task_bounds(self._cores())
        return Query(operators, settings, normalize_url(location), bounds, last.observers)

    def _kept_progress(self) -> int:
        """Return for how many micro-batches Spark retains the progress."""
        return int(self._spark.conf.get(_KEPT_PROGRESS, "100") or 0)

    def _cores(self) -> int:
        """Return how many cores Spark has."""
        return self._spark.sparkContext.defaultParallelism

    def _write_instead(self, frame: DataFrame) -> None:
        """Have Spark's writer write *frame* instead of its input, with its name and trigger."""
        write_instead(self, frame)
        if self._query_name is not None:
            super().queryName(self._query_name)
        if self._trigger:
            super().trigger(**self._trigger)

    def _checkpoint_location(self, one_time: bool) -> str | None:
        """Return the query's checkpointLocation by Spark's rules, or None for a temporary one."""
        if self._checkpoint is not None:
            return self._checkpoint
        base = self._spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if base:
            return f"{base.rstrip('/')}/{self._query_name or uuid.uuid4()}"
        if one_time:
            return None
        raise UsageError(
            "a query needs .option('checkpointLocation', ...), or a queryName in a session with "
            "spark.sql.streaming.checkpointLocation, so that a restart finds its state"
        )


def _observed(query: Query, observations: Observations, figures: ProgressFigures) -> Query:
    """Return *query* with `observe` applied between operators, and with its figures recorded."""
    return replace(
        query,
        operators=observed_operators(query.operators, observations),
        observers=replace(query.observers, on_progress=figures.noting(query.observers.on_progress)),
    )


def _check_columns(operators: Sequence[OperatorDefinition], settings: QuerySettings) -> None:
    """Check that recorded rows contain all columns, because a changed processor may need them."""
    key = settings.keeps_rows
    name = key.removesuffix(".*")
    if key and not all(operator.has_all_columns for operator in operators):
        raise UsageError(
            f"{name} records rows with all columns, but the columns that the processor does not read "
            f"were dropped before the writer got the option. Pass {name} to transform_with_state, set it "
            f"in the session as spark.statelog.{key}, or use inputColumns='all'"
        )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise value_error("VALUE_NOT_NON_EMPTY_STR", {"arg_name": name, "arg_value": str(value)})
    return value


def _names(columns: tuple[str | list[str], ...]) -> tuple[str, ...]:
    """Return names that were passed as separate arguments or as one list."""
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        return tuple(columns[0])
    return cast("tuple[str, ...]", columns)
