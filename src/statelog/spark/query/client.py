"""What `transform_with_state` asks of a session, classic or of Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        apply: Returns the function that applies recorded steps to the rows of a micro-batch, where the
            engine runs.
        stream: Returns the output of a stream's last operator.
    """

    prepare: Callable[[SparkSession, QuerySettings, Mapping[str, object]], None]
    grouping: Callable[[Any], Grouping]
    input_plan: Callable[[DataFrame], InputPlan]
    apply: Callable[[Any], Callable[[DataFrame], DataFrame]]
    stream: Callable[[Sequence[OperatorDefinition], StructType], DataFrame]
