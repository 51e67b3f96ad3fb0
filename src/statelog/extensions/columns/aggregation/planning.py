"""
Plan the aggregates of one call: columns that flow, partial results, state and output.

Spark itself computes all types, by analysing the aggregation it would run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col, expr
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

from statelog.errors import UsageError
from statelog.extensions.columns.aggregation.functions import Aggregate
from statelog.extensions.columns.aggregation.kind import AggregateKind
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
    The plan of one call.

    Args:
        keyed: The keys and the arguments of the aggregates, without a key group.
        wholes: The aggregates as SQL of Spark, over all rows of *keyed* at once.
        pre: The partial results of a micro-batch.
        merge: What the tasks do with them.
        state: Schema of the state.
        output: Schema of the output.
        event_time: Position of the key that is an event time or a window of it, and has a watermark;
            None without one.
    """

    keyed: KeyedFrame
    wholes: tuple[str, ...]
    pre: PreAggregation
    merge: Merge
    state: StructType
    output: StructType
    event_time: int | None

    def over_batch(self) -> DataFrame:
        """Return the aggregates over a batch frame, by Spark alone."""
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
        return [f"{_WHOLE}{at}" for at in range(len(self.wholes))]


def plan_aggregates(grouping: Grouping, aggregates: Mapping[str, Aggregate]) -> AggregationPlan:
    """Plan the aggregates of a grouped frame, by the names of their output columns."""
    frame = grouping.frame
    key_schema = _key_schema(grouping)
    columns = [column.alias(f"{_KEY}{at}") for at, column in enumerate(grouping.columns)]
    keys = tuple(f"{_KEY}{at}" for at in range(len(columns)))
    positions: dict[str, list[str]] = {}
    for name, aggregate in aggregates.items():
        positions[name] = []
        for argument in _arguments(aggregate, frame):
            at = f"{_ARGUMENT}{len(columns) - len(keys)}"
            positions[name].append(at)
            columns.append(argument.alias(at))
    source = _selected(frame, columns, aggregates)
    types = {field.name: field.dataType for field in source.schema}
    is_ansi = (frame.sparkSession.conf.get(_ANSI) or "").lower() == "true"
    kinds = {
        name: _bound(aggregate, frame).bind(
            [types[column] for column in positions[name]], is_ansi=is_ansi
        )
        for name, aggregate in aggregates.items()
    }
    return _Types(source, keys, key_schema, kinds, positions).plan(tuple(columns))


class _Part(NamedTuple):
    """A part of an aggregate's state: its SQL, and its columns among partial results and in the state."""

    aggregate: str
    name: str
    sql: str
    partial: str
    column: str


@dataclass(frozen=True, slots=True)
class _Types:
    """A frame of keys and arguments, before Spark has computed the types of its aggregates."""

    source: DataFrame
    keys: tuple[str, ...]
    key_schema: StructType
    kinds: Mapping[str, AggregateKind]
    arguments: Mapping[str, Sequence[str]]

    def plan(self, columns: tuple[Column | str, ...]) -> AggregationPlan:
        wholes = tuple(kind.whole(self.arguments[name]) for name, kind in self.kinds.items())
        parts = self._parts()
        partials = tuple((part.sql, part.partial) for part in parts)
        results = [(sql, f"{_WHOLE}{at}") for at, sql in enumerate(wholes)]
        shape = self.source.groupBy(*self.keys).agg(
            *(expr(sql).alias(alias) for sql, alias in (*results, *partials))
        )
        fields = list(shape.schema)[len(self.keys) :]
        output = [
            StructField(name, field.dataType, field.nullable)
            for name, field in zip(self.kinds, fields[: len(wholes)], strict=True)
        ]
        state = [
            StructField(part.column, field.dataType)
            for part, field in zip(parts, fields[len(wholes) :], strict=True)
        ]
        keys = [_without_metadata(key) for key in self.key_schema]
        schema = StructType([*keys, *output])
        _check_names(schema.names, "output")
        _check_names([part.column for part in parts], "state")
        count = len(keys)
        positions = tuple(range(1, 1 + count))
        return AggregationPlan(
            KeyedFrame(self.source, columns, positions, 1 + count, StructType(keys)),
            wholes,
            PreAggregation(self.keys, partials),
            Merge(self._named(parts), arrow_schema(schema)),
            StructType(state),
            schema,
            _event_time(self.key_schema),
        )

    def _parts(self) -> list[_Part]:
        parts: list[_Part] = []
        for aggregate, kind in self.kinds.items():
            for name, sql in kind.partials(self.arguments[aggregate]).items():
                column = f"{aggregate}__{name}" if name else aggregate
                parts.append(_Part(aggregate, name, sql, f"__part_{len(parts)}", column))
        return parts

    def _named(self, parts: Sequence[_Part]) -> tuple[NamedAggregate, ...]:
        def of(aggregate: str) -> tuple[tuple[str, str, str], ...]:
            return tuple(
                (part.name, part.partial, part.column)
                for part in parts
                if part.aggregate == aggregate
            )

        return tuple(NamedAggregate(name, kind, of(name)) for name, kind in self.kinds.items())


def _key_schema(grouping: Grouping) -> StructType:
    """Return the keys as Spark names them, with their metadata."""
    refuse_unread_types(grouping.frame)
    schema = grouping_keys(grouping.frame.select(*grouping.columns).schema)
    for field in schema:
        if _SESSION_WINDOW in field.metadata or field.name == "session_window":
            raise UsageError(
                "aggregate takes tumbling and sliding windows, not session_window: its windows grow "
                "with later rows. Use a processor with timers, see docs/how-to/spark.md"
            )
    return schema


def _without_metadata(field: StructField) -> StructField:
    return StructField(field.name, field.dataType, field.nullable)


def _event_time(keys: StructType) -> int | None:
    """Return the position of the key with the watermark."""
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
    """Return the kind, with the names of all columns where none was named."""
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
            f"aggregate: the {what} would have several columns {', '.join(twice)}: give the "
            "aggregates other names, or alias the keys"
        )
