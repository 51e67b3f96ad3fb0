"""
The data source `spark.read.format("statelog")`: state and checkpoints as rows.

    options      the options of a read, checked
    source       which checkpoint and which columns a read has, chosen once
    readers      the parts of a read, in tasks; the key groups that the filters of a query leave
    columns      flat columns of state as Spark's structs

Spark finds it by the package `pyspark_statelog`.  docs/how-to/read-state-on-spark.md has examples.
"""

from statelog.spark.source.options import SourceOptions
from statelog.spark.source.source import StateSource

__all__ = ["SourceOptions", "StateSource"]
