"""Columns that a processor does not read are not read, shuffled or sent; results are as with all."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.support.spark.streams import BatchSource, Job, run_to_end

from statelog.errors import UsageError
from statelog.spark import ColumnarProcessor, aggregate, transform_with_state
from statelog.spark import functions as SF

WIDE = "name string, at timestamp, `a.b` string, key bigint, amount bigint, note string"
TOTALS = "key bigint, total bigint, columns string"


class Totals(StatefulProcessor):
    """Adds up amounts; the proof finds `amount`, and `a.b` where its name is a constant."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (total,) = self.total.get() or (0,)
        columns = set()
        for row in rows:
            total += row.amount
            columns.add(row["a.b"])
        self.total.update((total,))
        yield Row(key=key[0], total=total, columns=",".join(sorted(columns)))


class Names(Totals):
    """Yields the columns that its rows have, so that all of them may matter."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(key=key[0], total=row.amount, columns=",".join(row.__fields__))


class Count(Totals):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (total,) = self.total.get() or (0,)
        total += sum(1 for _ in rows)
        self.total.update((total,))
        yield Row(key=key[0], total=total, columns="")


class Columns(ColumnarProcessor):
    """Yields the columns that a task gets."""

    def init(self, handle: Any) -> None:
        pass

    def process(self, keys: Any, rows: pa.Table, times: Any) -> Any:
        names = ",".join(rows.column_names)
        yield {"key": keys["key"], "total": [0] * len(keys), "columns": [names] * len(keys)}


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    source = BatchSource(spark, tmp_path / "in", WIDE)
    for batch in range(3):
        source.add([("n", None, f"x{n}", n % 3, n + batch, "y") for n in range(9)])
    return Job(source, tmp_path, ["key"], Totals(), TOTALS)


def rows_of(job: Job, **changes: Any) -> list[list[Row]]:
    job.run(**changes)
    return [sorted(batch) for batch in job.take()]


def columns_read(job: Job, folder: Path, **changes: Any) -> str:
    """Run the job once more and return the columns that Spark reads from the files."""
    query = job.run(
        checkpointLocation=str(folder / "q"), stateLocation=str(folder / "s"), **changes
    )
    text = query._jsq.explainInternal(False)
    return text.split("ReadSchema: struct<")[1].split(">\n")[0]


def test_only_the_columns_that_are_read_come_from_the_files(job: Job, tmp_path: Path) -> None:
    assert columns_read(job, tmp_path / "1") == "a.b:string,key:bigint,amount:bigint"
    assert "note:string" in columns_read(job, tmp_path / "2", inputColumns="all")


@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("processor", [Totals(), Count(), Names()])
def test_results_are_those_with_all_columns(
    job: Job, tmp_path: Path, is_computed: bool, processor: Any
) -> None:
    job.keys, job.processor = [F.col("key") % 2] if is_computed else ["key"], processor
    rows = rows_of(job, tasks=2)
    other = {"checkpointLocation": str(tmp_path / "q2"), "stateLocation": str(tmp_path / "s2")}
    assert rows == rows_of(job, tasks=2, inputColumns="all", **other)
    assert len(rows) == 3
    assert all(rows)


def test_keys_are_kept_and_other_columns_can_be_named(job: Job) -> None:
    rows = rows_of(job, processor=Names(), inputColumns=["amount", "a.b"])
    assert {row.columns for row in rows[0]} == {"a.b,key,amount"}
    with pytest.raises(UsageError, match="inputColumns names amuont"):
        job.start(inputColumns=["amuont"])


def test_a_columnar_processor_gets_the_columns_that_are_named(job: Job, tmp_path: Path) -> None:
    rows = rows_of(job, processor=Columns(), inputColumns=["amount"])
    assert {row.columns for row in rows[0]} == {"key,amount"}
    other = {"checkpointLocation": str(tmp_path / "q2"), "stateLocation": str(tmp_path / "s2")}
    rows = rows_of(job, processor=Columns(), **other)
    assert {row.columns for row in rows[0]} == {"name,at,a.b,key,amount,note"}


def test_a_columnar_processor_names_the_columns_that_it_reads(job: Job, tmp_path: Path) -> None:
    class Amounts(Columns):
        columns = ("amount",)

    assert columns_read(job, tmp_path / "1", processor=Amounts()) == "key:bigint,amount:bigint"
    rows = rows_of(job, processor=Amounts())
    assert {row.columns for row in rows[0]} == {"key,amount"}
    other = {"checkpointLocation": str(tmp_path / "q2"), "stateLocation": str(tmp_path / "s2")}
    rows = rows_of(job, processor=Amounts(), inputColumns=["note"], **other)
    assert {row.columns for row in rows[0]} == {"key,note"}


def test_event_time_is_kept_and_late_rows_are_dropped(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", WIDE)
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    for minutes in (0, 60, 61, 1):  # the fourth batch is late
        source.add([("n", noon + dt.timedelta(minutes=minutes), "x", 1, 1, "y")])
    stream = source.frame().withWatermark("at", "1 minute")
    frame = transform_with_state(
        stream.groupBy("key"),
        Totals(),
        TOTALS,
        timeMode="EventTime",
        stateLocation=str(tmp_path / "state"),
    )
    delivered = run_to_end(frame, tmp_path / "query")
    assert [row.total for rows in delivered for row in rows] == [1, 2, 3]


def test_an_operator_after_another_sends_what_it_reads(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", WIDE)
    source.add([("n", None, f"x{n}", n, n, "y") for n in range(6)])
    first = transform_with_state(
        source.frame().groupBy("key"),
        Totals(),
        TOTALS,
        inputColumns=["amount", "a.b"],
        stateLocation=str(tmp_path / "state"),
    )
    second = transform_with_state(
        first.withColumnRenamed("total", "amount")
        .withColumn("a.b", F.lit("z"))
        .withColumn("key", F.col("key") % 2)
        .groupBy("key"),
        Totals(),
        TOTALS,
    )
    (delivered,) = run_to_end(second, tmp_path / "query")
    assert sorted(delivered) == [Row(key=0, total=6, columns="z"), Row(key=1, total=9, columns="z")]


def test_aggregate_rejects_the_setting(job: Job) -> None:
    with pytest.raises(
        UsageError, match="aggregate reads exactly the columns that its aggregates name"
    ):
        aggregate(
            job.source.frame().groupBy("key"),
            SF.sum("amount").alias("total"),
            inputColumns=["amount"],
        )
