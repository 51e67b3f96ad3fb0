"""
Stateful streaming on Spark with its state in the changelog; needs PySpark.

A name is imported from its module at its first use: a worker of Spark runs tasks, and needs a part of this only.
"""

from typing import TYPE_CHECKING

from statelog.extras import require_spark
from statelog.first_use import names_on_first_use

require_spark("statelog.spark")

if TYPE_CHECKING:
    from statelog.core.delivered_batch import DeliveredBatch
    from statelog.extensions.columns.aggregation import (
        Aggregate,
        aggregate,
        approx_count_distinct,
        count,
        first,
        last,
        latest_row,
        max_,
        mean,
        min_,
        sum_,
        top_k,
        variance,
    )
    from statelog.extensions.columns.processor import ColumnarHandle, ColumnarProcessor
    from statelog.extensions.columns.slots import ColumnState, ColumnTimers, Keys
    from statelog.extensions.migration import (
        spark_checkpoint,
        spark_state,
        to_spark,
        with_initial_state,
    )
    from statelog.extensions.operations.what_if import BatchOutcome, WhatIf, what_if
    from statelog.extensions.sinks.database import DatabaseSink
    from statelog.extensions.sinks.iceberg import IcebergSink
    from statelog.extensions.sinks.kafka import KafkaSink
    from statelog.extensions.testing.replay import Difference, ReplayedStep, replay
    from statelog.options import SnapshotPolicy
    from statelog.spark.api import transform_with_state, transform_with_state_in_pandas
    from statelog.spark.enabling import disable, enable
    from statelog.spark.query.broadcast import Broadcast, BroadcastTable
    from statelog.spark.query.progress import BatchProgress
    from statelog.spark.query.settings import OperatorSettings
    from statelog.spark.query.side_output import SideOutput
    from statelog.spark.query.tagged_union import tagged_union
    from statelog.spark.rows.spark_versions import (
        ExpiredTimerInfo,
        ListState,
        MapState,
        StatefulProcessor,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )
    from statelog.spark.stream.sinks import (
        ExactlyOnceSink,
        SinkBatch,
        exactly_once,
        idempotent,
        writer_id,
    )
    from statelog.spark.stream.stateful_stream import StatefulStream
    from statelog.spark.stream.writer import StatefulStreamWriter
    from statelog.state.objects import AggregateFunction

else:
    __getattr__ = names_on_first_use(
        __name__,
        {
            "statelog.core.delivered_batch": "DeliveredBatch",
            "statelog.options": "SnapshotPolicy",
            "statelog.extensions.columns.aggregation": "Aggregate aggregate approx_count_distinct count first last latest_row max_ mean min_ sum_ top_k variance",
            "statelog.spark.api": "transform_with_state transform_with_state_in_pandas",
            "statelog.spark.enabling": "disable enable",
            "statelog.extensions.migration": "spark_checkpoint spark_state to_spark with_initial_state",
            "statelog.spark.query.broadcast": "Broadcast BroadcastTable",
            "statelog.extensions.columns.processor": "ColumnarHandle ColumnarProcessor",
            "statelog.spark.query.progress": "BatchProgress",
            "statelog.spark.query.settings": "OperatorSettings",
            "statelog.spark.query.side_output": "SideOutput",
            "statelog.spark.rows.spark_versions": "ExpiredTimerInfo ListState MapState StatefulProcessor StatefulProcessorHandle TimerValues ValueState",
            "statelog.spark.query.tagged_union": "tagged_union",
            "statelog.spark.stream.sinks": "ExactlyOnceSink SinkBatch exactly_once idempotent writer_id",
            "statelog.extensions.sinks.database": "DatabaseSink",
            "statelog.extensions.sinks.iceberg": "IcebergSink",
            "statelog.extensions.sinks.kafka": "KafkaSink",
            "statelog.spark.stream.stateful_stream": "StatefulStream",
            "statelog.spark.stream.writer": "StatefulStreamWriter",
            "statelog.extensions.testing.replay": "Difference ReplayedStep replay",
            "statelog.extensions.operations.what_if": "BatchOutcome WhatIf what_if",
            "statelog.state.objects": "AggregateFunction",
            "statelog.extensions.columns.slots": "ColumnState ColumnTimers Keys",
        },
    )


__all__ = [
    "Aggregate",
    "AggregateFunction",
    "BatchOutcome",
    "BatchProgress",
    "Broadcast",
    "BroadcastTable",
    "ColumnState",
    "ColumnTimers",
    "ColumnarHandle",
    "ColumnarProcessor",
    "DatabaseSink",
    "DeliveredBatch",
    "Difference",
    "ExactlyOnceSink",
    "ExpiredTimerInfo",
    "IcebergSink",
    "KafkaSink",
    "Keys",
    "ListState",
    "MapState",
    "OperatorSettings",
    "ReplayedStep",
    "SideOutput",
    "SinkBatch",
    "SnapshotPolicy",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "StatefulStream",
    "StatefulStreamWriter",
    "TimerValues",
    "ValueState",
    "WhatIf",
    "aggregate",
    "approx_count_distinct",
    "count",
    "disable",
    "enable",
    "exactly_once",
    "first",
    "idempotent",
    "last",
    "latest_row",
    "max_",
    "mean",
    "min_",
    "replay",
    "spark_checkpoint",
    "spark_state",
    "sum_",
    "tagged_union",
    "to_spark",
    "top_k",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "variance",
    "what_if",
    "with_initial_state",
    "writer_id",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, "__all__", "__doc__", "__name__"])
