"""
Many seeds of random programs against Spark's own transformWithState, batch by batch.

Both flavours, processing time and event time, staged and direct delivery, other numbers of tasks at
every restart. `STATELOG_DIFFERENTIAL_SEED=7 make chaos` tries other programs, and
`STATELOG_DIFFERENTIAL_ROUNDS=20` more of them; the seed is printed.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import spark  # noqa: F401  # a fixture
from tests.support.spark.random_programs import FLAVOURS, INPUT, KEYS, OUTPUT, batch_of, by_key
from tests.support.spark.streams import BatchSource, Job, run_on_spark

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

SEED = int(os.environ.get("STATELOG_DIFFERENTIAL_SEED", "20261"))
ROUNDS = int(os.environ.get("STATELOG_DIFFERENTIAL_ROUNDS", "2"))
PROGRAMS = 200  # keys, each with its own
BATCHES = 6


class EventTimes(BatchSource):
    """A `BatchSource` with a watermark."""

    def frame(self) -> DataFrame:
        return super().frame().withWatermark("time", "20 seconds")


def runs_of(rng: random.Random) -> list[dict[str, Any]]:
    """Return the settings of each run of one query: how many tasks, how often a snapshot, ..."""
    return [
        {
            "tasks": rng.choice([1, 2, 3, 5]),
            "stream.data-inline-threshold": rng.choice([0, 1_000_000]),
            "state.backend": rng.choice(["memory", "auto", "disk"]),
            "snapshot.min-log-size": rng.choice([1, 1_000_000]),
            "snapshot.log-to-snapshot-ratio": rng.choice([0.01, 1.0]),
            "snapshot.max-log-handles": rng.choice([2, 4, 50]),
        }
        for _ in range(rng.choice([2, 3]))
    ]


@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("delivery", ["staged", "direct"])
@pytest.mark.parametrize("time_mode", ["ProcessingTime", "EventTime"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_random_programs_see_on_statelog_what_they_see_on_spark(
    flavour: str,
    time_mode: str,
    delivery: str,
    round_: int,
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
) -> None:
    seed = f"{SEED} {flavour} {time_mode} {delivery} {round_}"
    rng = random.Random(seed)
    has_ttl = time_mode == "ProcessingTime"
    transform, processor = FLAVOURS[flavour]
    source = (BatchSource if has_ttl else EventTimes)(spark, tmp_path / "in", INPUT)
    options = {
        "timeMode": time_mode,
        "delivery": delivery,
        "transform": transform,
        "noDataBatches": False,
        "state.local-directory": str(tmp_path / "disk"),
    }
    job = Job(source, tmp_path, KEYS, processor(has_ttl), OUTPUT, options)
    runs = runs_of(rng)
    programs = 0
    for number in range(BATCHES):
        rows = batch_of(rng, number, PROGRAMS, has_ttl)
        programs += len(rows)
        source.add(rows)
        if (number + 1) % (BATCHES // len(runs)) == 0:
            job.run(**runs.pop(0))
    print(f"seed {seed!r}: {programs} programs")
    ours = job.take()
    theirs = [rows for rows in run_on_spark(job, time_mode) if rows]
    assert BATCHES == len(ours)
    assert any(row.at.startswith("timer") for rows in ours for row in rows)
    for batch, (expected, actual) in enumerate(zip(theirs, ours, strict=True)):
        assert by_key(expected) == by_key(actual), f"batch {batch} of seed {seed!r}"
