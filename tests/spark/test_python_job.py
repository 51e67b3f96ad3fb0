"""A Python job made of the parts of an earlier one does what `mapInArrow` does, with few calls and Arrow batches that are not measured."""

import datetime as dt
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j import clientserver
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType
from tests.support.spark.streams import BatchSource, Job, until
from tests.support.spark.versions import ARROW, table_of

from statelog.spark.jvm.frames import ArrowBatches, frame_of_few_rows
from statelog.spark.jvm.python_job import OwnWorkers, PythonJobs
from statelog.spark.rows.types import MAX_BYTES, MAX_RECORDS, NO_LIMIT, arrow_schema


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


def test_each_job_has_its_own_input(spark, monkeypatch):
    jobs = PythonJobs("n long, names string")
    for number in (1, 10, 100):
        rows = (
            spark.range(number, number + 2).withColumn("a.b", fn.lit(1)).withColumn("`", fn.lit(2))
        )
        output = table_of(jobs.frame(rows.coalesce(1), partial(add, number), "three", tasks=1))
        assert output.column("n").to_pylist() == [2 * number, 2 * number + 1]
        assert set(output.column("names").to_pylist()) == {"id,a.b,`"}
    other = table_of(jobs.frame(spark.range(2), partial(add, 5), "one", tasks=2))
    assert set(other.column("names").to_pylist()) == {"id"}
    rows = spark.range(3)
    assert jobs._templates["one"] is not None
    assert calls_of(lambda: jobs.frame(rows, partial(add, 5), "one", tasks=1), monkeypatch) <= 8
    plain = calls_of(lambda: rows.mapInArrow(partial(add, 5), "n long, names string"), monkeypatch)
    assert plain > 16


def test_broadcasts_of_the_function_reach_the_workers(spark):
    jobs = PythonJobs("n long, names string")
    assert jobs.frame(spark.range(1), partial(add, 1), "id", tasks=2).count() == 1
    sent = spark.sparkContext.broadcast([7])

    def with_broadcast(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return add(sent.value[0], batches)

    for function, expected in ((with_broadcast, 7), (partial(add, 2), 2), (with_broadcast, 7)):
        assert jobs.frame(spark.range(1), function, "id", tasks=2).first()["n"] == expected
    first = PythonJobs("n long, names string")
    for _ in range(2):
        assert first.frame(spark.range(1), with_broadcast, "id", tasks=2).first()["n"] == 7


def test_a_long_function_and_a_changed_environment_are_sent_anew(spark):
    jobs = PythonJobs("n long, names string")
    assert jobs.frame(spark.range(1), partial(add, 1), "id", tasks=2).first()["n"] == 1
    text = "x" * (2 << 20)

    def long_one(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return add(len(text), batches)

    assert jobs.frame(spark.range(1), long_one, "id", tasks=2).first()["n"] == 2 << 20

    def of_environment(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        return add(int(os.environ.get("STATELOG_TEST_NUMBER", "0")), batches)

    environment = spark.sparkContext.environment
    try:
        environment["STATELOG_TEST_NUMBER"] = "3"
        assert jobs.frame(spark.range(1), of_environment, "id", tasks=2).first()["n"] == 3
    finally:
        del environment["STATELOG_TEST_NUMBER"]


def where(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give for each row its number, the task's and the process."""
    import os

    from pyspark import TaskContext

    task = str(TaskContext.get().partitionId())
    for batch in batches:
        names = pa.array([f"{task} {os.getpid()}"] * batch.num_rows, pa.string())
        yield pa.RecordBatch.from_arrays([batch.column(0), names], ["n", "names"])


def test_each_task_gets_the_same_worker_each_time(spark, monkeypatch):
    # Idle workers of earlier jobs of the session have another environment.
    monkeypatch.setitem(spark.sparkContext.environment, "STATELOG_TEST", "same worker")
    jobs = PythonJobs("n long, names string")
    workers: dict[str, set[str]] = {}
    for number in range(12):
        tasks = 1 + number % 2
        rows = spark.range(0, 10, 1, tasks)
        if number % 4 == 3:  # a shuffle, as before the tasks of a query
            rows = spark.range(0, 10, 1, 3).repartition(2, "id")
        table = table_of(jobs.frame(rows, where, "id", tasks=tasks))
        assert sorted(table.column("n").to_pylist()) == list(range(10))
        for name in table.column("names").to_pylist():
            task, worker = name.split()
            workers.setdefault(task, set()).add(worker)
    assert {task: len(pids) for task, pids in workers.items()} == {"0": 1, "1": 1}
    assert not workers["0"] & workers["1"]


def test_the_frame_keeps_its_size_and_takes_further_steps(spark):
    def size(frame: Any) -> int:
        return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())

    jobs = PythonJobs("n long, names string")
    frame = jobs.frame(spark.range(0, 10, 1, 2), where, "id", tasks=2)
    # Spark joins by broadcast what is small.
    assert size(frame) == size(spark.range(0, 10, 1, 2).mapInArrow(where, "n long, names string"))
    other = spark.range(5).withColumnRenamed("id", "n")
    assert frame.join(other, "n").groupBy("n").count().orderBy("n").collect() == [
        (n, 1) for n in range(5)
    ]
    assert frame.limit(3).count() == 3
    assert sorted(row.n for row in frame.persist().collect()) == list(range(10))
    frame.unpersist()


def test_tasks_share_workers_beside_other_queries(spark, tmp_path):
    without_query = OwnWorkers(spark, spark.sparkContext._jvm.java.util.HashMap())
    assert [len(without_query.environments(tasks)) for tasks in (1, 2, 3)] == [1, 2, 0]
    workers: list[list[int]] = []
    names: dict[str, set[str]] = {}

    def look(frame: DataFrame, batch: int) -> None:
        session = frame.sparkSession
        of_query = OwnWorkers(session, spark.sparkContext._jvm.java.util.HashMap())
        of_one_task = of_query.environments(1)
        workers.append([len(of_one_task), len(of_query.environments(2))])
        query = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        names.setdefault(query, set()).add(of_one_task[0].get("STATELOG_TASK"))

    queries = []
    for number in range(2):
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        location = str(tmp_path / f"query-{number}")
        writer = rate.writeStream.foreachBatch(look).option("checkpointLocation", location)
        queries.append(writer.start())
        looks = 10 * (number + 1)
        until(lambda looks=looks: len(workers) >= looks, "ten micro-batches")
    for query in queries:
        query.stop()
    assert [1, 2] in workers  # one query on two cores
    assert [1, 0] in workers
    assert len(without_query.environments(2)) == 2
    # Each query has its own, and neither has those of a job without a query.
    assert sorted(map(list, names.values())) == [["0.0"], ["1.0"]]
    assert without_query.environments(1)[0].get("STATELOG_TASK") == "batch.0"


@pytest.mark.parametrize(("partitions", "tasks"), [(2, 2), (7, 7), (3, 2)])
def test_each_partition_is_a_task(spark, partitions, tasks):
    """Also where there are more tasks than workers, or other partitions than tasks."""
    jobs = PythonJobs("n long, names string")
    table = table_of(jobs.frame(spark.range(0, 100, 1, partitions), where, "id", tasks=tasks))
    assert sorted(table.column("n").to_pylist()) == list(range(100))
    places = {name.split()[0] for name in table.column("names").to_pylist()}
    assert places == set(map(str, range(partitions)))


def test_errors_are_those_of_mapinarrow(spark):
    def fails(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("not today")
        yield

    jobs = PythonJobs("n long, names string")
    for _ in range(2):
        with pytest.raises(PythonException, match="not today"):
            jobs.frame(spark.range(1), fails, "id", tasks=2).collect()
    with pytest.raises(Exception, match=r"(?i)parse|type"):
        PythonJobs("no schema at all").frame(spark.range(1), partial(add, 1), "id", tasks=2)


@ARROW
@pytest.mark.parametrize("rows", [0, 1, 5_000])
def test_few_rows_are_the_frame_that_createdataframe_makes(spark, rows, monkeypatch):
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
    table = pa.Table.from_pylist(values, arrow_schema(schema))
    expected = spark.createDataFrame(table, schema=schema)
    frame = frame_of_few_rows(spark, table, schema)
    assert frame.schema == expected.schema
    assert frame.collect() == expected.collect()
    calls = calls_of(lambda: frame_of_few_rows(spark, table, schema), monkeypatch)
    calls_of_spark = calls_of(lambda: spark.createDataFrame(table, schema=schema), monkeypatch)
    assert calls <= calls_of_spark / 2


def test_a_shuffle_begins_before_the_job_that_reads_it(tmp_path):
    """Else Spark's scheduler fails where its pool for shuffles is slow, and ends the session."""
    program = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.late_pool_job", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    expected = ("the totals are right", 0)
    assert expected == (program.stdout.strip(), program.returncode), program.stderr[-3000:]


NOT_MEASURED = str(NO_LIMIT)
NUMBERS = "struct(id AS a, cast(id AS decimal(9, 2)) AS b) AS x"


@pytest.fixture
def session(spark):
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
