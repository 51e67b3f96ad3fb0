"""
Detect fraud with timers: a tiny payment before a large one.

Run: python examples/fraud.py INPUT OUTPUT CHECKPOINT  (INPUT: JSON lines of account, at, amount)
"""

import sys

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from statelog.spark import transform_with_state

PAYMENTS = "account string, at timestamp, amount double"
ALERTS = "account string, at timestamp, amount double"
TINY, LARGE, MINUTE_MS = 1.0, 500.0, 60_000


class FraudRule(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.armed = handle.getValueState("armed", "until long")

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda row: row.at):
            at = int(row.at.timestamp() * 1000)
            armed = self.armed.get()
            if armed is not None and row.amount > LARGE and at <= armed[0]:
                yield Row(account=key[0], at=row.at, amount=row.amount)
            self.disarm()
            if row.amount < TINY:
                self.armed.update((at + MINUTE_MS,))
                self.handle.registerTimer(at + MINUTE_MS)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        self.armed.clear()  # the minute is over: accounts without payments keep no state
        return iter(())

    def disarm(self):
        armed = self.armed.get()
        if armed is not None:
            self.handle.deleteTimer(armed[0])
            self.armed.clear()


def main(source, output, checkpoint):
    spark = SparkSession.builder.appName("fraud").getOrCreate()
    payments = spark.readStream.schema(PAYMENTS).json(source).withWatermark("at", "30 seconds")
    alerts = transform_with_state(
        payments.groupBy("account"), FraudRule(), ALERTS, "Append", "EventTime"
    )
    query = alerts.writeStream.option("checkpointLocation", checkpoint).foreachBatch(
        lambda rows, batch: rows.write.mode("overwrite").parquet(f"{output}/batch={batch}")
    )
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
