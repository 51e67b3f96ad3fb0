"""
Random programs of state calls do the same here as on Spark's own transformWithState.

Both flavours, in processing time; tests/campaigns/differential has the campaign over many seeds.
"""

import datetime as dt
import decimal
import random
from functools import partial

import pytest
from pyspark.sql import Row
from tests.support.spark.random_programs import (
    BESIDE_SPARK,
    FLAVOURS,
    INPUT,
    KEYS,
    OUTPUT,
    batch_of,
    by_key,
)
from tests.support.spark.streams import (
    FREQUENT_SNAPSHOTS,
    ON_ROCKSDB,
    BatchSource,
    Job,
    configured,
    run_on_spark,
)
from tests.support.spark.versions import needs, row_operator
from tests.support.spark.waking import Waking

from statelog.spark import transform_with_state

PROGRAMS = 220  # keys, each with its own
TASKS = (2, 5, 1)  # restarts in between, so that state is read back from the store
SEED = 20_110_109


@pytest.mark.parametrize("flavour", BESIDE_SPARK)
def test_programs_see_state_as_on_spark(flavour, spark, tmp_path):
    rng = random.Random(f"{SEED} {flavour}")
    transform, processor = FLAVOURS[flavour]
    source = BatchSource(spark, tmp_path / "in", INPUT)
    options = {"timeMode": "ProcessingTime", "transform": transform}
    job = Job(source, tmp_path, KEYS, processor(), OUTPUT, options)
    for number, tasks in enumerate(TASKS):
        source.add(batch_of(rng, number, PROGRAMS))
        job.run(tasks=tasks, **FREQUENT_SNAPSHOTS)
    ours = job.take()
    theirs = [rows for rows in run_on_spark(job, "ProcessingTime") if rows]
    assert len(TASKS) == len(ours)
    assert any(progress.snapshots for progress in job.progress)
    assert any(row.at.startswith("timer") for row in ours[1])
    for batch, (expected, actual) in enumerate(zip(theirs, ours, strict=True)):
        assert by_key(expected) == by_key(actual), f"batch {batch}"


@needs((4, 2), "timers of keys with a struct")
def test_keys_of_timers_are_those_that_spark_shows(spark):
    at = dt.datetime(2011, 12, 9, 12, 50, 0, 1, dt.UTC)
    keys = [
        (at, at.date(), Row(a=1, b=Row(at=at)), decimal.Decimal("1.50"), -0.5),
        (None, dt.date(1, 1, 1), Row(a=None, b=None), None, None),
        (at, None, None, decimal.Decimal(0), 0.0),
    ]
    fields = "at timestamp, day date, part struct<a: int, b: struct<at: timestamp>>"
    frame = spark.createDataFrame(keys, f"{fields}, price decimal(5,2), ratio double")
    with configured(spark, {"spark.sql.session.timeZone": "America/New_York", **ON_ROCKSDB}):
        grouped = frame.groupBy(*frame.columns)
        theirs, ours = (
            transform(Waking(), "key string", "Update", "ProcessingTime").collect()
            for transform in (row_operator(grouped), partial(transform_with_state, grouped))
        )
    assert 2 * len(keys) == len(theirs)
    assert sorted(theirs) == sorted(ours)
