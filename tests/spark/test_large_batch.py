"""A micro-batch in parts, through Spark: the same as on Spark's own transformWithState."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
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
from tests.support.spark.streams import BatchSource, Job, run_on_spark

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
    flavour: str, delivery: str, spark: SparkSession, tmp_path: Path, small_parts: None
) -> None:
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


def test_a_batch_frame_is_processed_in_parts(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.createDataFrame(batch_of(random.Random(7), 0, keys=300), INPUT)
    arguments: Any = (frame.groupBy(*KEYS), Interpreter(), OUTPUT, "Update", "ProcessingTime")
    at_once = transform_with_state(*arguments, tasks=1)
    monkeypatch.setattr(StateBackendConfig, "input_bytes", 150_000)
    parts = transform_with_state(*arguments, tasks=1)
    assert by_key(at_once.collect()) == by_key(parts.collect())


class Seeded(StatefulProcessor):
    """A count that begins with the initial state."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.count.update((initialState.n,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        (n,) = self.count.get() or (0,)
        n += sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(key=key[0], n=n)


def test_a_large_initial_state_comes_in_parts(
    spark: SparkSession, tmp_path: Path, small_parts: None
) -> None:
    initial = spark.range(5_000).selectExpr("id as key", "id * 10 as n").groupBy("key")
    source = BatchSource(spark, tmp_path / "in", "key long")
    options = {"initialState": initial, "tasks": 2}
    job = Job(source, tmp_path, ["key"], Seeded(), "key long, n long", options)
    source.add([(key % 700 + 4_500,) for key in range(2_000)])
    job.run()
    expected = {
        key: (key * 10 if key < 5_000 else 0) + len(range(key - 4_500, 2_000, 700))
        for key in range(4_500, 5_200)
    }
    assert expected == {row.key: row.n for row in job.take()[0]}
    assert 5_200 == job.progress[0].keys
