"""statelog on Spark: stateful streaming whose state lives in the changelog.  Needs PySpark."""

from statelog.core.materialization_policy import MaterializationPolicy
from statelog.spark.migration import from_spark, spark_state
from statelog.spark.operator import (
    StatefulStream,
    StatefulStreamWriter,
    transform_with_state,
    transform_with_state_in_pandas,
)
from statelog.spark.progress import BatchProgress

__all__ = [
    "BatchProgress",
    "MaterializationPolicy",
    "StatefulStream",
    "StatefulStreamWriter",
    "from_spark",
    "spark_state",
    "transform_with_state",
    "transform_with_state_in_pandas",
]
