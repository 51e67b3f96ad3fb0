"""One Spark session for all tests that need one: starting it is what costs."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from statelog.demo.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.support.spark.streams import Job


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    prepare_environment()
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("statelog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(scratch / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture
def job(spark: "SparkSession", tmp_path: Path) -> "Job":
    """A job that adds up amounts by key, without input yet."""
    from tests.support.spark.processors import totals_job

    return totals_job(spark, tmp_path)


@pytest.fixture(params=["UTC", "America/New_York"])
def zone(request: pytest.FixtureRequest, spark: "SparkSession") -> Iterator[str]:
    """The session's time zone; others are named with `indirect`."""
    from tests.support.spark.streams import configured

    with configured(spark, {"spark.sql.session.timeZone": request.param}):
        yield request.param
