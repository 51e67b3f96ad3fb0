"""
Running aggregates by key and window: `aggregate(df.groupBy(...), count().alias("n"), ...)`.

Driver: `api` checks the call, `planning` makes of it what flows, what Spark computes of each
micro-batch, the state and the output.  Each micro-batch: `jvm/one_shuffle` aggregates it in the JVM and
sends the partial results to the tasks.  Task: `processor` combines them with the state, by the
`kind` of each aggregate: `sums`, `extremes`.
"""

from statelog.extensions.columns.aggregation.api import aggregate
from statelog.extensions.columns.aggregation.functions import (
    Aggregate,
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

__all__ = [
    "Aggregate",
    "aggregate",
    "approx_count_distinct",
    "count",
    "first",
    "last",
    "latest_row",
    "max_",
    "mean",
    "min_",
    "sum_",
    "top_k",
    "variance",
]
