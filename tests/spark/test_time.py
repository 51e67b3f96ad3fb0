"""Event time as on Spark's own transformWithState: watermarks, late rows, timers, batch by batch."""

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.event_times import (
    OUTPUT,
    SCHEMA,
    SEED,
    EventTimes,
    Failing,
    Timekeeper,
    batch_of,
    in_order,
)
from tests.spark.streams import Job, run_on_spark, workers_get_by_value

workers_get_by_value(__name__)


def test_event_time_is_sparks_after_failures(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    source = EventTimes(spark, tmp_path / "in", SCHEMA)
    options = {"timeMode": "EventTime", "noDataBatches": False}
    job = Job(source, tmp_path, ["key"], Timekeeper(), OUTPUT, options)

    def refuse(frame: DataFrame, batch_id: int) -> None:
        assert batch_id != 3, "no room"
        job.collect(frame, batch_id)

    for now in (0, 25, 28, 98, 123, 190):
        source.add(batch_of(rng, now))
    with pytest.raises(Exception, match="no timers"):  # batch 2 is not committed
        job.run(processor=Failing(2), tasks=2)
    with pytest.raises(Exception, match="no room"):  # batch 3 is committed, but not delivered
        job.run(sink=refuse, tasks=3)
    job.run(tasks=1)
    assert list(range(6)) == [batch_id for batch_id, _ in job.delivered]
    ours = job.take()
    theirs = [rows for rows in run_on_spark(job, "EventTime") if rows]
    for batch, (expected, actual) in enumerate(zip(theirs, ours, strict=True)):
        assert in_order(expected) == in_order(actual), f"batch {batch}"
    fired = [row.kind for rows in ours for row in rows if row.kind.startswith("timer")]
    assert len(fired) > 60
