"""
Group the clicks of each user into sessions.

A session ends after half an hour without clicks, and is written once event time has passed its end.
Run: python examples/sessions.py INPUT OUTPUT CHECKPOINT  (INPUT: JSON lines of user, at, page)
"""

import sys
from datetime import datetime

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from statelog.spark import transform_with_state

GAP_MS = 30 * 60 * 1000
CLICKS = "user string, at timestamp, page string"
SESSIONS = "user string, start timestamp, end timestamp, clicks long"


class Sessions(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.open = handle.getListState("open", "start long, end long, clicks long")

    def handleInputRows(self, key, rows, timerValues):
        sessions = list(self.open.get())
        for at in (int(row.at.timestamp() * 1000) for row in rows):
            near = [s for s in sessions if s[0] - GAP_MS <= at <= s[1] + GAP_MS]
            starts, ends, clicks = zip((at, at, 1), *near, strict=True)  # it may join two sessions
            merged = (min(starts), max(ends), sum(clicks))
            sessions = [merged, *(s for s in sessions if s not in near)]
            self.handle.registerTimer(merged[1] + GAP_MS)
        self.open.put(sessions)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        last = expiredTimerInfo.getExpiryTimeInMs() - GAP_MS
        sessions = list(self.open.get())
        self.open.put([session for session in sessions if session[1] > last])
        for start, end, clicks in sessions:
            if end <= last:
                start, end = (datetime.fromtimestamp(ms / 1000) for ms in (start, end))
                yield Row(user=key[0], start=start, end=end, clicks=clicks)


def main(source, output, checkpoint):
    spark = SparkSession.builder.appName("sessions").getOrCreate()
    clicks = spark.readStream.schema(CLICKS).json(source).withWatermark("at", "10 minutes")
    users = clicks.groupBy("user")
    sessions = transform_with_state(users, Sessions(), SESSIONS, "Append", "EventTime")
    query = sessions.writeStream.option("checkpointLocation", checkpoint).foreachBatch(
        lambda rows, batch: rows.write.mode("overwrite").parquet(f"{output}/batch={batch}")
    )
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
