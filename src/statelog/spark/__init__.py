"""Stateful streaming on Spark with its state in the changelog; needs PySpark."""

from statelog.core.materialization_policy import MaterializationPolicy
from statelog.spark.api import transform_with_state, transform_with_state_in_pandas
from statelog.spark.enable import disable, enable
from statelog.spark.from_spark import from_spark, spark_state
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.settings import OperatorSettings
from statelog.spark.stream.stateful_stream import StatefulStream
from statelog.spark.stream.writer import StatefulStreamWriter
from statelog.state.objects.aggregates import AggregateFunction

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
