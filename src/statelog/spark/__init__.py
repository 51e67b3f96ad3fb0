"""Stateful streaming on Spark with its state in the changelog; needs PySpark."""

import warnings
from typing import TYPE_CHECKING

from statelog.extras import require_spark

require_spark("statelog.spark")

from statelog.options import SnapshotPolicy
from statelog.spark.aggregate import (
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
from statelog.spark.api import transform_with_state, transform_with_state_in_pandas
from statelog.spark.enable import disable, enable
from statelog.spark.migration import (
    from_spark,
    spark_checkpoint,
    spark_state,
    to_spark,
    with_initial_state,
)
from statelog.spark.operations import WrittenState, edit_state, write_state
from statelog.spark.query.columnar_processor import ColumnarHandle, ColumnarProcessor
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.settings import OperatorSettings
from statelog.spark.stream.sinks import idempotent, writer_id
from statelog.spark.stream.stateful_stream import StatefulStream
from statelog.spark.stream.writer import StatefulStreamWriter
from statelog.spark.testing.replay import Difference, ReplayedStep, replay
from statelog.spark.what_if import BatchOutcome, WhatIf, what_if
from statelog.state.objects.aggregates import AggregateFunction
from statelog.state.slots import ColumnState, ColumnTimers, Keys

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "BatchOutcome",
    "BatchProgress",
    "ColumnState",
    "ColumnTimers",
    "ColumnarHandle",
    "ColumnarProcessor",
    "Difference",
    "Keys",
    "OperatorSettings",
    "ReplayedStep",
    "SnapshotPolicy",
    "StatefulStream",
    "StatefulStreamWriter",
    "WhatIf",
    "WrittenState",
    "aggregate",
    "approx_count_distinct",
    "count",
    "disable",
    "edit_state",
    "enable",
    "first",
    "from_spark",
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
    "to_spark",
    "top_k",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "variance",
    "what_if",
    "with_initial_state",
    "write_state",
    "writer_id",
]

if TYPE_CHECKING:
    MaterializationPolicy = SnapshotPolicy
else:

    def __getattr__(name: str) -> type[SnapshotPolicy]:
        """Return a public class by its former name, with a warning."""
        if name == "MaterializationPolicy":
            warnings.warn(
                "statelog.spark.MaterializationPolicy is now statelog.spark.SnapshotPolicy",
                DeprecationWarning,
                stacklevel=2,
            )
            return SnapshotPolicy
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
