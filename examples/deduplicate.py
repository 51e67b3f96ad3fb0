"""
Deduplicate payments that senders may repeat for up to a day.

State is one flag for each id, which expires after a day.
Run: python examples/deduplicate.py INPUT OUTPUT CHECKPOINT  (INPUT: JSON lines of id, account, amount)
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

from statelog.spark import transform_with_state

PAYMENTS = "id string, account string, amount double"
DAY_MS = 24 * 60 * 60 * 1000


class FirstOfEachId(StatefulProcessor):
    def init(self, handle):
        self.seen = handle.getValueState("seen", "seen boolean", ttlDurationMs=DAY_MS)

    def handleInputRows(self, key, rows, timerValues):
        if not self.seen.exists():
            self.seen.update((True,))
            yield next(rows)


def main(source, output, checkpoint):
    spark = SparkSession.builder.appName("deduplicate").getOrCreate()
    payments = spark.readStream.schema(PAYMENTS).json(source)
    once = transform_with_state(
        payments.groupBy("id"), FirstOfEachId(), PAYMENTS, "Append", "ProcessingTime"
    )
    # A batch that is delivered again overwrites its folder: exactly once, also after a crash.
    query = once.writeStream.option("checkpointLocation", checkpoint).foreachBatch(
        lambda rows, batch: rows.write.mode("overwrite").parquet(f"{output}/batch={batch}")
    )
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
