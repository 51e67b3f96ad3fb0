"""
A job whose session cannot begin shuffles in another thread for some seconds.

Spark hands `submitShuffleJob` to a pool.  Here it has one thread, which sleeps, as on a driver that has too few
cores for its threads.
"""

import sys
import time
from pathlib import Path

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, GroupedData, SparkSession
from tests.support.spark.processors import INPUT, TOTALS, Totals
from tests.support.spark.streams import run_to_end

from statelog.spark import aggregate, transform_with_state
from statelog.spark import functions as F

SLEEP_S = 3


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
    pool = getattr(getattr(exchange, "ShuffleExchangeExec$"), "MODULE$").executionContext()
    pool.execute(Sleep())


def newest_totals(spark: SparkSession, frame: DataFrame, checkpoint: Path) -> dict[int, int]:
    """Run a query to the end of its input, and return the newest total of each key."""
    sleeping_pool(spark)
    batches = run_to_end(frame, checkpoint, "update")
    return {row.key: row.total for rows in batches for row in rows}


def grouped(spark: SparkSession, data: Path) -> GroupedData:
    return spark.readStream.schema(INPUT).parquet(str(data)).groupBy("key")


def main() -> None:
    """Run both kinds of queries, and compare their totals with the input's."""
    folder = Path(sys.argv[1])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffleExchange.maxThreadThreshold", "1").getOrCreate()
    data = spark.range(100).selectExpr("id % 7 AS key", "id AS amount")
    data.repartition(2).write.parquet(str(folder / "in"))
    sums = data.groupBy("key").agg({"amount": "sum"}).toDF("key", "total").collect()
    expected = {row.key: row.total for row in sums}
    by_rows = transform_with_state(
        grouped(spark, folder / "in"),
        Totals(),
        TOTALS,
        "Update",
        "None",
        tasks=2,
        delivery="direct",
    )
    assert newest_totals(spark, by_rows, folder / "rows") == expected
    by_sums = aggregate(grouped(spark, folder / "in"), F.sum("amount").alias("total"), tasks=2)
    assert newest_totals(spark, by_sums, folder / "sums") == expected
    time.sleep(SLEEP_S)  # the pool ends its call into this process
    spark.stop()
    print("the totals are right")


if __name__ == "__main__":
    main()
