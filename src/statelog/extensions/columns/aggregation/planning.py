"""
Plan the aggregates of a call: input columns, partial results, state and output.

Spark itself computes all types, by analysing the aggregation it would run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col, expr
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

from statelog.errors import UsageError
from statelog.extensions.columns.aggregation.functions import Aggregate
from statelog.extensions.columns.aggregation.kinds import AggregateKind
from statelog.extensions.columns.aggregation.pre_aggregation import PreAggregation
from statelog.extensions.columns.aggregation.processor import Merge, NamedAggregate
from statelog.spark.jvm.frames import refuse_unread_types
from statelog.spark.query.input_plan import event_time_column
from statelog.spark.query.keyed_frame import Grouping, KeyedFrame
from statelog.spark.rows.key_types import grouping_keys
from statelog.spark.rows.types import arrow_schema, sql_name

_KEY: Final = "__key_"
_ARGUMENT: Final = "__arg_"
_WHOLE: Final = "__whole_"
_SESSION_WINDOW: Final = "spark.sessionWindow"
_ANSI: Final = "spark.sql.ansi.enabled"


@dataclass(frozen=True, slots=True)
class AggregationPlan:
    """
    The plan for one call of `aggregate`.

    Args:
        keyed: The keys and the arguments of the aggregates, without a key group.
        wholes: The aggregates as SQL of Spark, over all rows of *keyed* at once.
        pre: The partial results of a micro-batch.
        merge: What the tasks do with them.
        state: Schema of the state.
        output: Schema of the output.
        event_time: Position of the key that is an event time or a window of it, and has a
            watermark; None without one.
    """

    keyed: KeyedFrame
    wholes: tuple[str, ...]
    pre: PreAggregation
    merge: Merge
    state: StructType
    output: StructType
    event_time: int | None

    def over_batch(self) -> DataFrame:
        """Compute the aggregates over a batch frame with Spark alone."""
        names = self.output.names
        columns = [
            expr(sql).alias(name) for sql, name in zip(self.wholes, self._results, strict=True)
        ]
        rows = self.keyed.frame.groupBy(*self.pre.keys).agg(*columns)
        inner = (*self.pre.keys, *self._results)
        return rows.select(
            *(col(column).alias(name) for column, name in zip(inner, names, strict=True))
        )

    @property
    def _results(self) -> Sequence[str]:
        return [f"{_WHOLE}{number}" for number in range(len(self.wholes))]


def plan_aggregates(grouping: Grouping, aggregates: Mapping[str, Aggregate]) -> AggregationPlan:
    """Plan the aggregates of a grouped frame, given by output column name."""
    frame = grouping.frame
    key_schema = _key_schema(grouping)
    keys = tuple(f"{_KEY}{number}" for number in range(len(grouping.columns)))
    columns = [column.alias(key) for key, column in zip(keys, grouping.columns, strict=True)]
    arguments: dict[str, list[str]] = {}
    for name, aggregate in aggregates.items():
        arguments[name] = []
        for argument in _arguments(aggregate, frame):
            column = f"{_ARGUMENT}{len(columns) - len(keys)}"
            arguments[name].append(column)
            columns.append(argument.alias(column))
    source = _selected(frame, columns, aggregates)
    types = {field.name: field.dataType for field in source.schema}
    is_ansi = (frame.sparkSession.conf.get(_ANSI) or "").lower() == "true"
    kinds = {
        name: _bound(aggregate, frame).bind(
            [types[column] for column in arguments[name]], is_ansi=is_ansi
        )
        for name, aggregate in aggregates.items()
    }
    return _planned(source, columns, keys, key_schema, kinds, arguments)


def _planned(
    source: DataFrame,
    columns: Sequence[Column | str],
    keys: tuple[str, ...],
    key_schema: StructType,
    kinds: Mapping[str, AggregateKind],
    arguments: Mapping[str, Sequence[str]],
) -> AggregationPlan:
    """Plan aggregates over a frame of keys and arguments, with types determined by Spark."""
    wholes = tuple(kind.whole(arguments[name]) for name, kind in kinds.items())
    merged, partials = _with_parts(kinds, arguments)
    results = [(sql, f"{_WHOLE}{number}") for number, sql in enumerate(wholes)]
    shape = source.groupBy(*keys).agg(
        *(expr(sql).alias(alias) for sql, alias in (*results, *partials))
    )
    fields = list(shape.schema)[len(keys) :]
    output = [
        StructField(name, field.dataType, field.nullable)
        for name, field in zip(kinds, fields[: len(wholes)], strict=True)
    ]
    names = [column for aggregate in merged for _, _, column in aggregate.parts]
    state = [
        StructField(name, field.dataType)
        for name, field in zip(names, fields[len(wholes) :], strict=True)
    ]
    key_fields = [StructField(key.name, key.dataType, key.nullable) for key in key_schema]
    schema = StructType([*key_fields, *output])
    _check_names(schema.names, "output")
    _check_names(names, "state")
    first_argument = 1 + len(keys)
    positions = tuple(range(1, first_argument))
    return AggregationPlan(
        KeyedFrame(source, tuple(columns), positions, first_argument, StructType(key_fields)),
        wholes,
        PreAggregation(keys, partials),
        Merge(merged, arrow_schema(schema)),
        StructType(state),
        schema,
        _event_time(key_schema),
    )


def _with_parts(
    kinds: Mapping[str, AggregateKind], arguments: Mapping[str, Sequence[str]]
) -> tuple[tuple[NamedAggregate, ...], tuple[tuple[str, str], ...]]:
    """
    Return the aggregates with the parts of their state, and the partial results.

    SQL and name of each part.
    """
    merged: list[NamedAggregate] = []
    partials: list[tuple[str, str]] = []
    for name, kind in kinds.items():
        parts: list[tuple[str, str, str]] = []
        for part, sql in kind.partials(arguments[name]).items():
            partial = f"__part_{len(partials)}"
            partials.append((sql, partial))
            parts.append((part, partial, f"{name}__{part}" if part else name))
        merged.append(NamedAggregate(name, kind, tuple(parts)))
    return tuple(merged), tuple(partials)


def _key_schema(grouping: Grouping) -> StructType:
    """Return the schema of the keys, with names and metadata from Spark."""
    refuse_unread_types(grouping.frame)
    schema = grouping_keys(grouping.frame.select(*grouping.columns).schema)
    for field in schema:
        if _SESSION_WINDOW in field.metadata or field.name == "session_window":
            raise UsageError(
                "aggregate takes tumbling and sliding windows, not session_window: session windows grow "
                "with later rows. Use a processor with timers, see docs/how-to/spark.md"
            )
    return schema


def _event_time(keys: StructType) -> int | None:
    """Return the position of the key column that has the watermark."""
    name = event_time_column(keys)
    if name is None:
        return None
    kind = keys[name].dataType
    if isinstance(kind, StructType) and "end" in kind.names:
        kind = kind["end"].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        return None
    return keys.names.index(name)


def _arguments(aggregate: Aggregate, frame: DataFrame) -> list[Column]:
    named = [col(column) if isinstance(column, str) else column for column in aggregate.arguments]
    rows = [col(sql_name(name)) for name in frame.columns] if aggregate.of_row is not None else []
    return [*named, *rows]


def _bound(aggregate: Aggregate, frame: DataFrame) -> AggregateKind:
    """Return the kind for the argument types; without arguments, use all columns."""
    return aggregate.kind if aggregate.of_row is None else aggregate.of_row(frame.columns)


def _selected(
    frame: DataFrame, columns: Sequence[Column | str], aggregates: Mapping[str, Aggregate]
) -> DataFrame:
    try:
        selected = frame.select(*columns)
        _ = selected.schema  # on Spark Connect, the analysis
    except AnalysisException as error:
        functions = ", ".join(
            f"{aggregate.kind.title}(...).alias({name!r})" for name, aggregate in aggregates.items()
        )
        raise UsageError(
            f"aggregate: Spark rejects a column of {functions}: {error!s:.400}"
        ) from error
    return selected


def _check_names(names: Sequence[str], what: str) -> None:
    lower = [name.lower() for name in names]
    twice = sorted({name for name in names if lower.count(name.lower()) > 1})
    if twice:
        raise UsageError(
            f"aggregate: the {what} would have duplicate columns {', '.join(twice)}: give the "
            "aggregates different names, or alias the keys"
        )
