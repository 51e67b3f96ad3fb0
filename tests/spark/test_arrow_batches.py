"""Spark does not measure Arrow batches whose rows have a fixed width, and only while a job runs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark.streams import BatchSource, Job

from statelog.spark.jvm.frames import ArrowBatches
from statelog.spark.rows.types import MAX_BYTES, MAX_RECORDS, NO_LIMIT

NOT_MEASURED = str(NO_LIMIT)
NUMBERS = "struct(id AS a, cast(id AS decimal(9, 2)) AS b) AS x"


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return spark.newSession()


def while_it_runs(session: SparkSession, column: str) -> str | None:
    rows = session.range(3).selectExpr("id", column)
    with ArrowBatches().not_measured(rows, "columns"):
        return session.conf.get(MAX_BYTES, None)


def test_numbers_are_not_measured_while_the_job_runs(session: SparkSession) -> None:
    assert while_it_runs(session, NUMBERS) == NOT_MEASURED
    assert session.conf.get(MAX_BYTES, None) is None


@pytest.mark.parametrize("column", ["'text' AS x", "array(id) AS x", "struct(id, 'text') AS x"])
def test_rows_of_any_size_are_measured(session: SparkSession, column: str) -> None:
    assert while_it_runs(session, column) is None


def test_a_limit_of_the_user_stays(session: SparkSession) -> None:
    session.conf.set(MAX_BYTES, "100MB")
    assert while_it_runs(session, NUMBERS) == "100MB"
    assert session.conf.get(MAX_BYTES) == "100MB"


@pytest.mark.parametrize("records", ["-1", "0", "100000000"])
def test_without_a_limit_of_rows_they_are_measured(session: SparkSession, records: str) -> None:
    session.conf.set(MAX_RECORDS, records)
    assert while_it_runs(session, NUMBERS) is None


def test_the_limit_is_set_back_after_an_error(session: SparkSession) -> None:
    with pytest.raises(ZeroDivisionError), ArrowBatches().not_measured(session.range(3), "id"):
        raise ZeroDivisionError
    assert session.conf.get(MAX_BYTES, None) is None


def test_what_is_set_meanwhile_stays(session: SparkSession) -> None:
    with ArrowBatches().not_measured(session.range(3), "id"):
        session.conf.set(MAX_BYTES, "7MB")
    assert session.conf.get(MAX_BYTES) == "7MB"


def test_batches_still_end_after_the_number_of_rows(session: SparkSession) -> None:
    session.conf.set(MAX_RECORDS, "100")
    rows = session.range(0, 1000, 1, 1)

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": [batch.num_rows]})

    with ArrowBatches().not_measured(rows, "id"):
        output = rows.mapInArrow(sizes, "rows long").toArrow()  # type: ignore[arg-type]
    assert output.column("rows").to_pylist() == [100] * 10


class Total(StatefulProcessor):
    """The running total of a key, and the limit that holds for its task."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        from pyspark import TaskContext
        from pyspark.sql import Row

        total = (self.total.get() or (0,))[0] + sum(int(row.n) for row in rows)
        self.total.update((total,))
        context = TaskContext.get()
        assert context is not None
        yield Row(key=key[0], total=total, limit=context.getLocalProperty(MAX_BYTES))


@pytest.mark.parametrize("delivery", ["direct", "staged"])
@pytest.mark.parametrize(("kind", "limit"), [("long", NOT_MEASURED), ("string", None)])
def test_a_query_whose_rows_have_a_fixed_width_is_not_measured(
    spark: SparkSession, tmp_path: Path, delivery: str, kind: str, limit: str | None
) -> None:
    source = BatchSource(spark, tmp_path / "in", f"key {kind}, n long")
    key: Callable[[int], object] = str if kind == "string" else int
    for _ in range(3):
        source.add([(key(number), number) for number in range(5)])
    job = Job(source, tmp_path, ["key"], Total(), f"key {kind}, total long, limit string")
    job.run(delivery=delivery)
    for batch, rows in enumerate(job.take(), 1):
        assert {tuple(row) for row in rows} == {(key(n), batch * n, limit) for n in range(5)}
    assert spark.conf.get(MAX_BYTES, None) is None
