"""
Keyed tables: `df.writeStream.format("statelog_table")` and `df.write.format("statelog_table")`.

    options   the options of a write, and the table's columns
    parts     what a task writes: its rows with their key groups
    commit    the rows of all tasks as changes, one for each key, in one checkpoint, exactly once
    writers   the classes that Spark calls

A table is the state of one operator with one value variable, so everything that reads state reads it.
"""

from statelog.spark.table.writers import stream_writer, table_writer

__all__ = ["stream_writer", "table_writer"]
