"""
All types as keys, values and map keys, in zones with daylight saving, beside Spark's `groupBy`.

`aggregate` with all its functions, a processor of columns and one of Rows, over micro-batches, restarts,
snapshots and numbers of tasks.  `STATELOG_DIFFERENTIAL_SEED=7 make chaos` tries other rows.
"""

import os
import random
from collections.abc import Callable
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
@pytest.mark.parametrize("check", [check_aggregate, check_columns, check_rows])
def test_a_query_groups_as_spark(
    check: Callable[..., None],
    key: str,
    zone: str,  # noqa: F811
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
) -> None:
    seed = f"{SEED} {key} {zone}"
    rows = rows_in(spark, tmp_path / "in", zone, seed, functions=check is check_aggregate)
    map_keys = [random.Random(seed).choice(MAP_KEYS)] if check is check_rows else []
    print(f"seed {seed}, {map_keys}")
    check(rows, tmp_path, key, *map_keys)
