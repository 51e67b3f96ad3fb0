"""
The scenarios of Spark's parity classes on a Connect session: `enable(spark)` is all that differs.

Each runs the same code twice, on Spark's operator and enabled, with the state in the checkpointLocation.
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.locations.sequence_entries import committed
from tests.support.spark import scenarios
from tests.support.spark.connect.jobs import deliver
from tests.support.spark.streams import (
    ON_ROCKSDB,
    WITHOUT_NO_DATA,
    BatchSource,
    configured,
    enabled,
)
from tests.support.spark.versions import needs

pytestmark = needs((4, 1), "transformWithState on Spark Connect")


def on_both(
    session: SparkSession, folder: Path, build: Callable[[], DataFrame]
) -> list[list[dict[str, Any]]]:
    """Run a query on Spark's operator and enabled; return the rows of each micro-batch, if equal."""
    results = []
    for ours in (False, True):
        place = folder / str(ours)
        with (
            configured(session, ON_ROCKSDB | WITHOUT_NO_DATA),
            enabled(session) if ours else nullcontext(),
        ):
            results.append(deliver(build(), place).batches())
        assert ours == bool(committed(place / "query" / "statelog"))
    of_spark, of_statelog = results
    assert of_statelog == of_spark
    return of_statelog


@pytest.mark.parametrize("pandas", [False, True])
def test_every_kind_with_initial_state(remote, tmp_path, pandas):
    source = BatchSource(remote, tmp_path / "in", scenarios.INPUT)
    source.add_all(scenarios.EVERYTHING_BATCHES)
    batches = on_both(remote, tmp_path, lambda: scenarios.everything(remote, source, pandas))
    assert [2, 2] == [len(rows) for rows in batches]


def test_timers_wait_without_batches_without_data(remote, tmp_path):
    source = BatchSource(remote, tmp_path / "in", scenarios.INPUT)
    source.add_all(scenarios.TIMER_BATCHES)
    batches = on_both(remote, tmp_path, lambda: scenarios.with_timers(remote, source))
    assert 2 == len(batches)
    assert {"0 expired", "3 expired"} <= {row["first"] for row in batches[0]}
