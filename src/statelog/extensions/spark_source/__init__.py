"""
The data source `spark.read.format("statelog")`: state and checkpoints as rows.

    options      the options of a read, checked
    source       which checkpoint and which columns a read has, chosen once
    readers      the location, and the parts of a read, in tasks; the key groups that filters leave
    changes      the view "changes", of a batch and of a stream
    columns      flat columns of state as Spark's structs

Spark finds it by the package `pyspark_statelog`.  docs/how-to/read-state-on-spark.md has examples.
"""

from typing import TYPE_CHECKING

from statelog.first_use import names_on_first_use

if TYPE_CHECKING:
    from statelog.extensions.spark_source.options import SourceOptions
    from statelog.extensions.spark_source.source import StateSource
else:
    # Spark 3.5 does not have data sources in Python, which `source` imports; `columns` is used there too.
    __getattr__ = names_on_first_use(
        __name__,
        {
            "statelog.extensions.spark_source.options": "SourceOptions",
            "statelog.extensions.spark_source.source": "StateSource",
        },
    )

__all__ = ["SourceOptions", "StateSource"]
