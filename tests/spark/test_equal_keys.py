"""Keys that are equal or look equal, beside Spark's `groupBy` and Spark's own operator."""

import pytest
from pyspark.sql import functions as sf
from tests.support.spark.equal_keys import check_aggregate, check_columns, check_rows, rows_in
from tests.support.spark.processors import TOTALS, Totals
from tests.support.spark.streams import BatchSource, Job, configured, run_on_spark
from tests.support.values.keyed_types import in_text

from statelog.errors import UsageError
from statelog.spark import transform_with_state


@pytest.mark.parametrize("zone", ["America/New_York"], indirect=True)
def test_all_faces_group_as_spark_groups(spark, tmp_path, zone):
    rows = rows_in(spark, tmp_path / "rows" / "in", zone, "rows")
    check_rows(rows, tmp_path / "rows", "pair", "double")
    rows = rows_in(spark, tmp_path / "columns" / "in", zone, "columns")
    check_columns(rows, tmp_path / "columns", "window")
    rows = rows_in(spark, tmp_path / "sums" / "in", zone, "sums", functions=True)
    check_aggregate(rows, tmp_path / "sums", "at")


def test_zeros_and_nans_are_one_key_as_in_a_group_by(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", "key double, amount bigint")
    job = Job(source, tmp_path, ["key"], Totals(), TOTALS.replace("key bigint", "key double"))
    for zero in (-0.0, 0.0, -0.0):
        source.add([(zero, 1), (float("nan"), 1), (-float("nan"), 1), (None, 1)])
    job.run(tasks=2)
    output = [in_text(batch) for batch in job.take()]
    seen = spark.read.schema(source.schema).parquet(str(source.folder))
    expected = seen.groupBy("key").agg(sf.sum("amount").alias("total"), sf.count("*").alias("rows"))
    assert in_text(expected.collect()) == output[-1]
    assert ["key=0.0; total=1; rows=1", "key=0.0; total=2; rows=2", "key=0.0; total=3; rows=3"] == [
        row for batch in output for row in batch if "key=0.0" in row
    ]
    # Spark's own operator keeps a state of each zero.
    of_spark = [row.total for batch in run_on_spark(job) for row in batch if row.key == 0]
    assert [1, 1, 2] == of_spark


def test_columns_of_one_name_are_rejected(spark, tmp_path):
    frame = BatchSource(spark, tmp_path / "in", "key bigint, amount bigint").frame()
    for names in ("amount as v, amount as v", "amount as V, amount as v"):
        twice = frame.selectExpr("key", *names.split(", "))
        with pytest.raises(UsageError, match=r"several columns with the same name: [vV], v"):
            transform_with_state(twice.groupBy("key"), Totals(), TOTALS)
    with configured(spark, {"spark.sql.caseSensitive": "true"}):
        transform_with_state(twice.groupBy("key"), Totals(), TOTALS)
