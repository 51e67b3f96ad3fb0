"""
`transform_with_state`: Spark's stateful operator, with its state in the changelog.

This module makes an `OperatorDefinition` of the arguments.  `stream/stateful_stream` is the frame
that a user gets, `stream/writer` starts the query, `driver/batch_frame` runs the operator over a
batch frame.
Source: pyspark.sql.GroupedData.transformWithState, which has the same arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Unpack

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.metrics import Metrics
from statelog.model import KeyGroupRange
from statelog.model.key_group import MAX_PARALLELISM_LIMIT
from statelog.spark.extension_table import CONNECT_CLIENT, loaded
from statelog.spark.jvm.gateway import is_connect, settings_of
from statelog.spark.query.declared_state import Declared, check_declared, declared_by
from statelog.spark.query.face import AnyProcessor, Face, face_of, pandas_face_of
from statelog.spark.query.input_plan import (
    EachRow,
    KeyedInput,
    KeyedInputPlan,
    check_output_column,
    event_time_column,
    input_plan,
    with_event_time,
)
from statelog.spark.query.keyed_frame import ColumnsToRead, grouping_of, initial_state
from statelog.spark.query.processor_checks import check_methods
from statelog.spark.query.progress import NO_OBSERVERS, Observers, OnProgress
from statelog.spark.query.query import (
    OUTPUT_MODES,
    TIME_MODES,
    OperatorDefinition,
    mode_of,
    time_mode_of,
)
from statelog.spark.query.resolve import (
    chained_arguments,
    refuse_unknown_arguments,
    resolve_settings,
)
from statelog.spark.query.session import (
    Client,
    output_schema,
    parse_schema,
    session_of,
    use_this_python,
)
from statelog.spark.query.settings import ALL, AUTO, OperatorSettings, QuerySettings, names_settings
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.spark_versions import StatefulProcessor, refuse_before
from statelog.spark.rows.types import TIME_ZONE, arrow_schema, known_zone
from statelog.spark.stream.recorded_plan import RecordedPlan
from statelog.spark.stream.stateful_stream import GroupedStatefulStream, StatefulStream

DEFAULT_OPERATOR_ID = "transform_with_state"
"""Default name of a query's first operator."""


@dataclass(frozen=True, slots=True)
class OperatorArguments:
    """The arguments that Spark's own operator takes, and how the input is keyed."""

    grouped: GroupedData
    processor: AnyProcessor
    output: StructType | str
    output_mode: str = "Update"
    time_mode: str = "None"
    initial: GroupedData | None = None
    event_time_output: str = ""
    keys: KeyedInputPlan = field(default_factory=EachRow)
    observers: Observers = NO_OBSERVERS


@names_settings
def transform_with_state(
    grouped: GroupedData,
    statefulProcessor: AnyProcessor,
    outputStructType: StructType | str,
    outputMode: str = "Update",
    timeMode: str = "None",
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    on_progress: OnProgress | None = None,
    metrics: Metrics | None = None,
    **settings: Unpack[OperatorSettings],
) -> DataFrame:
    """
    Run an unmodified `StatefulProcessor`, or a `ColumnarProcessor`, over a grouped frame.

    Example:
        totals = transform_with_state(
            events.groupBy("customer"),
            Totals(),
            "customer string, total double",
            stateLocation="s3://bucket/jobs/totals",
        )
        writer = totals.writeStream.option("checkpointLocation", "s3://bucket/queries/totals")
        query = writer.foreachBatch(write).start()

    Args:
        grouped: `df.groupBy(...)` of a stream, also of the output of another stateful operator in
            the same query; or of a batch frame, whose state is discarded at the end, as in Spark.
        statefulProcessor: A processor that takes Rows, written for Spark's transformWithState; or a
            `ColumnarProcessor`, which takes all keys of a task as columns.
        outputStructType: Schema of the output rows, also as DDL text.
        outputMode: "Update", "Append" or "Complete"; with each the output is what the processor
            yields, as in Spark.  The writer accepts the first two.
        timeMode: "None", "ProcessingTime" (timers and time to live) or "EventTime" (timers by the
            watermark; late rows are dropped).  See docs/explanation/time.md.
        initialState: `frame.groupBy(...)` of a batch frame, by a key of the same types;
            `handleInitialState` is called with its rows in the first micro-batch of an empty state.
        eventTimeColumnName: Output column that holds the event time; rows older than the
            watermark are an error.  A stateful operator after this one uses it.  Empty for none.
        on_progress: Called on the driver after each micro-batch of the query.
        metrics: Where the driver counts checkpoints, snapshots and micro-batches; see
            `statelog.exporters`.
        settings: See `OperatorSettings`.

    Returns:
        For a stream a `StatefulStream`, whose `writeStream ... start()` returns a
        `StreamingQuery`; for a batch frame a plain lazy frame.

    Raises:
        UsageError: An argument or setting is wrong or not supported.
        ProcessorError: The processor's `init` failed.
    """
    arguments = OperatorArguments(
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
        observers=Observers(on_progress, metrics),
    )
    return stateful_frame(arguments, face_of(statefulProcessor), settings)


@names_settings
def transform_with_state_in_pandas(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str = "Update",
    timeMode: str = "None",
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    on_progress: OnProgress | None = None,
    metrics: Metrics | None = None,
    **settings: Unpack[OperatorSettings],
) -> DataFrame:
    """
    Run an unmodified `StatefulProcessor` of pandas frames over a grouped frame.

    Example:
        totals = transform_with_state_in_pandas(
            events.groupBy("customer"), PandasTotals(), "customer string, total double"
        )

    Args:
        grouped: As for `transform_with_state`.
        statefulProcessor: The processor; it takes each key's rows as an iterator of DataFrames and
            yields DataFrames, as for Spark's transformWithStateInPandas.
        outputStructType: Schema of the output rows, also as DDL text.
        outputMode: As for `transform_with_state`.
        timeMode: As for `transform_with_state`.
        initialState: As for `transform_with_state`; `handleInitialState` gets DataFrames.
        eventTimeColumnName: As for `transform_with_state`.
        on_progress: As for `transform_with_state`.
        metrics: As for `transform_with_state`.
        settings: See `OperatorSettings`.

    Returns:
        A stream or frame, see `transform_with_state`.

    Raises:
        UsageError: An argument or setting is wrong or not supported.
        ProcessorError: The processor's `init` failed.
    """
    arguments = OperatorArguments(
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
        observers=Observers(on_progress, metrics),
    )
    return stateful_frame(arguments, pandas_face_of(statefulProcessor), settings)


def stateful_frame(
    arguments: OperatorArguments, face: Face, settings: OperatorSettings
) -> DataFrame:
    """Return the output of a stateful operator; raises like `transform_with_state`."""
    time_mode = mode_of("timeMode", arguments.time_mode, TIME_MODES)
    mode_of("outputMode", arguments.output_mode, OUTPUT_MODES)
    refuse_unknown_arguments(settings)
    # 1. Where the operator stands; the frame depends on the settings, by the number of key groups.
    place = _place(arguments, settings, time_mode)
    # 2. What it gets and returns: rows with their keys, and the columns of the output.
    output = output_schema(place.session, arguments.output)
    has_initial = arguments.initial is not None
    row_format = face.row_format(place.session, output, has_initial)
    to_read = _to_read(arguments, face, place.settings)
    source = _input(arguments, place.client, place.key_groups, to_read)
    event_time = arguments.keys.event_time(source) if time_mode == "eventtime" else None
    initial = None if arguments.initial is None else place.client.grouping(arguments.initial)
    # 3. What the processor declares in its `init`, which runs here.
    declared = _declared(arguments.processor, place, source, time_mode)
    # 4. The operator.
    operator = OperatorDefinition(
        frame=source.keyed.frame,
        processor=arguments.processor,
        schema=declared.state,
        time_mode=time_mode,
        max_parallelism=place.settings.max_parallelism,
        layout=InputLayout(source.keyed.key_positions, source.keyed.first_input),
        plan=source.facts,
        row_format=row_format,
        output=output,
        arrow_output=arrow_schema(output, "outputStructType: "),
        initial=initial_state(initial, source.keyed, place.key_groups),
        event_time=event_time,
        event_time_output=arguments.event_time_output or None,
        zone=known_zone(place.session.conf.get(TIME_ZONE) or "UTC"),
        arguments=place.given_settings,
        of_upstream=source.of_upstream,
        reduction=arguments.keys.reduction,
        observers=place.observers,
        declared=declared.extras,
        has_all_columns=_has_all_columns(arguments, source, place.settings),
    )
    check_methods(arguments.processor, output.names, time_mode, has_initial=has_initial)
    columns = _with_event_time(output, operator.event_time_output, source)
    if source.is_stream:
        return place.client.stream((*place.before, operator), columns)
    # Imported here: a stream does not need it.
    from statelog.spark.driver.batch_frame import batch_frame

    return batch_frame(operator, place.settings)


@dataclass(frozen=True, slots=True)
class _Place:
    """The context of an operator: its session, the operators before it, and their settings."""

    session: SparkSession
    client: Client
    before: tuple[OperatorDefinition, ...]
    observers: Observers
    given_settings: Mapping[str, object]
    settings: QuerySettings

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of the operator, which follow the groups of the operators before it."""
        count = self.settings.max_parallelism
        return KeyGroupRange(len(self.before) * count, (len(self.before) + 1) * count - 1)


def _place(arguments: OperatorArguments, settings: OperatorSettings, time_mode: str) -> _Place:
    session = session_of(arguments.grouped)
    client = client_of(session)
    before, given_settings = _chain(arguments.grouped, settings)
    observers = arguments.observers.after(before[-1].observers if before else NO_OBSERVERS)
    resolved = resolve_settings(settings_of(session), given_settings)
    client.prepare(session, resolved, arguments.observers)
    _check_chain(before, time_mode, resolved)
    return _Place(session, client, before, observers, given_settings, resolved)


def _declared(
    processor: AnyProcessor, place: _Place, source: KeyedInput, time_mode: str
) -> Declared:
    """Run the processor's `init`, and return what it declares."""
    declared = declared_by(
        processor,
        place.settings.operator_id or _operator_id(place.before),
        arrow_schema(source.keyed.key_schema),
        lambda ddl: parse_schema(place.session, ddl),
        time_mode=time_mode,
    )
    declared_before = [operator.declared for operator in place.before]
    check_declared(declared.extras, declared_before, place.settings)
    return declared


def _has_all_columns(
    arguments: OperatorArguments, source: KeyedInput, settings: QuerySettings
) -> bool:
    """Return whether tasks receive all columns, not only the columns that the processor reads."""
    is_chosen = settings.input_columns != AUTO
    return is_chosen or arguments.keys.reduction is not None or source.has_all_columns


def _with_event_time(output: StructType, name: str | None, source: KeyedInput) -> StructType:
    """Return the output, with its event-time column marked if it has one."""
    if name is None:
        return output
    check_output_column(name, output, has_watermark=source.facts.has_watermark)
    return with_event_time(output, name, source.frame.schema)


def _chain(
    grouped: GroupedData, settings: OperatorSettings
) -> tuple[tuple[OperatorDefinition, ...], dict[str, object]]:
    """Return the operators that precede this one in its query, and the query's settings."""
    if not isinstance(grouped, GroupedStatefulStream):
        return (), dict[str, object](settings)
    before = grouped.operators
    return before, chained_arguments(before[-1].arguments, settings)


def _to_read(arguments: OperatorArguments, face: Face, settings: QuerySettings) -> ColumnsToRead:
    """Return a function that selects the columns the processor and its event time need."""
    chosen = settings.input_columns
    is_timed = arguments.time_mode.lower() == "eventtime"
    if chosen == AUTO and settings.keeps_rows:
        chosen = ALL  # a changed processor may read other columns
    processor = arguments.processor
    read_by = partial(face.columns_read, processor)

    def to_read(schema: StructType) -> frozenset[str]:
        # Imported here: it is needed once, when the query is declared.
        from statelog.spark.query.input_columns import columns_to_read

        columns = columns_to_read(schema.names, chosen, read_by, type(processor).__name__)
        event_time = event_time_column(schema) if is_timed else None
        return columns if event_time is None else columns | {event_time}

    return to_read


def _input(
    arguments: OperatorArguments,
    client: Client,
    key_groups: KeyGroupRange,
    to_read: ColumnsToRead,
) -> KeyedInput:
    """Return an operator's keyed input: the query's input or the previous operator's output."""
    grouped = arguments.grouped
    upstream = grouped if isinstance(grouped, GroupedStatefulStream) else None
    shape = grouped if upstream is None else upstream.shape
    keyed = arguments.keys.keyed(lambda: client.grouping(shape), key_groups, to_read)
    if upstream is None:
        facts = client.input_plan(keyed.frame)
        is_stream = keyed.frame.isStreaming
        return KeyedInput(keyed, shape._df, facts, is_stream)
    steps = upstream.plan.then("select", keyed.columns, {})
    facts = replace(upstream.operators[0].plan, is_stateless=steps.is_stateless)
    keyed = replace(keyed, frame=steps.shape)
    return KeyedInput(keyed, shape._df, facts, True, client.apply(steps))


def _check_chain(
    before: Sequence[OperatorDefinition], time_mode: str, settings: QuerySettings
) -> None:
    """Check that an operator can follow the operators in *before* in the same query."""
    others = time_mode_of(before)
    if "none" not in (time_mode, others) and time_mode != others:
        raise UsageError(
            f"timeMode is {time_mode} for this operator but {others} for an earlier operator. All timers of a "
            "query share one time: set the same timeMode for all operators with timers, or run this operator "
            "as a separate query"
        )
    if before and settings.max_parallelism != before[-1].max_parallelism:
        raise UsageError(
            f"maxParallelism is {settings.max_parallelism} for this operator but "
            f"{before[-1].max_parallelism} for the previous operator; it must be the same for the whole query"
        )
    groups = (len(before) + 1) * settings.max_parallelism
    if before and groups > MAX_PARALLELISM_LIMIT:
        raise UsageError(
            f"{len(before) + 1} operators with maxParallelism {settings.max_parallelism} have {groups} key "
            f"groups; a state location has at most {MAX_PARALLELISM_LIMIT}: set a lower maxParallelism"
        )


def _operator_id(before: Sequence[OperatorDefinition]) -> str:
    """Return the default name of an operator that follows *before*."""
    return f"{DEFAULT_OPERATOR_ID}_{len(before) + 1}" if before else DEFAULT_OPERATOR_ID


def client_of(session: SparkSession) -> Client:
    """Return the functions that implement this kind of session."""
    if not is_connect(session):
        return _CLASSIC
    refuse_before((4, 0), "a session of Spark Connect")
    # Imported here, because it needs the packages of Spark Connect.
    return loaded(CONNECT_CLIENT, Client)


def _classic_stream(operators: Sequence[OperatorDefinition], output: StructType) -> DataFrame:
    session = operators[0].frame.sparkSession
    return StatefulStream(operators, RecordedPlan.of(session, output))


_CLASSIC = Client(
    prepare=lambda session, settings, observers: use_this_python(session),
    grouping=grouping_of,
    input_plan=input_plan,
    apply=lambda steps: steps.apply,
    stream=_classic_stream,
)
