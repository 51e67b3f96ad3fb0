"""
Random programs of state calls do the same here as on Spark's own transformWithState.

Both flavours, in processing time, with micro-batches at once and in parts, and batch frames;
tests/campaigns/differential has the campaign over many seeds.
"""

import datetime as dt
import decimal
import random
from functools import partial
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row
from tests.support.spark.processors import INPUT as AMOUNTS
from tests.support.spark.processors import Totals
from tests.support.spark.random_programs import (
    BESIDE_SPARK,
    FLAVOURS,
    INPUT,
    KEYS,
    OUTPUT,
    Interpreter,
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
from statelog.state.heap import StateBackendConfig

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


@pytest.fixture
def small_parts(monkeypatch):
    """Let tasks process about a hundred rows at once; the driver tells them."""
    monkeypatch.setattr(StateBackendConfig, "input_bytes", 150_000)


@pytest.mark.parametrize("delivery", ["staged", "direct"])
@pytest.mark.parametrize("flavour", BESIDE_SPARK)
def test_random_programs_see_in_parts_what_they_see_on_spark(
    flavour, delivery, spark, tmp_path, small_parts
):
    rng = random.Random(f"{SEED} {flavour} {delivery}")
    transform, processor = FLAVOURS[flavour]
    source = BatchSource(spark, tmp_path / "in", INPUT)
    options = {"timeMode": "ProcessingTime", "transform": transform, "delivery": delivery}
    job = Job(source, tmp_path, KEYS, processor(), OUTPUT, options)
    for number, tasks in enumerate((1, 2)):
        source.add(batch_of(rng, number, 300))
        job.run(tasks=tasks)
    ours = job.take()
    theirs = [rows for rows in run_on_spark(job, "ProcessingTime") if rows]
    assert len(theirs) == len(ours) == 2
    assert any(row.at.startswith("timer") for row in ours[1])
    for batch, (expected, actual) in enumerate(zip(theirs, ours, strict=True)):
        assert by_key(expected) == by_key(actual), f"batch {batch}"
    assert 300 > max(progress.keys for progress in job.progress) > 200


def test_a_batch_frame_is_processed_in_parts(spark, monkeypatch):
    frame = spark.createDataFrame(batch_of(random.Random(7), 0, keys=300), INPUT)
    arguments: Any = (frame.groupBy(*KEYS), Interpreter(), OUTPUT, "Update", "ProcessingTime")
    at_once = transform_with_state(*arguments, tasks=1)
    monkeypatch.setattr(StateBackendConfig, "input_bytes", 150_000)
    parts = transform_with_state(*arguments, tasks=1)
    assert by_key(at_once.collect()) == by_key(parts.collect())


def test_batch_frames_do_what_they_do_on_spark(spark, tmp_path):
    frame = spark.createDataFrame(batch_of(random.Random(7), 0, keys=60), INPUT)
    grouped = frame.groupBy(*KEYS)
    with configured(spark, ON_ROCKSDB):
        theirs = row_operator(grouped)(Interpreter(), OUTPUT, "Update", "ProcessingTime")
        expected = by_key(theirs.collect())
    for tasks in (1, "3-4"):
        ours = transform_with_state(
            grouped, Interpreter(), OUTPUT, "Complete", "ProcessingTime", tasks=tasks
        )
        assert type(frame) is type(ours)
        # Its partitions are an ordinary frame's: they may be merged, and met again.
        assert expected == by_key(ours.coalesce(1).collect())
        assert ours.union(ours).count() == 2 * ours.count()
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_processor_that_fails_over_a_batch_frame_is_named(spark):
    frame: DataFrame = spark.createDataFrame([(1, 2)], AMOUNTS)
    out = transform_with_state(frame.groupBy("key"), Totals(poison=2), "key bigint")
    with pytest.raises(PythonException, match=r"Totals\.handleInputRows failed for key") as raised:
        out.collect()
    assert "raise ArithmeticError(f" in str(raised.value)  # the processor's lines
