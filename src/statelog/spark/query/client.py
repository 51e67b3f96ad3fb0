"""What `transform_with_state` asks of a session, classic or of Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statelog.spark.query.input_plan import InputPlan
from statelog.spark.query.keyed_frame import Grouping
from statelog.spark.query.operator_definition import OperatorDefinition
from statelog.spark.query.settings import QuerySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """
    The functions that differ between the two kinds of sessions.

    Args:
        prepare: Prepares the session, and rejects settings that cannot work on it; called with the
            session, the settings and the arguments in the code.
        grouping: Returns the keys of what `df.groupBy(...)` returned.
        input_plan: Returns the facts from the plan of a frame.
        stream: Returns the output of an operator over a stream.
    """

    prepare: Callable[[SparkSession, QuerySettings, Mapping[str, object]], None]
    grouping: Callable[[Any], Grouping]
    input_plan: Callable[[DataFrame], InputPlan]
    stream: Callable[[OperatorDefinition, StructType], DataFrame]
