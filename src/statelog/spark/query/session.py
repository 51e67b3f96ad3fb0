"""Provide the functions that depend on the kind of session, classic or Spark Connect."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.types import StructType

from statelog.arguments import given
from statelog.errors import UsageError
from statelog.spark.jvm.gateway import is_connect
from statelog.spark.query.input_plan import InputPlan
from statelog.spark.query.keyed_frame import Grouping
from statelog.spark.query.progress import Observers
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.query.settings import QuerySettings
from statelog.spark.rows.spark_versions import parsed_ddl


def refuse_connect(entry: str, session: object) -> None:
    """Reject a Spark Connect session for a function that needs the driver's JVM."""
    if is_connect(session):
        raise UsageError(
            f"{entry} is not supported on Spark Connect: it needs the driver's JVM. Call it in a "
            "classic session, such as one from SparkSession.builder.master(...) without a remote "
            "address"
        )


def session_of(grouped: object) -> SparkSession:
    """Return the session of a grouped frame, classic or Spark Connect."""
    kind = type(grouped)
    is_grouped = isinstance(grouped, GroupedData) or (
        is_connect(grouped) and kind.__name__ == GroupedData.__name__
    )
    if not is_grouped:
        raise UsageError(
            'transform_with_state takes a grouped frame, such as events.groupBy("customer"), not '
            f"{kind.__module__}.{kind.__name__}"
        )
    frame: DataFrame = grouped._df  # type: ignore[attr-defined]
    return frame.sparkSession


def use_this_python(session: SparkSession) -> None:
    """Make local workers use the driver's interpreter, unless PYSPARK_PYTHON is set."""
    context = session.sparkContext
    is_chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python")
    if not is_chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def parse_schema(session: SparkSession, schema: StructType | str) -> StructType:
    """Return a schema with named columns; accepts DDL text as well."""
    if isinstance(schema, StructType):
        return schema
    parsed = parsed_ddl(session, schema) if isinstance(schema, str) else None
    if not isinstance(parsed, StructType):
        raise UsageError(f"expected a schema of named columns, not {given(schema)}")
    return parsed


def output_schema(session: SparkSession, schema: StructType | str) -> StructType:
    """Return the output schema; errors from Spark's parser name the argument."""
    try:
        return parse_schema(session, schema)
    except PySparkException as error:
        problem = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"outputStructType {schema!r:.200} is not a schema: {problem}. Write names and types, such as "
            '"customer string, total double"'
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """
    The functions that are different for the two kinds of sessions.

    Args:
        prepare: Prepares the session, and rejects settings and observers that cannot work on it.
        grouping: Returns the keys of what `df.groupBy(...)` returned.
        input_plan: Returns the facts from the plan of a frame.
        apply: Returns the function that applies recorded steps to the rows of a micro-batch, where
            the engine runs.
        stream: Returns the output of a stream's last operator.
    """

    prepare: Callable[[SparkSession, QuerySettings, Observers], None]
    grouping: Callable[[Any], Grouping]
    input_plan: Callable[[DataFrame], InputPlan]
    apply: Callable[[Any], Callable[[DataFrame], DataFrame]]
    stream: Callable[[Sequence[OperatorDefinition], StructType], DataFrame]
