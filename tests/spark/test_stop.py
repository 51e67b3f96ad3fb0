"""Stopping a query in the middle of a micro-batch."""

from __future__ import annotations

import time

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from statelog.spark import transform_with_state


class Slow(StatefulProcessor):
    """Takes its time, so that a stop comes in the middle."""

    def init(self, handle):
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key, rows, timerValues):
        time.sleep(0.05)
        self.seen.update((len(list(rows)),))
        yield Row(key=key[0])


def test_a_stop_in_mid_batch_ends_the_query_without_an_error(spark, tmp_path, capfd):
    begun = tmp_path / "job" / "statelog" / "chk-1" / "_metadata"
    events = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    out = transform_with_state(
        events.selectExpr("value AS key").groupBy("key"), Slow(), "key long", tasks=2
    )
    writer = out.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "job"))
    query = writer.start()
    for _ in range(300):
        if begun.exists():
            break
        time.sleep(0.2)
    time.sleep(3)  # a batch of some hundred keys is under way
    query.stop()
    assert not query.isActive
    assert query.exception() is None
    # Spark's search for an interruption overflows the stack on a stopped job's own error text.
    assert "StackOverflowError" not in capfd.readouterr().err


@pytest.mark.parametrize("by_group", [True, False])
def test_a_job_that_another_cancels_is_reported_as_cancelled(spark, tmp_path, by_group):
    events = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    out = transform_with_state(
        events.selectExpr("value AS key").groupBy("key"), Slow(), "key long", tasks=2
    )
    writer = out.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "job"))
    query = writer.start()
    tracker = spark.sparkContext.statusTracker()
    until = time.monotonic() + 60
    while query.isActive and time.monotonic() < until:
        if tracker.getActiveJobsIds():
            time.sleep(0.3)
            if by_group:
                spark.sparkContext.cancelJobGroup(str(query.runId))
            else:
                spark.sparkContext.cancelAllJobs()
        time.sleep(0.1)
    message = (
        r"^UnavailableError: batch \d+ was not finished, because one of its Spark jobs was cancelled, but "
        r"not by the query's stop\(\): Job \d+ cancelled .*[^.]\. Nothing is lost: start the query "
    )
    with pytest.raises(StreamingQueryException, match=message):
        query.awaitTermination(60)
