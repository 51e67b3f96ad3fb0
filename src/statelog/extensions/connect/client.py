"""
The client part of a query on Spark Connect: session functions, stream, writer and query.

The output is set as with `StatefulStreamWriter`.  `start` sends the engine to the server as the
function for `foreachBatch` of Spark's own writer.  Errors of the query that it returns begin with
their cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import msgspec
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.column import Column
from pyspark.sql.connect.dataframe import DataFrameNaFunctions
from pyspark.sql.connect.expressions import ColumnReference
from pyspark.sql.connect.group import GroupedData
from pyspark.sql.connect.streaming.query import StreamingQuery as SparkQuery
from pyspark.sql.functions import lit, spark_partition_id
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from statelog.checkpoint.query_files import (
    QueryFiles,
    newest_offsets,
    refuse_unfinished_repartition,
    unfinished_batch,
)
from statelog.errors import UnavailableError, UsageError
from statelog.extensions.broadcasts.tables import refuse_frames
from statelog.extensions.connect.recorded_steps import ConnectPlan, input_plan
from statelog.extensions.connect.sinks import Foreach, sink_of
from statelog.extensions.connect.worker import (
    ConnectEngine,
    ObservedFigures,
    QueryStart,
    SparkFiles,
    figures_key,
    observed_key,
)
from statelog.spark.driver.failures import reported_in
from statelog.spark.driver.no_data_batches import has_no_data_source
from statelog.spark.query.delivery import Delivery, FileOutput, Sink
from statelog.spark.query.keyed_frame import Grouping, not_plain
from statelog.spark.query.progress import BatchProgress, Observers
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.query.session import Client
from statelog.spark.query.settings import BESIDE_CHECKPOINT, QuerySettings
from statelog.spark.stream.query_progress import with_batch
from statelog.spark.stream.sinks.simple import RowFunction
from statelog.spark.stream.stateful_query import message_first
from statelog.spark.stream.stateful_stream import StatefulStream
from statelog.spark.stream.writer import StatefulStreamWriter

_log = logging.getLogger("statelog.spark")

_ATTEMPTS: Final = 3
_NO_ANSWER: Final = "Python worker failed to connect back"
_NO_MODULE: Final = "No module named 'statelog"
_OF_CLASSIC: Final = '"noDataBatches"'
_NO_DATA: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_IN_PARTS: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"

_PLAIN: Final = "groupby"
_CRASHED: Final = "Python worker exited unexpectedly"


class ConnectStreamWriter(StatefulStreamWriter):
    """Spark's `DataStreamWriter` for a stateful stream in a Connect session."""

    _plan: ConnectPlan

    def __init__(self, operators: Sequence[OperatorDefinition], plan: ConnectPlan) -> None:
        # Not the classic writer's: it asks the JVM.
        self._spark = operators[0].frame.sparkSession
        self._begin(operators, plan)

    def trigger(self, **trigger: Any) -> ConnectStreamWriter:
        """Set the trigger, with the same arguments as Spark; it must run micro-batches."""
        self._check_trigger(trigger)
        self._operators[0].frame.writeStream.trigger(**trigger)  # Spark's own checks
        self._trigger = trigger
        return self

    def queryName(self, queryName: str) -> ConnectStreamWriter:
        """Name the query."""
        self._operators[0].frame.writeStream.queryName(queryName)
        self._query_name = queryName
        return self

    def foreach(self, f: RowFunction) -> ConnectStreamWriter:
        """Call a function, or the `process` method of an object, with each row."""
        self._sink = Foreach(f)
        return self

    def _start(self, function: Sink | None, *, one_time: bool) -> StreamingQuery:
        # The server's temporary folder is not known here, so each query needs a location.
        checkpoint = self._checkpoint_location(one_time=False) or ""
        query = self._query(checkpoint, is_temporary=False)
        settings = query.settings
        source = query.source
        refuse_direct(settings)
        refuse_relative(checkpoint, settings)
        files = SparkFiles(self._spark, checkpoint)
        refuse_unfinished_repartition(files)
        has_source = has_no_data_source(self._asked(settings, files), query.operators, files)
        if has_source:
            _check_source(files)
            self._warn_of_one_batch()
        engine = ConnectEngine.of(
            QueryStart(
                query=query,
                checkpoint=checkpoint,
                has_no_data_source=has_source,
                steps=self._plan.for_worker(),
                sink=function or self._connect_sink(settings.file_output),
                side_sinks=self._sinks,
                repeated=unfinished_batch(files) if settings.broadcast else None,
            )
        )
        frame = _with_ticks(source.frame) if has_source else source.frame
        writer = frame.writeStream
        if self._query_name is not None:
            writer = writer.queryName(self._query_name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        writer = writer.foreachBatch(engine).option("checkpointLocation", checkpoint)
        # PySpark's two classes of a query do not share a base.
        return cast("StreamingQuery", ConnectQuery(_started(writer), query.operators))

    def _asked(self, settings: QuerySettings, files: QueryFiles) -> bool | None:
        """Return the setting `noDataBatches`; for a new query, include Spark's own setting."""
        setting = settings.no_data_batches
        is_off = (self._spark.conf.get(_NO_DATA, "true") or "").strip().lower() == "false"
        if setting is None and is_off and newest_offsets(files) is None:
            return False
        return setting

    def _warn_of_one_batch(self) -> None:
        """Warn about `Trigger.AvailableNow` if a source can only be read in one micro-batch."""
        if self._trigger.get("availableNow") and self._spark.conf.get(_IN_PARTS, "false") != "true":
            _log.warning(
                "in a query with timers, trigger(availableNow=True) reads all new rows in one "
                "micro-batch; after a stop during a batch, it reads only the rows of that batch. If "
                "all sources of the query are Spark's own, set %s to true to get the usual "
                "behaviour; if the timers may wait for the next rows, set noDataBatches=False",
                _IN_PARTS,
            )

    def _connect_sink(self, file_output: FileOutput) -> Sink:
        return sink_of(
            self._spark, self._target, self._plan.shape.schema, self._query_name, file_output
        )

    def _cores(self) -> int:
        """Return Spark's number of cores, as shown by the partitions of a small frame."""
        parts = self._spark.range(1000).select(spark_partition_id().alias("part")).distinct()
        return parts.count()


class ConnectStream(StatefulStream):
    """The output of a stateful operator on a stream in a Connect session."""

    _plan: ConnectPlan

    @property
    def na(self) -> Any:
        """Functions that handle missing values."""
        return DataFrameNaFunctions(self)

    @property
    def writeStream(self) -> ConnectStreamWriter:
        """A writer with the same methods as Spark's."""
        return ConnectStreamWriter(self._operators, self._plan)


def _with_ticks(frame: DataFrame) -> DataFrame:
    """
    Add a source to *frame* that never returns rows but has a new offset every second.

    So Spark runs a micro-batch each second at least, and the engine skips it while no timer is due.
    """
    session = frame.sparkSession
    nulls = [lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    ticks = session.readStream.format("rate").option("rowsPerSecond", 1).load()
    return frame.unionAll(ticks.where(lit(False)).select(*nulls))


def _check_source(files: QueryFiles) -> None:
    """Reject a query whose no-data batches were started by a classic session."""
    newest = newest_offsets(files)
    offsets = None if newest is None else newest.offsets
    if offsets and _OF_CLASSIC in (offsets[-1] or ""):
        raise UsageError(
            f"the query in {files.url} started in a classic session, with no-data batches that Spark "
            "Connect cannot continue. Continue it in a classic session, or here with a new "
            "checkpointLocation, the same stateLocation and adopt=True"
        )


def _started(writer: Any) -> SparkQuery:
    """
    Start the query, retrying if the server's Python process took too long to answer.

    Spark waits ten seconds for it, and does not have a setting for that.
    """
    attempt = 1
    while True:
        try:
            query: SparkQuery = writer.start()
            return query
        except PySparkException as error:
            text = str(error)
            cause = reported_in(text)
            if cause is not None:
                raise cause from None
            if _NO_MODULE in text:
                raise UsageError(
                    "statelog is not installed in the Python environment of Spark's server: install "
                    "statelog[spark,connect] in the interpreter that PYSPARK_PYTHON names in the "
                    "server's environment, and in the executors' environment"
                ) from error
            if _NO_ANSWER not in text:
                raise
            if attempt == _ATTEMPTS:
                raise UnavailableError(
                    f"the server's Python process for foreachBatch did not answer within ten "
                    f"seconds in {attempt} attempts. If the server is overloaded, start the query "
                    "again. Otherwise check its Python interpreter, which PYSPARK_PYTHON in the "
                    "server's environment names: it needs pyspark[connect] and statelog"
                ) from error
            _log.warning("the server's Python process did not answer in time; trying again")
            attempt += 1


# Settings that cannot work on Spark Connect, with what to do instead.


def refuse_observers(observers: Observers) -> None:
    """Reject functions and objects that run on the client but would be called by the server."""
    by_name = {"on_progress": observers.on_progress, "metrics": observers.metrics}
    for name, observer in by_name.items():
        if observer is not None:
            raise UsageError(
                f"{name} is not supported on Spark Connect: micro-batches run on the server, which "
                "cannot call an object in this process. Omit it, and read the same figures "
                "from the query that start() returns (query.lastBatch, query.recentBatches), or "
                "add a StreamingQueryListener to spark.streams for Spark's own figures"
            )


def refuse_direct(settings: QuerySettings) -> None:
    """Reject direct delivery."""
    if settings.delivery is Delivery.DIRECT:
        raise UsageError(
            "delivery='direct' is not supported on Spark Connect: it needs an accumulator, "
            "which Spark Connect does not offer. Use delivery='staged', which is the default and delivers "
            "exactly once"
        )


def refuse_relative(checkpoint: str, settings: QuerySettings) -> None:
    """
    Reject relative paths, which the client and the server would resolve differently.

    The word `checkpoint` as a stateLocation is not a path: the state is in the checkpointLocation.
    """
    of_state = (settings.state_location, settings.base_location)
    paths = [checkpoint, *(location for location in of_state if location != BESIDE_CHECKPOINT)]
    for path in paths:
        if path and not path.startswith("/") and ":" not in path:
            raise UsageError(
                f"{path!r} is a relative path, which means a different folder on the Spark "
                "Connect server than here: pass an absolute path or a URL"
            )


def _grouping_of(grouped: GroupedData) -> Grouping:
    columns = grouped._grouping_cols
    if grouped._group_type != _PLAIN or not columns:
        raise not_plain(repr(grouped))
    return Grouping(grouped._df, columns, [_input_name(column) for column in columns])


def _input_name(column: object) -> str | None:
    """Return the name of a grouping column if it is a plain input column, otherwise None."""
    expression = column._expr if isinstance(column, Column) else None
    if not isinstance(expression, ColumnReference):
        return None
    name: str = expression._unparsed_identifier
    return name[1:-1].replace("``", "`") if name[:1] == name[-1:] == "`" else name


def _prepare(session: SparkSession, settings: QuerySettings, observers: Observers) -> None:
    refuse_observers(observers)
    refuse_direct(settings)
    refuse_frames(settings)


def _apply(steps: ConnectPlan) -> Callable[..., DataFrame]:
    return steps.for_worker().apply


def _stream(operators: Sequence[OperatorDefinition], output: StructType) -> DataFrame:
    session = operators[0].frame.sparkSession
    return ConnectStream(operators, ConnectPlan.of(session, output))


CONNECT: Final = Client(
    prepare=_prepare, grouping=_grouping_of, input_plan=input_plan, apply=_apply, stream=_stream
)
"""The functions for a session of Spark Connect."""


class ConnectQuery(SparkQuery):
    """Spark's `StreamingQuery` on Connect, with statelog's errors and figures."""

    def __init__(self, query: SparkQuery, operators: Sequence[OperatorDefinition]) -> None:
        super().__init__(query._session, query.id, query.runId, query.name)
        self._operators = tuple(operators)

    @property
    def lastBatch(self) -> BatchProgress | None:
        """The figures of the newest committed micro-batch, or None before the first one."""
        return max(self.recentBatches, key=lambda batch: batch.batch_id, default=None)

    @property
    def recentBatches(self) -> list[BatchProgress]:
        """
        The figures of the newest micro-batches in this session, including earlier runs.

        They are in the session on the server, under keys that begin with `statelog.batches`.
        """
        return sorted(self._batches(self._settings()), key=lambda batch: batch.batch_id)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """See Spark's `StreamingQuery.recentProgress`; includes statelog's figures."""
        return self._with_figures(super().recentProgress)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """See Spark's `StreamingQuery.lastProgress`; includes statelog's figures."""
        progress = super().lastProgress
        return None if progress is None else self._with_figures([progress])[0]

    def _with_figures(
        self, recent: Sequence[StreamingQueryProgress]
    ) -> list[StreamingQueryProgress]:
        settings = self._settings()
        batches = {batch.batch_id: batch for batch in self._batches(settings)}
        observed = partial(self._observed, settings)
        return [with_batch(progress, self._operators, batches, observed) for progress in recent]

    def _settings(self) -> Mapping[str, str]:
        settings: Mapping[str, str] = self._session.conf.getAll
        return settings

    def _batches(self, settings: Mapping[str, str]) -> list[BatchProgress]:
        prefix = figures_key(self.id)
        return [
            BatchProgress.from_json(msgspec.json.decode(text))
            for key, text in settings.items()
            if key.startswith(prefix)
        ]

    def _observed(self, settings: Mapping[str, str], batch_id: int) -> dict[str, dict[str, object]]:
        text = settings.get(observed_key(self.id, batch_id))
        if text is None:
            return {}
        figures = msgspec.json.decode(text, type=ObservedFigures)
        return figures.values if figures.batch_id == batch_id else {}

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """See Spark's `StreamingQuery.awaitTermination`."""
        with message_first(_begin_with_message):
            return super().awaitTermination(timeout)

    def processAllAvailable(self) -> None:
        """See Spark's `StreamingQuery.processAllAvailable`."""
        with message_first(_begin_with_message):
            super().processAllAvailable()

    def exception(self) -> StreamingQueryException | None:
        """See Spark's `StreamingQuery.exception`."""
        error = super().exception()
        if error is not None:
            _begin_with_message(error)
        return error


def _begin_with_message(error: StreamingQueryException) -> None:
    text = str(error)
    cause = reported_in(text)
    if cause is None and _CRASHED in text:
        cause = UnavailableError(
            "the server's Python process of this query ended: it was killed, probably for lack of "
            "memory on the server's host. Nothing is lost: start the query again; Spark will repeat "
            "the micro-batch"
        )
    if cause is not None and isinstance(getattr(error, "_message", None), str):
        error._message = f"{type(cause).__name__}: {cause.message}\n\n{error._message}"
