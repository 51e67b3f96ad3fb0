"""
Aggregates for `statelog.spark.aggregate`, with the names in `pyspark.sql.functions`.

    from statelog.spark import functions as F

    aggregate(events.groupBy("customer"), F.count().alias("n"), F.sum("value").alias("value"))
"""

from statelog.extensions.columns.aggregation.functions import (
    approx_count_distinct,
    count,
    first,
    last,
    latest_row,
    mean,
    top_k,
    variance,
)
from statelog.extensions.columns.aggregation.functions import max_ as max
from statelog.extensions.columns.aggregation.functions import min_ as min
from statelog.extensions.columns.aggregation.functions import sum_ as sum

__all__ = [
    "approx_count_distinct",
    "count",
    "first",
    "last",
    "latest_row",
    "max",
    "mean",
    "min",
    "sum",
    "top_k",
    "variance",
]
