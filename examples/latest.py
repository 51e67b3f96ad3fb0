"""
Keep a table with the newest version of each customer.

Changes arrive late and out of order.  State holds the newest version, and the table gets upserts.
Run: python examples/latest.py INPUT TABLE.db CHECKPOINT  (INPUT: JSON lines of id, version, name)
"""

import sqlite3
import sys
from contextlib import closing
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

from statelog.spark import transform_with_state

CHANGES = "id long, version long, name string"


class Latest(StatefulProcessor):
    def init(self, handle):
        self.version = handle.getValueState("version", "version long")

    def handleInputRows(self, key, rows, timerValues):
        known = self.version.get()
        newest = max(rows, key=lambda row: row.version)
        if known is None or newest.version > known[0]:
            self.version.update((newest.version,))
            yield newest


def upsert(path, changes, batch):
    """Write one row per customer; writing a batch again changes nothing."""
    with closing(sqlite3.connect(path)) as table, table:
        table.execute("CREATE TABLE IF NOT EXISTS customers (id PRIMARY KEY, version, name)")
        table.executemany(
            "INSERT OR REPLACE INTO customers VALUES (?, ?, ?)", map(tuple, changes.collect())
        )


def main(source, output, checkpoint):
    spark = SparkSession.builder.appName("latest").getOrCreate()
    changes = spark.readStream.schema(CHANGES).json(source)
    latest = transform_with_state(changes.groupBy("id"), Latest(), CHANGES)
    query = latest.writeStream.option("checkpointLocation", checkpoint).foreachBatch(
        partial(upsert, output)
    )
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
