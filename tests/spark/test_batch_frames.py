"""A stateful operator over a batch frame does what Spark's does."""

import random
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from tests.support.spark.processors import INPUT as AMOUNTS
from tests.support.spark.processors import Totals
from tests.support.spark.random_programs import INPUT, KEYS, OUTPUT, Interpreter, batch_of, by_key
from tests.support.spark.streams import ON_ROCKSDB, configured
from tests.support.spark.versions import row_operator

from statelog.spark import transform_with_state


def test_batch_frames_do_what_they_do_on_spark(spark: SparkSession, tmp_path: Path) -> None:
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


def test_a_processor_that_fails_over_a_batch_frame_is_named(spark: SparkSession) -> None:
    frame: DataFrame = spark.createDataFrame([(1, 2)], AMOUNTS)
    out = transform_with_state(frame.groupBy("key"), Totals(poison=2), "key bigint")
    with pytest.raises(PythonException, match=r"Totals\.handleInputRows failed for key"):
        out.collect()
