"""statelog on Spark: stateful streaming whose state lives in the changelog.  Needs PySpark."""

from statelog.core.materialization_policy import MaterializationPolicy
from statelog.spark.enable import disable, enable
from statelog.spark.frame import StatefulStream
from statelog.spark.operator import (
    OperatorSettings,
    transform_with_state,
    transform_with_state_in_pandas,
)
from statelog.spark.progress import BatchProgress
from statelog.spark.writer import StatefulStreamWriter

__all__ = [
    "BatchProgress",
    "MaterializationPolicy",
    "OperatorSettings",
    "StatefulStream",
    "StatefulStreamWriter",
    "disable",
    "enable",
    "transform_with_state",
    "transform_with_state_in_pandas",
]
