"""statelog on Spark: stateful streaming whose state lives in the changelog.  Needs PySpark."""

from statelog.core.materialization_policy import MaterializationPolicy
from statelog.spark.enable import disable, enable
from statelog.spark.frame import StatefulStream
from statelog.spark.migration import from_spark, spark_state
from statelog.spark.operator import (
    OperatorSettings,
    transform_with_state,
    transform_with_state_in_pandas,
)
from statelog.spark.progress import BatchProgress
from statelog.spark.writer import StatefulStreamWriter
from statelog.state.aggregates import AggregateFunction

__all__ = [
    "AggregateFunction",
    "BatchProgress",
    "MaterializationPolicy",
    "OperatorSettings",
    "StatefulStream",
    "StatefulStreamWriter",
    "disable",
    "enable",
    "from_spark",
    "spark_state",
    "transform_with_state",
    "transform_with_state_in_pandas",
]
