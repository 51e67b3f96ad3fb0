"""Batch frames, and micro-batches and batch frames in parts: the same as on Spark's own transformWithState."""

import random
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
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
from tests.support.spark.streams import ON_ROCKSDB, BatchSource, Job, configured, run_on_spark
from tests.support.spark.versions import row_operator

from statelog.spark import transform_with_state
from statelog.state.heap import StateBackendConfig

SEED = 2_026


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
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
