"""
The data source `spark.read.format("statelog")`: state and checkpoints as rows.

    options      the options of a read, checked
    source       which checkpoint and which columns a read has, chosen once
    readers      the location, and the parts of a read, in tasks: columns as Spark's structs, filters
    changes      the view "changes", of a batch and of a stream

Spark finds it by the package `pyspark_statelog`.  docs/how-to/read-state-on-spark.md has examples.
"""

from statelog.first_use import public_names

# Spark 3.5 does not have data sources in Python, which `source` imports.
__getattr__, __dir__, __all__ = public_names(__name__)
