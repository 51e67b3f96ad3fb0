"""
`transform_with_state`: Spark's stateful operator, with its state in the changelog.

Here arguments become an operator; `frame` is what follows it in the plan, `writer` what starts it,
`batch` what runs it over a batch frame.
Source: pyspark.sql.GroupedData.transformWithState, whose arguments it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypedDict, Unpack, cast

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statelog.core.materialization_policy import MaterializationPolicy
from statelog.errors import UsageError
from statelog.metrics import Metrics
from statelog.spark.driver.batch_frame import batch_frame
from statelog.spark.query.declared_state import operator_schema
from statelog.spark.query.event_time import check_output_column, event_time_column
from statelog.spark.query.initial_state import initial_state
from statelog.spark.query.input_plan import InputPlan, input_plan
from statelog.spark.query.keyed_frame import KeyedFrame, keyed_frame, session_of
from statelog.spark.query.operator_definition import EngineConfig, StatefulOperator, engine_fields
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.session import parse_schema, refuse_connect, use_this_python
from statelog.spark.query.settings import QuerySettings, settle
from statelog.spark.rows.formats import Flavour, PandasFlavour, RowFlavour
from statelog.spark.rows.types import arrow_schema
from statelog.spark.stream.recorded_plan import RecordedPlan
from statelog.spark.stream.stateful_stream import StatefulStream

_OPERATOR_ID = "transform_with_state"
_TIME_MODES = ("none", "processingtime", "eventtime")
_OUTPUT_MODES = ("append", "update", "complete")


class OperatorSettings(TypedDict, total=False):
    """
    What an operator may be told beyond Spark's arguments.

    What is left out, or None, is taken from the session's configuration (`spark.statelog.<name>`),
    then from the default.

    Args:
        stateLocation: Path or URL of the state; default: the folder `statelog` inside the query's
            checkpointLocation (also by the word "checkpoint"), or `<spark.statelog.stateLocation>/<queryName>` where that is set.
        delivery: "staged" (the default): rows are committed with the state and redelivered
            identically, exactly once for a sink that honours the batch id.  "direct": one Spark job
            less, at least once.
        idleTicks: Run micro-batches without data when a timer is due or the watermark moved; fixed
            for the life of the query.  Default: as the query began; for a new one, whether there
            can be timers.
        tasks: Number of parallel tasks, 1 to *maxParallelism*; free at every restart.  Default: as
            many as each micro-batch is worth, between *minTasks* and *maxTasks*; over a batch frame
            `spark.sql.shuffle.partitions`.
        minTasks: At least so many, where *tasks* is left out (default 1).
        maxTasks: At most so many, where *tasks* is left out (default: the number of cores).
        maxParallelism: Number of key groups (default 128); fixed for the life of the state.
        operatorId: Name of the operator; state of another one is refused.
        restore: "latest" (the default), "empty" (insist on starting without state), or the id of
            an older checkpoint.
        adopt: Go on from state that another query wrote.
        retained: Checkpoints to keep, >= 1 (default 3).
        inlineBytes: Deltas and rows of one task up to this size (default 1 MiB) travel through the
            driver into the one object of the micro-batch; larger ones go to files of their own.
        memoryBudget: Memory of a Python worker in bytes, or as "512 mb" (the default); >= 64 MiB.
            State that does not fit goes to local disk.
        stateBackend: "auto" (the default): in memory while it fits, else on local disk; "memory";
            or "disk".
        localDirectory: Folder on each host for state on local disk; default: one of the user's in
            the system's temporary directory.
        storeOptions: Client options of the object store (credentials, endpoint, ...).
        fsync: On local disk, make objects durable before they count (the default).
        materialization: When to write snapshots.
        onProgress: Called on the driver with a `BatchProgress` after each micro-batch.
        metrics: Where the driver counts checkpoints and snapshots; see `statelog.exporters`.
    """

    stateLocation: str | None
    delivery: str | None
    idleTicks: bool | None
    tasks: int | None
    minTasks: int | None
    maxTasks: int | None
    maxParallelism: int | None
    operatorId: str | None
    restore: int | str | None
    adopt: bool | None
    retained: int | None
    inlineBytes: int | None
    memoryBudget: int | str | None
    stateBackend: str | None
    localDirectory: str | None
    storeOptions: Mapping[str, Any] | None
    fsync: bool | None
    materialization: MaterializationPolicy | None
    onProgress: Callable[[BatchProgress], None] | None
    metrics: Metrics | None


def transform_with_state(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str = "Update",
    timeMode: str = "None",
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    **settings: Unpack[OperatorSettings],
) -> DataFrame:
    """
    Run an unmodified `StatefulProcessor` over the groups of a frame, its state in statelog.

    Args:
        grouped: `df.groupBy(...)` of a stream; or of a batch frame, whose state is discarded at the
            end, as in Spark.
        statefulProcessor: The processor, Row flavour; written for Spark's transformWithState.
        outputStructType: Schema of the output rows, also as DDL text.
        outputMode: "Update", "Append" or "Complete"; all hand on what the processor yields, as in
            Spark, and the writer knows the first two.
        timeMode: "None", "ProcessingTime" (timers and time to live) or "EventTime" (timers by the
            watermark; late rows are dropped).  See docs/explanation/time.md.
        initialState: `frame.groupBy(...)` of a batch frame, by a key of the same types; its rows go to
            `handleInitialState` in the first micro-batch of a state that is empty, and never again.
        eventTimeColumnName: Output column that holds the event time; rows older than the
            watermark are refused.  Empty for none.
        settings: See `OperatorSettings`.

    Returns:
        For a stream a `StatefulStream`, whose `writeStream ... start()` gives a real
        `StreamingQuery`; for a batch frame a plain lazy frame.

    Raises:
        UsageError: An argument or setting is wrong, or asks for what is not offered.
        ProcessorError: The processor's `init` failed.
    """
    return _stateful_frame(
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
        lambda session, output: RowFlavour(),
        settings,
    )


def transform_with_state_in_pandas(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str = "Update",
    timeMode: str = "None",
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    **settings: Unpack[OperatorSettings],
) -> DataFrame:
    """
    Run an unmodified `StatefulProcessor` of the pandas flavour, its state in statelog.

    Args:
        grouped: As for `transform_with_state`.
        statefulProcessor: The processor; it takes each key's rows as an iterator of DataFrames and
            yields DataFrames, as for Spark's transformWithStateInPandas.
        outputStructType: Schema of the output rows, also as DDL text.
        outputMode: As for `transform_with_state`.
        timeMode: As for `transform_with_state`.
        initialState: As for `transform_with_state`; `handleInitialState` gets DataFrames.
        eventTimeColumnName: As for `transform_with_state`.
        settings: See `OperatorSettings`.

    Returns:
        A stream or frame, see `transform_with_state`.

    Raises:
        UsageError: An argument or setting is wrong, or asks for what is not offered.
        ProcessorError: The processor's `init` failed.
    """
    return _stateful_frame(
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
        _pandas_flavour,
        settings,
    )


def _pandas_flavour(session: SparkSession, output: StructType) -> Flavour:
    # pandas is imported where it is needed: its import takes time.
    from statelog.spark.rows.pandas_input import PandasSettings

    return PandasFlavour(PandasSettings.of(session), output)


def _stateful_frame(
    grouped: GroupedData,
    processor: StatefulProcessor,
    output: StructType | str,
    output_mode: str,
    time_mode: str,
    initial: GroupedData | None,
    event_time_output: str,
    flavour: Callable[[SparkSession, StructType], Flavour],
    settings: OperatorSettings,
) -> DataFrame:
    """Return the output of a stateful operator: what the flavours share."""
    refuse_connect("transform_with_state", grouped)
    _one_of("timeMode", time_mode, _TIME_MODES)
    _one_of("outputMode", output_mode, _OUTPUT_MODES)
    unknown = set(settings) - set(OperatorSettings.__annotations__)
    if unknown:
        raise UsageError(
            f"transform_with_state takes no argument {', '.join(sorted(unknown))}; it takes Spark's "
            f"and {', '.join(OperatorSettings.__annotations__)}"
        )
    arguments = cast("dict[str, Any]", dict(settings))
    on_progress = arguments.pop("onProgress", None)
    metrics = arguments.pop("metrics", None)
    session = session_of(grouped)
    settled = settle(session.conf.getAll, arguments)
    # The number of key groups shapes the frame, so the settings come first.
    keyed = keyed_frame(grouped, settled.max_parallelism)
    use_this_python(session)
    plan = input_plan(keyed.frame)
    event_time = None
    if time_mode.lower() == "eventtime" and (name := _event_time(grouped, plan)) is not None:
        event_time = keyed.first_input + grouped._df.columns.index(name)
    config = replace(
        _config(session, keyed, processor, output, time_mode.lower(), settled),
        plan=plan,
        event_time=event_time,
        event_time_output=event_time_output or None,
        flavour=flavour(session, parse_schema(session, output)),
        initial=initial_state(initial, keyed, settled.max_parallelism),
        on_progress=on_progress,
        metrics=metrics or Metrics(),
    )
    if event_time_output:
        check_output_column(event_time_output, config.output, has_watermark=plan.has_watermark)
    if not keyed.frame.isStreaming:
        return batch_frame(keyed.frame, config, settled.tasks)
    return StatefulStream(
        StatefulOperator(frame=keyed.frame, config=config, arguments=arguments),
        RecordedPlan.of(session, config.output),
    )


def _config(
    session: SparkSession,
    keyed: KeyedFrame,
    processor: StatefulProcessor,
    output: StructType | str,
    time_mode: str,
    settings: QuerySettings,
) -> EngineConfig:
    output_schema = parse_schema(session, output)
    return EngineConfig(
        location="",  # known when the query starts
        schema=operator_schema(
            processor,
            settings.operator_id or _OPERATOR_ID,
            arrow_schema(keyed.key_schema),
            lambda ddl: parse_schema(session, ddl),
            time_mode=time_mode,
        ),
        processor=processor,
        output=output_schema,
        arrow_output=arrow_schema(output_schema),
        key_positions=keyed.key_positions,
        first_input=keyed.first_input,
        time_mode=time_mode,
        on_progress=None,
        metrics=Metrics(),
        **engine_fields(settings, session.sparkContext.defaultParallelism),
    )


def _event_time(grouped: GroupedData, plan: InputPlan) -> str | None:
    if not grouped._df.isStreaming:
        raise UsageError(
            "the time mode EventTime needs a stream: a batch frame has no watermark; use None or "
            "ProcessingTime"
        )
    if not plan.has_watermark:
        raise UsageError(
            "the time mode EventTime needs a watermark; call withWatermark on the input before "
            "groupBy"
        )
    return event_time_column(grouped._df.schema)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value.lower() not in allowed:
        raise UsageError(f"{name} is one of {', '.join(allowed)}; got {value!r}")
