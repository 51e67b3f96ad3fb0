"""
All types as keys, values and map keys, in zones with daylight saving, beside Spark's `groupBy`.

`aggregate` with all its functions, a processor of columns and one of Rows, over micro-batches, restarts,
snapshots and numbers of tasks.  `STATELOG_DIFFERENTIAL_SEED=7 make chaos` tries other rows.
"""

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import spark, zone  # noqa: F401  # fixtures
from tests.support.spark.equal_keys import KEYS, check_aggregate, check_columns, check_rows, rows_in
from tests.support.values.keyed_types import MAP_KEYS
from tests.support.values.time_zones import ZONES

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

SEED = os.environ.get("STATELOG_DIFFERENTIAL_SEED", "20261")


@pytest.mark.parametrize("zone", ZONES, indirect=True)
@pytest.mark.parametrize("key", KEYS)
def test_aggregate_groups_as_spark(
    key: str,
    zone: str,  # noqa: F811
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
) -> None:
    rows = rows_in(spark, tmp_path / "in", zone, f"{SEED} {key} {zone}", functions=True)
    check_aggregate(rows, tmp_path, key)


@pytest.mark.parametrize("zone", ZONES, indirect=True)
@pytest.mark.parametrize("key", KEYS)
def test_a_processor_of_columns_groups_as_spark(
    key: str,
    zone: str,  # noqa: F811
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
) -> None:
    rows = rows_in(spark, tmp_path / "in", zone, f"{SEED} {key} {zone}")
    check_columns(rows, tmp_path, key)


@pytest.mark.parametrize("zone", ZONES, indirect=True)
@pytest.mark.parametrize("key", KEYS)
def test_a_processor_of_rows_groups_as_spark(
    key: str,
    zone: str,  # noqa: F811
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
) -> None:
    seed = f"{SEED} {key} {zone}"
    value = random.Random(seed).choice(MAP_KEYS)
    print(f"seed {seed}, map key {value}")
    rows = rows_in(spark, tmp_path / "in", zone, seed)
    check_rows(rows, tmp_path, key, value)
