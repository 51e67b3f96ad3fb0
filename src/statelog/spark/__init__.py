"""statelog on Spark: stateful streaming whose state lives in the changelog.  Needs PySpark."""

from statelog.core.materialization_policy import MaterializationPolicy
from statelog.spark.operator import StatefulStream, StatefulStreamWriter, transform_with_state
from statelog.spark.progress import BatchProgress
from statelog.state.aggregates import AggregateFunction

__all__ = [
    "AggregateFunction",
    "BatchProgress",
    "MaterializationPolicy",
    "StatefulStream",
    "StatefulStreamWriter",
    "transform_with_state",
]
