"""A Python job made of the parts of an earlier one does what `mapInArrow` does, with few calls."""

import datetime as dt
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j import clientserver
from pyspark.errors import PythonException
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType
from tests.spark.streams import workers_get_by_value

from statelog.spark.driver.arrow_frame import frame_of_few_rows
from statelog.spark.driver.python_job import PythonJobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

workers_get_by_value(__name__)


def add(number: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add a number to the first column, and give the names of all."""
    for batch in batches:
        names = pa.array([",".join(batch.schema.names)] * batch.num_rows)
        yield pa.RecordBatch.from_arrays([pc.add(batch.column(0), number), names], ["n", "names"])


def calls_of(action: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many calls to the JVM *action* makes."""
    sent: list[str] = []
    plain = clientserver.ClientServerConnection.send_command

    def counted(self: Any, command: str, *rest: Any) -> Any:
        sent.append(command)
        return plain(self, command, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(clientserver.ClientServerConnection, "send_command", counted)
        action()
    return len([command for command in sent if not command.startswith("m\nd\n")])  # no deletions


@pytest.mark.spark
def test_each_job_has_its_own_function_and_input(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = PythonJobs("n long, names string")
    for number in (1, 10, 100):
        rows = (
            spark.range(number, number + 2).withColumn("a.b", fn.lit(1)).withColumn("`", fn.lit(2))
        )
        found = jobs.frame(rows.coalesce(1), partial(add, number), "three").toArrow()
        assert found.column("n").to_pylist() == [2 * number, 2 * number + 1]
        assert set(found.column("names").to_pylist()) == {"id,a.b,`"}
    other = jobs.frame(spark.range(2), partial(add, 5), "one").toArrow()
    assert set(other.column("names").to_pylist()) == {"id"}
    rows = spark.range(3)
    assert jobs._templates["one"] is not None
    assert calls_of(lambda: jobs.frame(rows, partial(add, 5), "one"), monkeypatch) <= 8
    plain = calls_of(lambda: rows.mapInArrow(partial(add, 5), "n long, names string"), monkeypatch)
    assert plain > 16


@pytest.mark.spark
def test_broadcasts_of_the_function_reach_the_workers(spark: "SparkSession") -> None:
    jobs = PythonJobs("n long, names string")
    assert jobs.frame(spark.range(1), partial(add, 1), "id").count() == 1
    sent = spark.sparkContext.broadcast([7])

    def with_broadcast(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return add(sent.value[0], batches)

    for function, expected in ((with_broadcast, 7), (partial(add, 2), 2), (with_broadcast, 7)):
        assert jobs.frame(spark.range(1), function, "id").toArrow().column("n").to_pylist() == [
            expected
        ]
    first = PythonJobs("n long, names string")
    for _ in range(2):
        assert first.frame(spark.range(1), with_broadcast, "id").first()["n"] == 7


@pytest.mark.spark
def test_a_long_function_and_a_changed_environment_are_sent_anew(spark: "SparkSession") -> None:
    jobs = PythonJobs("n long, names string")
    jobs.frame(spark.range(1), partial(add, 1), "id")
    text = "x" * (2 << 20)

    def long_one(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return add(len(text), batches)

    assert jobs.frame(spark.range(1), long_one, "id").first()["n"] == 2 << 20

    def of_environment(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        return add(int(os.environ.get("STATELOG_TEST_NUMBER", "0")), batches)

    environment = spark.sparkContext.environment
    try:
        environment["STATELOG_TEST_NUMBER"] = "3"
        assert jobs.frame(spark.range(1), of_environment, "id").first()["n"] == 3
    finally:
        del environment["STATELOG_TEST_NUMBER"]


@pytest.mark.spark
def test_errors_are_those_of_mapinarrow(spark: "SparkSession") -> None:
    def fails(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("not today")
        yield

    jobs = PythonJobs("n long, names string")
    for _ in range(2):
        with pytest.raises(PythonException, match="not today"):
            jobs.frame(spark.range(1), fails, "id").collect()
    with pytest.raises(Exception, match=r"(?i)parse|type"):
        PythonJobs("no schema at all").frame(spark.range(1), partial(add, 1), "id")


@pytest.mark.spark
@pytest.mark.parametrize("rows", [0, 1, 5_000])
def test_few_rows_are_the_frame_that_createdataframe_makes(
    spark: "SparkSession", rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = StructType.fromDDL(
        "n int, text string, at timestamp, local timestamp_ntz, day date, parts array<string>, "
        "inner struct<a: double, b: binary>, price decimal(9,2), m map<string,int>"
    )
    moment = dt.datetime(2026, 3, 4, 5, 6, 7, 8)
    values = [
        {
            "n": None if number % 3 == 0 else number,
            "text": f"text {number}",
            "at": moment.replace(tzinfo=dt.UTC),
            "local": moment,
            "day": moment.date(),
            "parts": ["a", None],
            "inner": {"a": 0.5, "b": b"\0"},
            "price": None,
            "m": [("k", number)],
        }
        for number in range(rows)
    ]
    from statelog.spark.rows.types import arrow_schema

    table = pa.Table.from_pylist(values, arrow_schema(schema))
    expected = spark.createDataFrame(table, schema=schema)
    found = frame_of_few_rows(spark, table, schema)
    assert found.schema == expected.schema
    assert found.collect() == expected.collect()
    made = [
        calls_of(lambda: frame_of_few_rows(spark, table, schema), monkeypatch),
        calls_of(lambda: spark.createDataFrame(table, schema=schema), monkeypatch),
    ]
    assert made[0] <= made[1] / 2
