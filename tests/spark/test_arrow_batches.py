"""Spark does not measure Arrow batches whose rows have a fixed width, and only while a job runs."""

from collections.abc import Callable, Iterator

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


@pytest.mark.parametrize(
    ("column", "conf", "limit"),
    [
        (NUMBERS, {}, NOT_MEASURED),
        ("'text' AS x", {}, None),
        ("array(id) AS x", {}, None),
        ("struct(id, 'text') AS x", {}, None),
        (NUMBERS, {MAX_BYTES: "100MB"}, "100MB"),  # a limit of the user stays
        (NUMBERS, {MAX_RECORDS: "-1"}, None),  # without a limit of rows
        (NUMBERS, {MAX_RECORDS: "0"}, None),
        (NUMBERS, {MAX_RECORDS: "100000000"}, None),
    ],
)
def test_numbers_are_not_measured_while_the_job_runs(session, column, conf, limit):
    for name, value in conf.items():
        session.conf.set(name, value)
    rows = session.range(3).selectExpr("id", column)
    with ArrowBatches().not_measured(rows, "columns"):
        assert limit == session.conf.get(MAX_BYTES, None)
    assert conf.get(MAX_BYTES) == session.conf.get(MAX_BYTES, None)


def test_the_limit_is_set_back_after_an_error_and_stays_if_it_is_set_meanwhile(session):
    with pytest.raises(ZeroDivisionError), ArrowBatches().not_measured(session.range(3), "id"):
        raise ZeroDivisionError
    assert session.conf.get(MAX_BYTES, None) is None
    with ArrowBatches().not_measured(session.range(3), "id"):
        session.conf.set(MAX_BYTES, "7MB")
    assert session.conf.get(MAX_BYTES) == "7MB"


def test_batches_still_end_after_the_number_of_rows(session):
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

    def init(self, handle):
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key, rows, timerValues):
        from pyspark import TaskContext
        from pyspark.sql import Row

        total = (self.total.get() or (0,))[0] + sum(int(row.n) for row in rows)
        self.total.update((total,))
        context = TaskContext.get()
        assert context is not None
        yield Row(key=key[0], total=total, limit=context.getLocalProperty(MAX_BYTES))


@pytest.mark.parametrize(
    ("delivery", "kind", "limit"), [("direct", "long", NOT_MEASURED), ("staged", "string", None)]
)
def test_a_query_whose_rows_have_a_fixed_width_is_not_measured(
    spark, tmp_path, delivery, kind, limit
):
    source = BatchSource(spark, tmp_path / "in", f"key {kind}, n long")
    key: Callable[[int], object] = str if kind == "string" else int
    for _ in range(3):
        source.add([(key(number), number) for number in range(5)])
    job = Job(source, tmp_path, ["key"], Total(), f"key {kind}, total long, limit string")
    job.run(delivery=delivery)
    for batch, rows in enumerate(job.take(), 1):
        assert {tuple(row) for row in rows} == {(key(n), batch * n, limit) for n in range(5)}
    assert spark.conf.get(MAX_BYTES, None) is None
