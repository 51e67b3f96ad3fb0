"""A table of files is continued by a session whose catalog does not have it any more."""

import pytest
from tests.support.spark.sink_job import COLUMNS, SinkJob
from tests.support.spark.streams import wait

from statelog.errors import UsageError

NAME = "kept"


@pytest.fixture
def job(spark, tmp_path):
    yield SinkJob(spark, tmp_path)
    spark.sql(f"drop table if exists {NAME}")


def partitions_of_table(job: SinkJob) -> list[str]:
    columns = job.spark.catalog.listColumns(NAME)
    return [column.name for column in columns if column.isPartition]


def forget_table(job: SinkJob) -> None:
    """Do what the end of a session does to a catalog in memory: the files stay."""
    job.spark.sql(f"drop table {NAME}")
    assert any(job.out.iterdir())


@pytest.mark.parametrize("partitions", [{}, {"partitionBy": "key"}, {"partitionBy": "KEY"}])
def test_a_forgotten_table_is_created_again(job, partitions):
    def run() -> None:
        writer = job.writer().option("path", str(job.out))
        wait(writer.toTable(NAME, format="parquet", **partitions))

    for _ in range(3):
        job.add(1)
        run()
        job.forget_commit()
        assert job.expected == job.table(NAME)
        fields = {
            field.name: field.dataType.simpleString() for field in job.spark.table(NAME).schema
        }
        assert dict.fromkeys(COLUMNS, "bigint") == fields
        parts = partitions_of_table(job)
        assert list(map(str.lower, partitions.values())) == parts
        forget_table(job)
    run()
    assert job.expected == job.table(NAME)


def test_a_table_that_spark_stored_without_columns_is_written(job):
    """Spark does so where CREATE TABLE names partitions of a folder with a log."""

    def run(**more: str) -> None:
        wait(job.writer().toTable(NAME, **more))

    job.add(2)
    wait(job.writer().partitionBy("key").start(str(job.out), format="parquet"))
    job.spark.sql(
        f"create table {NAME} (key bigint, total bigint, rows bigint) using parquet "
        f"partitioned by (key) location '{job.out}'"
    )
    assert [] == partitions_of_table(job)
    job.add(1)
    run(partitionBy="key")
    job.add(1)
    run()
    assert job.expected == job.table(NAME)
    folders = {path.name for path in job.out.glob("[!_.]*")}
    assert {"key=1", "key=2", "key=3", "key=4"} == folders
    with pytest.raises(UsageError, match="is partitioned by key, not by total"):
        run(partitionBy="total")


def test_a_forgotten_table_without_a_path_is_refused_with_the_way_out(job):
    job.add(1)
    wait(job.writer().toTable(NAME, format="json"))
    job.out = job.location_of(NAME)
    set_aside = job.out.rename(job.out.with_name("set_aside"))
    job.spark.sql(f"drop table {NAME}")  # a table of the catalog's own place takes its files along
    set_aside.rename(job.out)
    job.add(1)
    with pytest.raises(UsageError, match=r"the table kept, but its folder exists .*'path'"):
        job.writer().toTable(NAME, format="json")
    wait(job.writer().option("path", str(job.out)).toTable(NAME, format="json"))
    assert job.expected == job.table(NAME)
