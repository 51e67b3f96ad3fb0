"""The ground the other tests here stand on: this Java, these workers."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_jvm_starts_on_the_java_that_was_found(spark: "SparkSession") -> None:
    assert (Path(os.environ["JAVA_HOME"]) / "bin" / "java").is_file()
    assert spark.range(10).count() == 10


def test_workers_run_this_interpreter(spark: "SparkSession") -> None:
    def where(_: object) -> str:
        import sys

        return sys.prefix

    assert {sys.prefix} == set(spark.sparkContext.parallelize(range(2), 2).map(where).collect())
