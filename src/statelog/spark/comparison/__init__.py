"""
What-if: a changed processor over the rows that a running query has read, next to the query.

    run         the micro-batches of the running query, one by one, in a fork; how their output rows differ
    result      what differed: output rows by micro-batch, state by key

docs/how-to/change-a-job.md walks through it.
"""

from statelog.spark.comparison.result import BatchOutcome, WhatIf
from statelog.spark.comparison.run import what_if

__all__ = ["BatchOutcome", "WhatIf", "what_if"]
