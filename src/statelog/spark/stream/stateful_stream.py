"""
`StatefulStream`: the output of a stateful operator, in the form of a DataFrame.

It has the methods of a `DataFrame`.  Methods that process rows one by one are recorded and applied
to each micro-batch's output before the sink.  Methods that need more than one micro-batch raise an
error that says what to do instead.  Staged rows are stored in the checkpoint as the processor
yielded them, so the steps may change at a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession

from statelog.errors import UsageError
from statelog.plain_text import facts_as_html
from statelog.redaction import redacted
from statelog.spark.jvm.gateway import FRAME
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.rows.spark_versions import DataFrameNaFunctions, offered
from statelog.spark.stream.recorded_plan import OBSERVE, RecordedPlan
from statelog.spark.stream.writer import StatefulStreamWriter

RECORDED: Final = [
    "alias",
    "coalesce",
    "crossJoin",
    "drop",
    "dropna",
    "fillna",
    "filter",
    "hint",
    "join",
    "mapInArrow",
    "mapInPandas",
    "melt",
    "repartition",
    "repartitionById",
    "repartitionByRange",
    "replace",
    "select",
    "selectExpr",
    "to",
    "toDF",
    "unpivot",
    "where",
    "withColumn",
    "withColumnRenamed",
    "withColumns",
    "withColumnsRenamed",
    "withMetadata",
]
"""Methods that are applied to each micro-batch."""

SHOWN: Final = [
    "colRegex",
    "columns",
    "dtypes",
    "explain",
    "metadataColumn",
    "printSchema",
    "schema",
]
"""Methods and properties that do not read rows."""

_STATE: Final = (
    "it needs Spark's own state, which cannot be used after this query's state: do it in a processor "
    "(groupBy(...) and transform_with_state again), before the first stateful operator, or in a "
    "second query over the output of this query"
)
_WATERMARK: Final = (
    "a query uses the watermark of its input: name the output column with the event time with "
    "eventTimeColumnName; the next stateful operator uses it"
)
_WHOLE: Final = (
    "it needs all rows, but a stream does not end: apply it to the rows of one micro-batch in "
    ".writeStream.foreachBatch(lambda frame, batch_id: ...)"
)
_UNION: Final = (
    "Spark cannot union a stream with a batch frame, and a second stream would need an additional source "
    "in the running query: combine the streams before the operator, or write both to "
    "one sink"
)
_SUBQUERY: Final = (
    "it uses the frame in a subquery, and Spark does not allow streams in a subquery: write the rows to "
    "a table and query the table separately, or apply it to each micro-batch in "
    ".writeStream.foreachBatch(lambda frame, batch_id: ...)"
)
_ACTION: Final = (
    "a stream has rows only while its query runs: start a query with .writeStream, and read the "
    "rows in foreachBatch(lambda frame, batch_id: ...)"
)
_WRITE: Final = "write a stream with .writeStream: format(...), toTable(...) or foreachBatch(...)"
_KEPT: Final = "a stream has no rows to store; cache a micro-batch in foreachBatch"
_VIEW: Final = (
    "a view of it could not be queried, because only the running query sees its rows: use the frame "
    "itself (select, selectExpr, where, join, ...), or create the view in foreachBatch"
)
_PLAIN: Final = (
    "it is not available on the output of a stateful operator: apply it to each micro-batch in "
    ".writeStream.foreachBatch(lambda frame, batch_id: ...)"
)

REFUSED: Final[Mapping[str, str]] = {
    name: reason
    for reason, names in {
        _STATE: (
            "agg cube distinct dropDuplicates dropDuplicatesWithinWatermark drop_duplicates "
            "groupingSets limit rollup"
        ),
        _WATERMARK: "withWatermark",
        _WHOLE: (
            "approxQuantile corr cov crosstab describe exceptAll freqItems intersect intersectAll "
            "nearestByJoin offset orderBy randomSplit sample sampleBy sort "
            "sortWithinPartitions stat subtract summary transpose zip zipWithIndex"
        ),
        _UNION: "union unionAll unionByName",
        _SUBQUERY: "exists scalar",
        _ACTION: (
            "__arrow_c_stream__ collect count executionInfo first foreach foreachPartition head inputFiles isEmpty "
            "pandas_api plot rdd show tail take toArrow toJSON toLocalIterator toPandas to_koalas "
            "to_pandas_on_spark"
        ),
        _WRITE: "mergeInto write writeTo",
        _KEPT: "cache checkpoint localCheckpoint persist storageLevel unpersist",
        _VIEW: (
            "asTable createGlobalTempView createOrReplaceGlobalTempView createOrReplaceTempView "
            "createTempView registerTempTable"
        ),
        _PLAIN: "isLocal lateralJoin sameSemantics semanticHash sql_ctx",
    }.items()
    for name in names.split()
}
"""Methods that cannot work, with the reason and what to do."""


class GroupedStatefulStream(GroupedData):
    """A grouped `StatefulStream`, for another `transform_with_state` in the same query."""

    def __init__(
        self,
        stream: DataFrame,
        operators: Sequence[OperatorDefinition],
        plan: RecordedPlan,
        shape: GroupedData,
    ) -> None:
        self._df = stream
        self.session = stream.sparkSession
        self.operators = tuple(operators)
        self.plan = plan
        self.shape = shape

    def transformWithState(self, *args: object, **kwargs: object) -> DataFrame:
        """See Spark's method; requires a session in which `statelog.spark.enable` was called."""
        return self._of_session("transformWithState")(self, *args, **kwargs)

    def transformWithStateInPandas(self, *args: object, **kwargs: object) -> DataFrame:
        """See `transformWithState`."""
        return self._of_session("transformWithStateInPandas")(self, *args, **kwargs)

    def _of_session(self, name: str) -> Callable[..., DataFrame]:
        # Of the session's own kind, classic or Spark Connect.
        return getattr(type(self.shape), name, None) or _not_grouped

    # What every method of Spark's own uses, in a classic session and on Spark Connect.
    _jgd = property(lambda self: _not_grouped())
    _grouping_cols = property(lambda self: _not_grouped())

    def __repr__(self) -> str:
        return f"GroupedStatefulStream[{', '.join(self.plan.shape.columns)}]"


def _not_grouped(*args: object, **kwargs: object) -> NoReturn:
    raise UsageError(
        "the rows of a statelog operator cannot be grouped for a Spark operator: "
        "that operator would need Spark's own state. Call "
        "statelog.spark.transform_with_state with the grouped stream (or transformWithState, in "
        "a session with statelog.spark.enable), or aggregate before the first operator, or in a "
        "second query over the output of this query"
    )


class StatefulStream(DataFrame):
    """The output of the last stateful operator in a query, and the steps applied to it."""

    _operators: tuple[OperatorDefinition, ...]
    _plan: RecordedPlan

    def __new__(cls, *args: object, **kwargs: object) -> StatefulStream:
        # DataFrame's own method would make a classic frame of the arguments.
        return object.__new__(cls)

    def __init__(self, operators: Sequence[OperatorDefinition], plan: RecordedPlan) -> None:
        self._operators = tuple(operators)
        self._plan = plan
        self.is_cached = False

    @property
    def sparkSession(self) -> SparkSession:
        """The session of the input."""
        return self._operators[0].frame.sparkSession

    @property
    def isStreaming(self) -> bool:
        """True."""
        return True

    @property
    def na(self) -> DataFrameNaFunctions:
        """Functions that handle missing values."""
        return DataFrameNaFunctions(self)

    @property
    def writeStream(self) -> StatefulStreamWriter:
        """A writer with the same methods as Spark's."""
        return StatefulStreamWriter(self._operators, self._plan)

    def groupBy(self, *cols: Any) -> GroupedData:
        """Group the rows, like Spark's `groupBy`, for another stateful operator in the query."""
        shape = self._plan.shape.groupBy(*cols)
        return GroupedStatefulStream(self, self._operators, self._plan, shape)

    groupby = groupBy

    def observe(self, observation: str, *exprs: Column) -> StatefulStream:  # type: ignore[override]
        """
        Compute metrics of each micro-batch, which appear as `observedMetrics` in the progress.

        Args:
            observation: The name of the metrics; not an `Observation`, which has one action's
                values.
            exprs: Aggregations with an alias, as for Spark's `observe`.
        """
        if not isinstance(observation, str):
            raise UsageError(
                "observe on a stream requires a name, as in Spark: its values are in "
                "query.lastProgress.observedMetrics[name], for each micro-batch; an Observation stores "
                "the values of one action"
            )
        plan = self._plan.then(OBSERVE, (observation, *exprs), {})
        return type(self)(self._operators, plan)

    def transform(self, func: Callable[..., DataFrame], *args: Any, **kwargs: Any) -> DataFrame:
        """Return `func(self, ...)`."""
        result = func(self, *args, **kwargs)
        if not isinstance(result, DataFrame):
            raise UsageError(
                f"transform requires a function that returns a frame, not {type(result).__name__}"
            )
        return result

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, Column):
            return self.filter(item)
        if isinstance(item, list | tuple):
            return self.select(*item)
        return self._plan.shape[item]

    def __getattr__(self, name: str) -> Any:
        # Also called for internals of a DataFrame, such as the JVM's frame.
        if name == FRAME:
            raise UsageError(
                "the output of a stateful operator cannot be passed to a function, or to a method of a "
                "different frame: call its own method, as in stateful.join(batch, ...)"
            )
        if name.startswith("_"):
            raise AttributeError(name)
        return self._plan.shape.__getattr__(name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *filter(str.isidentifier, self.columns)})

    def _ipython_key_completions_(self) -> list[str]:
        return self.columns

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {kind}" for name, kind in self.dtypes)
        return f"StatefulStream[{columns}]"

    def _repr_html_(self) -> str:
        return "".join(map(_operator_as_html, self._operators))


def _operator_as_html(operator: OperatorDefinition) -> str:
    schema = operator.schema
    states = {
        state.name: f"{state.kind_text} ({', '.join(map(_column, state.value_schema))})"
        for state in schema.states
    }
    facts = {
        "processor": type(operator.processor).__name__,
        "key": ", ".join(map(_column, schema.key_schema)),
        **{f"state {name}": text for name, text in states.items()},
        "time mode": operator.time_mode,
        "key groups": operator.max_parallelism,
        "output": ", ".join(map(_column, operator.arrow_output)),
        "state location": redacted(
            str(operator.arguments.get("stateLocation") or "in the checkpointLocation of the query")
        ),
    }
    return facts_as_html(f"stateful operator {schema.operator_id}", facts)


def _column(field: pa.Field) -> str:
    return f"{field.name} {field.type}"


def _recorded(name: str) -> Callable[..., StatefulStream]:
    def method(self: StatefulStream, *args: object, **kwargs: object) -> StatefulStream:
        return type(self)(self._operators, self._plan.then(name, args, kwargs))

    return method


def _shown(name: str) -> object:
    if isinstance(getattr(DataFrame, name), property):
        return property(lambda self: getattr(self._plan.shape, name))
    return lambda self, *args, **kwargs: getattr(self._plan.shape, name)(*args, **kwargs)


def _refused(name: str, reason: str) -> object:
    def refuse(self: StatefulStream, *args: object, **kwargs: object) -> NoReturn:
        raise UsageError(f"{name} cannot follow a stateful operator: {reason}")

    return property(refuse) if isinstance(getattr(DataFrame, name), property) else refuse


def _define(name: str, method: object, text: str = "") -> None:
    if isinstance(method, FunctionType):
        method.__name__ = name
        method.__qualname__ = f"StatefulStream.{name}"
        method.__doc__ = text or f"See Spark's `DataFrame.{name}`."
    setattr(StatefulStream, name, method)


for _name in offered(DataFrame, RECORDED):
    _define(_name, _recorded(_name))
for _name in offered(DataFrame, SHOWN):
    _define(_name, _shown(_name))
for _name in offered(DataFrame, REFUSED):
    _reason = REFUSED[_name]
    _define(_name, _refused(_name, _reason), f"Not after a stateful operator: {_reason}.")
