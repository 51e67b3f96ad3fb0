"""Sinks keep their guarantee: a micro-batch that is delivered again is written once."""

import contextlib
import functools
import json
import logging
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.spark.delta_stand_in import DeltaStandIn
from tests.support.spark.processors import TOTALS, TotalsModel
from tests.support.spark.sink_job import BATCHES, COLUMNS, SinkJob
from tests.support.spark.streams import configured, in_order, wait

from statelog.checkpoint import CheckpointCoordinator
from statelog.cli.main import run as command
from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError, FencedError, UsageError
from statelog.spark import DatabaseSink, exactly_once, idempotent
from statelog.spark.stream.sinks.file_sink import Delivered, FileEntries


@pytest.fixture
def job(spark, tmp_path):
    return SinkJob(spark, tmp_path)


@pytest.fixture
def short_log(spark):
    settings = {
        "spark.sql.streaming.fileSink.log.compactInterval": "3",
        "spark.sql.streaming.fileSink.log.cleanupDelay": "0",
        "spark.sql.streaming.minBatchesToRetain": "1",
    }
    with configured(spark, settings):
        yield


@pytest.mark.parametrize("source", ["parquet", "csv", "xml"])
def test_files_of_a_redelivered_batch_are_written_once(job, source):
    option = {"rowTag": "row"} if source == "xml" else {}
    job.add(2)
    wait(job.writer().options(**option).start(str(job.out), format=source.upper()))
    job.forget_commit()
    wait(job.writer().options(**option).start(str(job.out), format=source))
    assert job.expected == job.rows(source, **option)
    assert {"0", "1"} == {path.name for path in (job.out / "_spark_metadata").glob("[0-9]*")}


def test_files_take_both_output_modes(job):
    job.add(1)
    wait(job.writer("a").outputMode("update").start(str(job.out), format="parquet"))
    job.add(1)
    wait(job.writer("a").outputMode("append").start(str(job.out), format="parquet"))
    assert job.expected == job.rows("parquet")


@pytest.mark.parametrize("source", ["parquet", "delta"])
def test_a_direct_batch_that_failed_after_its_sink_is_written_once(spark, job, source, monkeypatch):
    if source == "delta":
        pytest.importorskip("deltalake")
        spark.dataSource.register(DeltaStandIn)
    job.add(1)
    job.run(source, delivery="direct")
    job.add(1)

    def fail(self: CheckpointCoordinator, *_: Any, **__: Any) -> Any:
        raise OSError("the store is away")

    with monkeypatch.context() as broken:
        broken.setattr(CheckpointCoordinator, "complete", fail)
        with pytest.raises(StreamingQueryException, match="the store is away"):
            job.run(source, delivery="direct")
    job.add(1)
    job.run(source, delivery="direct")  # the state has every row once, or the totals were wrong
    rows = delta_rows(job.out) if source == "delta" else job.rows(source)
    assert job.expected == rows


def test_a_query_that_comes_later_and_a_second_one_leave_a_folder_readable(job, short_log, caplog):
    """Spark's sink numbers its entries by batch: readers fail at gaps, a new query is skipped."""
    job.add(1)
    wait(job.writer().format("noop").start())
    job.delivered = []
    for _ in range(3):  # batches 1 to 3 are the entries 0 to 2
        job.add(1)
        job.run("parquet")
    assert "a different query" not in caplog.text
    assert "Set the first to at least twice the second" in caplog.text, "short_log keeps less"
    model = TotalsModel()
    for rows in BATCHES:
        job.delivered += model.apply(rows)
    job.run("parquet", name="second")
    assert "contains rows of a different query" in caplog.text
    assert job.expected == job.rows("parquet")
    entries = {path.name for path in (job.out / "_spark_metadata").glob("[0-9]*")}
    assert {"5.compact", "6"} <= entries <= {"2.compact", "3", "4", "5.compact", "6"}
    assert 2 == len(list((job.out / "_statelog").glob("[0-9]*"))), "the newest of each query"


def test_a_folder_with_other_files_is_refused_or_appended_to(job):
    job.add(1)
    job.out.mkdir()
    (job.out / "_SUCCESS").touch()
    job.run("parquet", name="hidden_files_do_not_count")
    shutil.rmtree(job.out)
    job.spark.createDataFrame([(9, 9, 9)], TOTALS).write.parquet(str(job.out))
    with pytest.raises(UsageError, match=r"files that no streaming query .*'statelog.fileSink'"):
        job.run("parquet")
    assert not (job.out / "_spark_metadata").exists()
    append = {"statelog.fileSink": "append"}
    wait(job.writer().options(**append).start(str(job.out), format="parquet"))
    assert in_order([*job.delivered, (9, 9, 9)]) == job.rows("parquet")
    shutil.rmtree(job.out)
    job.run("parquet", name="b")
    with pytest.raises(UsageError, match="would hide appended files"):
        job.run("parquet", name="c", fileSink="append")
    with pytest.raises(UsageError, match='must be "exactly-once" or "append"'):
        job.run("parquet", name="c", fileSink="sometimes")


def test_files_refuse_a_rewound_query_delta_takes_it(spark, job):
    pytest.importorskip("deltalake")
    spark.dataSource.register(DeltaStandIn)
    job.add(3)
    job.run("parquet")
    delta = str(job.folder / "delta")
    wait(job.writer("to_delta").start(delta, format="delta"))
    for name in ("query", "to_delta"):
        query = str(job.folder / name)
        assert 0 == command(["rewind", query, "--batch-id", "0", "--apply", "--min-idle", "0s"])
    with pytest.raises(CheckpointError, match=r"the rows of batch 2 .* continues with batch 1"):
        job.run("parquet")
    assert job.expected == job.rows("parquet")
    wait(job.writer("to_delta").start(delta, format="delta"))
    given_up = job.delivered[2:]
    assert in_order(job.delivered + given_up) == delta_rows(Path(delta))
    job.forget_commit("to_delta")
    wait(job.writer("to_delta").start(delta, format="delta"))
    assert in_order(job.delivered + given_up) == delta_rows(Path(delta))


def delta_rows(path: Path) -> list[tuple[Any, ...]]:
    from deltalake import DeltaTable

    rows = DeltaTable(str(path)).to_pyarrow_table().select(COLUMNS).to_pylist()
    return in_order(row.values() for row in rows)


class Folder:
    """A folder of files, whose entries a test writes; each call of `entries` is another driver."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self.path = path
        self.log = path / "_spark_metadata"
        self.log.mkdir()

    def entries(self, planned: int = -1) -> FileEntries:
        return FileEntries(self._spark, str(self.path), planned)

    def write(self, delivered: Delivered, entries: FileEntries | None = None) -> int | None:
        """Write a micro-batch as the sink does; return its entry."""
        entries = entries or self.entries()
        entry = entries.begin(delivered)
        if entry is not None:
            (self.log / str(entry)).write_text("v1")
            entries.end(entry)
        return entry

    def records(self) -> list[str]:
        return sorted(path.name for path in (self.path / "_statelog").glob("[0-9]*"))


@pytest.fixture
def a_folder(spark, tmp_path):
    return Folder(spark, tmp_path)


def delivered(
    writer: str, number: int, timeline: int = 0, location: str = "x", plan: str = ""
) -> Delivered:
    return Delivered(writer, DeliveredBatch(location, timeline, number, plan))


def test_entries_name_their_micro_batches(a_folder):
    entries, log = a_folder.entries, a_folder.log
    ours = entries()
    assert 0 == ours.begin(delivered("a", 7))
    assert 0 == entries().begin(delivered("a", 7)), "announced, not written"
    with pytest.raises(FencedError, match=r"a has announced batch 7 .* as entry 0"):
        entries().begin(delivered("b", 0))
    (log / "0").write_text("v1")
    ours.end(0)
    assert entries().begin(delivered("a", 7)) is None
    entries(7).check("a")
    with pytest.raises(CheckpointError, match="continues with batch 7"):
        entries(6).check("a")
    assert 1 == ours.begin(delivered("a", 9))
    (log / "1").write_text("v1")
    with pytest.raises(FencedError, match="newest entry is 1, but this query last wrote 0"):
        ours.begin(delivered("a", 10))
    assert entries().begin(delivered("a", 9)) is None
    assert ["1"] == a_folder.records()
    (a_folder.path / "_statelog" / "1").write_text("{}")
    (a_folder.path / "_statelog" / ".1.crc").unlink(missing_ok=True)
    with pytest.raises(UsageError, match="is damaged"):
        entries().begin(delivered("a", 9))


def test_the_newest_entry_of_each_query_is_remembered(a_folder):
    for number in range(3):
        a_folder.write(delivered("a", number))
        a_folder.write(delivered("b", 10 + number))
    assert ["4", "5"] == a_folder.records()
    for _ in range(2):
        assert a_folder.write(delivered("a", 2)) is None
        assert a_folder.write(delivered("b", 12)) is None
    for writer, number in (("a", 1), ("b", 11)):
        with pytest.raises(CheckpointError, match="continues with batch") as caught:
            a_folder.write(delivered(writer, number))
        assert ("gap", number) == (caught.value.reason, caught.value.batch_id)
        with pytest.raises(CheckpointError, match="continues with batch"):
            a_folder.entries(number).check(writer)
    assert [6, 7] == [a_folder.write(delivered("b", 13)), a_folder.write(delivered("a", 3))]
    assert ["6", "7"] == a_folder.records()


def test_a_run_that_was_killed_leaves_no_record_behind(a_folder):
    a_folder.write(delivered("a", 0))
    killed = a_folder.entries()
    assert 1 == killed.begin(delivered("a", 1))
    (a_folder.log / "1").write_text("v1")
    assert ["0", "1"] == a_folder.records()
    a_folder.write(delivered("b", 0))
    assert a_folder.write(delivered("a", 1)) is None
    assert ["1", "2"] == a_folder.records()


@pytest.mark.parametrize("wrong", [delivered("a", 3, 5), delivered("a", 3, plan="other")])
def test_given_up_batches_in_a_folder_are_refused(a_folder, wrong):
    a_folder.write(delivered("a", 3, plan="planned"))
    a_folder.write(delivered("b", 0))
    with pytest.raises(CheckpointError, match=r"contains the rows of batch 3 .* cannot be removed"):
        a_folder.write(wrong)


def test_a_query_that_was_rewound_to_what_the_folder_has_goes_on(a_folder):
    a_folder.write(delivered("a", 3))
    zombie = a_folder.entries()
    again = Delivered("a", DeliveredBatch("x", 0, 3, "", 5))
    assert a_folder.write(again) is None
    assert 1 == a_folder.write(delivered("a", 4, 5))
    with pytest.raises(FencedError, match="5, but this driver is at batch 4 of timeline 0"):
        a_folder.write(delivered("a", 4), zombie)
    assert a_folder.write(delivered("a", 4, 5)) is None


def test_an_announcement_of_another_timeline_is_not_overwritten(a_folder):
    """The driver before the rewind may be about to write the entry."""
    assert 0 == a_folder.entries().begin(delivered("a", 3))
    assert 0 == a_folder.entries().begin(delivered("a", 3, plan="planned again"))
    with pytest.raises(FencedError, match=r"announced batch 3 .* delete .*_statelog/0"):
        a_folder.entries().begin(delivered("a", 2, 5))
    for name in ("0", ".0.crc"):
        (a_folder.path / "_statelog" / name).unlink()
    assert 0 == a_folder.write(delivered("a", 2, 5))


def test_a_query_of_sparks_own_operator_continues_in_its_folder(a_folder):
    (a_folder.log / "4").write_text("v1")
    assert a_folder.entries(4).begin(delivered("a", 4)) is None
    assert 5 == a_folder.entries(5).begin(delivered("a", 5))
    assert 5 == a_folder.entries(-1).begin(delivered("a", 4)), "a new query"


def test_a_table_of_files_is_created_and_written_once(job):
    job.add(2)
    for _ in range(2):
        wait(job.writer().toTable("once", format="json", partitionBy="KEY"))
        job.forget_commit()
    assert job.expected == job.table("once")
    job.add(1)
    wait(job.writer().toTable("once"))  # by its own format and partitions
    assert job.expected == job.table("once")
    assert {"key=1", "key=2", "key=3"} == {
        path.name for path in job.location_of("once").glob("key=*")
    }
    wait(job.writer("elsewhere").option("path", str(job.out)).toTable("placed", format="orc"))
    assert job.expected == job.rows("orc")
    for name in ("once", "placed"):
        job.spark.sql(f"drop table {name}")


def test_a_table_has_its_options_and_the_order_of_its_columns(job):
    job.add(1)
    job.spark.sql(
        "create table narrow (rows bigint, total bigint, key bigint) using csv "
        "options (sep '|', header 'true')"
    )
    try:
        wait(job.writer().toTable("narrow", format="csv"))
        assert job.expected == job.table("narrow")
    finally:
        job.spark.sql("drop table narrow")


def test_columns_that_a_table_cannot_take_are_refused(job):
    job.add(1)
    sql = job.spark.sql
    sql("create table other (key bigint, total bigint) using parquet")
    sql("create table typed (key bigint, total string, rows bigint) using parquet")
    sql(
        "create table buckets (key bigint, total bigint, rows bigint) using parquet "
        "clustered by (key) into 2 buckets"
    )
    sql("create table parts (key bigint, total bigint, rows bigint) using orc partitioned by (key)")
    sql("create view seen as select * from other")
    sql("create temporary view passing as select * from other")
    try:
        for table, options, message in (
            ("other", {}, "has the columns key, total, but the output has key, total, rows"),
            ("typed", {}, "column total of the table typed is string.*bigint: cast it"),
            ("buckets", {}, "is bucketed"),
            ("parts", {"partitionBy": "total"}, "is partitioned by key, not by total"),
            ("parts", {"format": "parquet"}, "has the format orc, but the query writes parquet"),
            ("seen", {}, "is a view"),
            ("passing", {}, "is a view"),
        ):
            with pytest.raises(UsageError, match=message):
                job.writer().toTable(table, **options)
    finally:
        sql("drop view seen")
        sql("drop view passing")
        for name in ("other", "typed", "buckets", "parts"):
            sql(f"drop table {name}")
    assert not (job.folder / "query" / "statelog").exists()


def test_delta_gets_the_ids_of_its_transactions(spark, job):
    deltalake = pytest.importorskip("deltalake")
    spark.dataSource.register(DeltaStandIn)
    job.add(2)
    job.run("delta")
    job.forget_commit()
    job.run("delta")
    assert job.expected == delta_rows(job.out)
    query_id = json.loads((job.folder / "query" / "metadata").read_text())["id"]
    table = deltalake.DeltaTable(str(job.out))
    location = table.history()[0]["userMetadata"].partition("/")[0]
    assert location
    assert 1 == table.transaction_version(f"{query_id}/{location}")
    named = str(job.folder / "named")
    wait(job.writer("b").option("TxnAppId", "mine").start(named, format="delta"))
    assert 1 == deltalake.DeltaTable(named).transaction_version("mine")


def test_output_that_is_written_at_least_once_is_warned_of(spark, job, caplog):
    class Elsewhere(DeltaStandIn):
        @classmethod
        def name(cls) -> str:
            return "elsewhere"

    spark.dataSource.register(Elsewhere)
    caplog.set_level(logging.WARNING, "statelog.spark")
    wait(job.writer("a").format("noop").start())
    assert "at least once" not in caplog.text
    job.run("elsewhere")
    assert 1 == caplog.text.count("(elsewhere) is written at least once")


def collected(into: list[Any]) -> Callable[[DataFrame, int], object]:
    def write(frame: DataFrame, batch_id: int) -> None:
        into.extend((batch_id, *row) for row in frame.collect())

    return write


def test_an_idempotent_function_skips_what_it_has_written(job):
    rows: list[Any] = []
    records = job.folder / "records"

    def run_with(sink: Callable[[DataFrame, int], object], record_first: bool = False) -> None:
        function = idempotent(sink, str(records), record_first=record_first)
        wait(job.writer().foreachBatch(function).start())

    def write_and_fail(frame: DataFrame, batch_id: int) -> None:
        collected(rows)(frame, batch_id)
        raise OSError("no room")

    job.add(2)
    run_with(collected(rows))
    job.forget_commit()
    run_with(collected(rows))
    assert job.expected == in_order(row[1:] for row in rows)
    job.add(1)
    with pytest.raises(StreamingQueryException, match="no room"):
        run_with(write_and_fail)
    run_with(collected(rows))
    repeated = [row for row in rows if row[0] == 2]
    assert len(repeated) == 2 * len(set(repeated)), "the record comes after the rows"
    job.add(1)
    with pytest.raises(StreamingQueryException, match="no room"):
        run_with(lambda frame, batch_id: write_and_fail(frame.limit(0), batch_id), True)
    run_with(collected(rows))
    assert [] == [row for row in rows if row[0] == 3], "the record comes before the rows"


def test_an_idempotent_function_asks_the_target(job):
    rows: list[Any] = []
    asked: list[tuple[str, int]] = []

    def is_written(writer: str, batch_id: int) -> bool:
        asked.append((writer, batch_id))
        return any(row[0] == batch_id for row in rows)

    job.add(2)
    for _ in range(2):
        function = idempotent(collected(rows), written=is_written)
        wait(job.writer().foreachBatch(function).start())
        job.forget_commit()
    assert job.expected == in_order(row[1:] for row in rows)
    query_id = json.loads((job.folder / "query" / "metadata").read_text())["id"]
    assert [(query_id, 0), (query_id, 1), (query_id, 1)] == asked


def test_a_sink_with_transactions_gets_each_row_once(job):
    connect = functools.partial(sqlite3.connect, job.folder / "d", check_same_thread=False)
    with contextlib.closing(connect()) as connection:
        connection.execute('create table totals ("key", total, "rows")')
    function = exactly_once(DatabaseSink(connect, "totals"))

    def run_with(sink: Callable[[DataFrame, int], object]) -> list[tuple[Any, ...]]:
        wait(job.writer().foreachBatch(sink).start())
        with contextlib.closing(connect()) as connection:
            return in_order(connection.execute('select "key", total, "rows" from totals'))

    def write_and_fail(frame: DataFrame, batch_id: int) -> None:
        function(frame, batch_id)
        raise OSError("no room")

    job.add(2)
    assert job.expected == run_with(function)
    job.forget_commit()
    assert job.expected == run_with(function)
    job.add(1)
    with pytest.raises(StreamingQueryException, match="no room"):
        run_with(write_and_fail)
    assert job.expected == run_with(function)
    query = str(job.folder / "query")
    assert 0 == command(["rewind", query, "--batch-id", "1", "--apply", "--min-idle", "0s"])
    assert in_order(job.delivered + job.delivered[4:]) == run_with(function)


def test_wrong_arguments_of_idempotent_are_refused():
    for wrong, message in (
        (lambda: idempotent(print), "either a location"),
        (lambda: idempotent(print, "x", written=lambda *_: True), "either a location"),
        (lambda: idempotent(print, "x", record_first="no"), "record_first"),  # type: ignore[arg-type]
        (lambda: idempotent(3, "x"), "requires a function"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match=message):
            wrong()
