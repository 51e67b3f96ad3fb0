"""What `transform_with_state` asks of a session of Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.column import Column
from pyspark.sql.connect.expressions import ColumnReference
from pyspark.sql.connect.group import GroupedData
from pyspark.sql.types import StructType

from statelog.spark.connect.explained_plan import input_plan
from statelog.spark.connect.recorded_steps import ConnectPlan
from statelog.spark.connect.writer import ConnectStream, refuse_callbacks, refuse_direct
from statelog.spark.query.keyed_frame import Grouping, not_plain
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.query.session import Client
from statelog.spark.query.settings import QuerySettings

_PLAIN: Final = "groupby"


def _grouping_of(grouped: GroupedData) -> Grouping:
    columns = grouped._grouping_cols
    if grouped._group_type != _PLAIN or not columns:
        raise not_plain(repr(grouped))
    return Grouping(grouped._df, columns, [_input_name(column) for column in columns])


def _input_name(column: object) -> str | None:
    """Return the name of the bare input column that a grouping column is; else None."""
    expression = column._expr if isinstance(column, Column) else None
    if not isinstance(expression, ColumnReference):
        return None
    name: str = expression._unparsed_identifier
    return name[1:-1].replace("``", "`") if name[:1] == name[-1:] == "`" else name


def _prepare(
    session: SparkSession, settings: QuerySettings, arguments: Mapping[str, object]
) -> None:
    refuse_callbacks(arguments)
    refuse_direct(settings)


def _apply(steps: ConnectPlan) -> Callable[..., DataFrame]:
    return steps.for_worker().apply


def _stream(operators: Sequence[OperatorDefinition], output: StructType) -> DataFrame:
    session = operators[0].frame.sparkSession
    return ConnectStream(operators, ConnectPlan.of(session, output))


CONNECT: Final = Client(
    prepare=_prepare, grouping=_grouping_of, input_plan=input_plan, apply=_apply, stream=_stream
)
"""The functions for a session of Spark Connect."""
