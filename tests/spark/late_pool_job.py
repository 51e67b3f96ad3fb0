"""
A job whose session cannot begin shuffles in another thread for some seconds.

Spark hands `submitShuffleJob` to a pool.  Here it has one thread, which sleeps, as on a driver that has too few
cores for its threads.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from statelog.spark import aggregate, transform_with_state
from statelog.spark import functions as F

SLEEP_S = 3
OUTPUT = "key long, total long"


class Total(StatefulProcessor):
    """The sum of the values of a key."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total = (self._total.get() or (0,))[0]
        for row in rows:
            total += row.value
        self._total.update((total,))
        yield Row(key=key[0], total=total)


class Sleep:
    """A task of Java that sleeps in Python."""

    def run(self) -> None:
        time.sleep(SLEEP_S)

    class Java:
        """The interface, for Py4J."""

        implements = ("java.lang.Runnable",)


def sleeping_pool(spark: SparkSession) -> None:
    """Let the only thread of Spark's pool for shuffles sleep."""
    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    exchange = gateway.jvm.org.apache.spark.sql.execution.exchange
    getattr(getattr(exchange, "ShuffleExchangeExec$"), "MODULE$").executionContext().execute(
        Sleep()
    )


def run(spark: SparkSession, frame: DataFrame, place: Path) -> dict[int, int]:
    """Run a query to the end of its input, and return the newest total of each key."""
    totals: dict[int, int] = {}

    def collect(rows: DataFrame, batch_id: int) -> None:
        totals.update({row.key: row.total for row in rows.collect()})

    sleeping_pool(spark)
    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(place))
    query = writer.outputMode("update").trigger(availableNow=True).start()
    query.awaitTermination()
    return totals


def grouped(spark: SparkSession, data: Path) -> GroupedData:
    return spark.readStream.schema("key long, value long").parquet(str(data)).groupBy("key")


def main() -> None:
    """Run both kinds of queries, and compare their totals with the input's."""
    place = Path(sys.argv[1])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffleExchange.maxThreadThreshold", "1").getOrCreate()
    data = spark.range(100).selectExpr("id % 7 AS key", "id AS value")
    data.repartition(2).write.parquet(str(place / "in"))
    expected = {
        row.key: row.total
        for row in data.groupBy("key").agg({"value": "sum"}).toDF("key", "total").collect()
    }
    by_rows = transform_with_state(
        grouped(spark, place / "in"), Total(), OUTPUT, "Update", "None", tasks=2, delivery="direct"
    )
    assert run(spark, by_rows, place / "rows") == expected
    by_sums = aggregate(grouped(spark, place / "in"), F.sum("value").alias("total"), tasks=2)
    assert run(spark, by_sums, place / "sums") == expected
    time.sleep(SLEEP_S)  # the pool ends its call into this process
    spark.stop()
    print("the totals are right")


if __name__ == "__main__":
    main()
