"""Event time as on Spark's own transformWithState: watermarks, late rows, timers, batch by batch."""

import random

import pytest
from pyspark.sql import DataFrame
from tests.support.spark.event_times import SEED, Failing, batch_of, event_job, seen_by_key
from tests.support.spark.streams import run_on_spark


def test_event_time_is_sparks_after_failures(spark, tmp_path):
    rng = random.Random(SEED)
    job = event_job(spark, tmp_path, noDataBatches=False)

    def refuse(frame: DataFrame, batch_id: int) -> None:
        assert batch_id != 3, "no room"
        job.collect(frame, batch_id)

    job.source.add_all(batch_of(rng, now) for now in (0, 25, 28, 98, 123, 190))
    with pytest.raises(Exception, match="no timers"):  # batch 2 is not committed
        job.run(processor=Failing(2), tasks=2)
    with pytest.raises(Exception, match="no room"):  # batch 3 is committed, but not delivered
        job.run(sink=refuse, tasks=3)
    job.run(tasks=1)
    assert list(range(6)) == [batch_id for batch_id, _ in job.delivered]
    ours = job.take()
    theirs = [rows for rows in run_on_spark(job, "EventTime") if rows]
    for batch, (expected, actual) in enumerate(zip(theirs, ours, strict=True)):
        assert seen_by_key(expected) == seen_by_key(actual), f"batch {batch}"
    fired = [row.kind for rows in ours for row in rows if row.kind.startswith("timer")]
    assert len(fired) > 60
