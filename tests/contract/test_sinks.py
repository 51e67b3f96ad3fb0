"""Every sink for `exactly_once` does what the contract says, on real targets."""

import contextlib
import functools
import itertools
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.processes.killed_sink import killed_in
from tests.support.servers.kafka_reader import committed_records, make_topic
from tests.support.servers.sink_servers import kafka_broker, postgres_server

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError, UnavailableError, UsageError
from statelog.extensions.sinks import database, iceberg, kafka
from statelog.spark import DatabaseSink, ExactlyOnceSink, IcebergSink, KafkaSink
from statelog.spark.stream.sinks.exactly_once_sink import ExactlyOnce
from statelog.testing.sink_contract import (
    LOCATION,
    WRITER,
    SinkContract,
    batch,
    deliver,
    key_and_value,
)

TABLES = itertools.count()
CREATE = "create table {} (key text not null, value text not null)"


class DatabaseContract(SinkContract):
    def killed_before_commit(self, sink: ExactlyOnceSink) -> Any:
        return killed_in(database)


class TestSqlite(DatabaseContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[DatabaseSink]:
        self.path = tmp_path / "target.db"
        self.connect = functools.partial(
            sqlite3.connect, self.path, check_same_thread=False, timeout=20
        )
        with contextlib.closing(self.connect()) as connection:
            connection.execute(CREATE.format("totals"))
        with contextlib.closing(DatabaseSink(self.connect, "totals")) as sink:
            yield sink

    def stored(self, sink: ExactlyOnceSink) -> Sequence[tuple[str, str]]:
        with contextlib.closing(self.connect()) as connection:
            return connection.execute("select key, value from totals").fetchall()

    def test_a_locked_database_is_unavailable_unlike_a_missing_table(
        self, sink: DatabaseSink
    ) -> None:
        connect = functools.partial(self.connect, timeout=0)
        with contextlib.closing(DatabaseSink(connect, "totals")) as impatient:
            assert impatient.last_committed(WRITER) is None
            with contextlib.closing(self.connect()) as lock:
                lock.execute("begin exclusive")
                with pytest.raises(UnavailableError, match="database is locked"):
                    impatient.write(batch(0))
            impatient.write(batch(0))
        wrong = DatabaseSink(connect, "missing")
        with pytest.raises(sqlite3.OperationalError, match="no such table: missing"):
            self.write(wrong, batch(1))
        self.check(sink, 0)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    pytest.importorskip("psycopg", reason="PostgreSQL's driver: pip install 'psycopg[binary]'")
    with postgres_server() as address:
        yield address


@pytest.mark.campaign
class TestPostgres(DatabaseContract):
    @pytest.fixture
    def sink(self, postgres: str) -> Iterator[DatabaseSink]:
        import psycopg

        self.connect = functools.partial(psycopg.connect, postgres)
        self.schema = f"s{os.getpid()}_{next(TABLES)}"
        with self.connect() as connection:
            connection.execute(f"create schema {self.schema}")
            connection.execute(CREATE.format(f"{self.schema}.totals"))
        with contextlib.closing(self.another_sink()) as sink:
            yield sink

    def another_sink(self) -> DatabaseSink:
        batches = f"{self.schema}.batches"
        return DatabaseSink(self.connect, f"{self.schema}.totals", batches_table=batches)

    def stored(self, sink: ExactlyOnceSink) -> Sequence[tuple[str, str]]:
        with self.connect() as connection:
            return connection.execute(f"select key, value from {self.schema}.totals").fetchall()

    def test_a_driver_waits_for_the_transaction_of_another(self, sink: DatabaseSink) -> None:
        """The commit of a driver that lost the answer may come after the next driver has asked."""
        assert sink.last_committed(WRITER) is None
        with self.connect() as slow:
            slow.execute(
                f"insert into {self.schema}.batches (writer, batch) values (%s, %s)",
                (WRITER, batch(0).record),
            )
            for row in key_and_value(batch(0)):
                slow.execute(f"insert into {self.schema}.totals values (%s, %s)", row)
            assert sink.last_committed(WRITER) is None
            driver = ExactlyOnce(sink)
            thread = threading.Thread(target=deliver, args=(driver, batch(0)))
            thread.start()
            thread.join(0.5)
            assert thread.is_alive(), "it waits"
            slow.commit()
            thread.join(30)
        self.check(sink, 0)

    def test_rows_of_a_key_replace_each_other(self, sink: DatabaseSink) -> None:
        with self.connect() as connection:
            connection.execute(f"create table {self.schema}.t (k bigint primary key, v text)")
        with contextlib.closing(
            DatabaseSink(
                self.connect, f"{self.schema}.t", key=["k"], batches_table=f"{self.schema}.batches"
            )
        ) as upsert:
            first = pa.table({"k": [1, 2, 1], "v": ["a", "b", "c"]})
            self.write(upsert, replace(batch(0), rows=first))
            self.write(upsert, replace(batch(1), rows=pa.table({"k": [2], "v": [None]})))
        with self.connect() as connection:
            rows = connection.execute(f"select k, v from {self.schema}.t order by k").fetchall()
        assert [(1, "c"), (2, None)] == rows

    def test_a_connection_in_autocommit_mode_is_rejected(self, sink: DatabaseSink) -> None:
        connect = functools.partial(self.connect, autocommit=True)
        with pytest.raises(UsageError, match="autocommit mode"):
            DatabaseSink(connect, f"{self.schema}.totals").last_committed(WRITER)

    def test_a_lost_connection_is_unavailable(self, sink: DatabaseSink) -> None:
        sink.write(batch(0))
        with self.connect(autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where pid <> pg_backend_pid() and usename = 'statelog'"
            )
        with pytest.raises(UnavailableError, match="cannot write batch 1"):
            sink.write(batch(1, after=batch(0)))
        self.write(sink, batch(1))
        self.check(sink, 0, 1)


class TestIceberg(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[IcebergSink]:
        pytest.importorskip(
            "sqlalchemy", reason="the SQL catalog: pip install 'pyiceberg[sql-sqlite]'"
        )
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"file://{tmp_path}/warehouse",
        }
        with contextlib.closing(self.catalog()) as catalog:
            catalog.create_namespace("sales")
        with contextlib.closing(self.another_sink()) as sink:
            yield sink

    def another_sink(self, table: str = "sales.totals") -> IcebergSink:
        return IcebergSink(table, catalog="test", catalog_options=self.properties)

    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("test", **self.properties)

    def table(self) -> Any:
        return self.catalog().load_table("sales.totals")

    def stored(self, sink: ExactlyOnceSink) -> Sequence[tuple[str, str]]:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            rows = self.table().scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        return [(row["key"], row["value"]) for row in rows]

    def killed_before_commit(self, sink: ExactlyOnceSink) -> Any:
        return killed_in(iceberg)

    def test_a_snapshot_names_its_batch(self, sink: IcebergSink) -> None:
        sink.write(batch(0))
        self.write(sink, batch(7))
        summaries = [snapshot.summary for snapshot in self.table().metadata.snapshots]
        names = ("statelog.writer", "statelog.batch-id")
        named = [tuple(summary[name] for name in names) for summary in summaries]
        assert [(WRITER, "0"), (WRITER, "7")] == named

    def test_the_batch_is_known_after_other_snapshots_expired(self, sink: IcebergSink) -> None:
        sink.write(batch(4))
        table = self.table()
        for _ in range(3):
            table.append(pa.table({"key": ["other"], "value": ["other"]}))
        table.overwrite(table.scan().to_arrow())  # a compaction
        old = [snapshot.snapshot_id for snapshot in table.metadata.snapshots[:-1]]
        table.maintenance.expire_snapshots().by_ids(old).commit()
        assert 1 == len(self.table().metadata.snapshots)
        later = self.another_sink()
        assert batch(4).batch == later.last_committed(WRITER)
        self.refuses(later, batch(4, "again"))
        expected = [*key_and_value(batch(4)), *[("other", "other")] * 3]
        assert sorted(expected) == sorted(self.stored(sink))

    @pytest.mark.parametrize("rival", ["the same batch", "another table writer"])
    def test_a_commit_that_another_one_preceded(
        self, sink: IcebergSink, rival: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PyIceberg repeats the commit on the newest table; the sink looks at that table first."""
        sink.write(batch(0))
        other = self.another_sink()
        raced: list[bool] = []

        def race(_: str) -> None:
            if raced:
                return
            raced.append(True)
            if rival == "the same batch":
                self.write(other, batch(1))
            else:
                self.table().append(pa.table({"key": ["other"], "value": ["other"]}))

        monkeypatch.setattr(iceberg, "fail_point", race)
        if rival == "the same batch":
            with pytest.raises(
                UnavailableError, match="second driver is writing to the Iceberg table"
            ):
                sink.write(batch(1, after=batch(0)))
            self.check(sink, 0, 1)
        else:
            self.write(sink, batch(1))
            rows = [*key_and_value(batch(0)), *key_and_value(batch(1)), ("other", "other")]
            assert sorted(rows) == sorted(self.stored(sink))
            assert batch(1).batch == sink.last_committed(WRITER)
        assert raced

    @pytest.mark.parametrize("failures_before", range(6))
    @pytest.mark.parametrize("is_expired", [False, True])
    def test_no_file_of_a_commit_that_landed_is_deleted(
        self,
        sink: IcebergSink,
        failures_before: int,
        is_expired: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The catalog stores the commit and answers that it failed, at each of PyIceberg's attempts."""
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import CommitFailedException

        self.write(sink, batch(0))
        self.hasten()
        attempts = 0

        def commit(*arguments: Any) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts <= failures_before:
                raise CommitFailedException("another writer was first")
            monkeypatch.setattr(SqlCatalog, "commit_table", stored)
            answer = stored(*arguments)
            if is_expired:
                self.append_and_expire()
            if attempts == failures_before + 1:
                raise CommitFailedException("the answer was lost")
            return answer

        stored = SqlCatalog.commit_table
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        expected = [*key_and_value(batch(0)), *key_and_value(batch(1))]
        deliver(ExactlyOnce(sink), batch(1))
        assert attempts == failures_before + 1
        other = [("other", "other")] if is_expired else []
        assert sorted([*expected, *other]) == sorted(self.stored(sink))
        assert batch(1).batch == sink.last_committed(WRITER)

    def test_no_file_of_an_earlier_attempt_that_landed_late_is_deleted(
        self, sink: IcebergSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second attempt meets the first one, which the catalog stored after the table was read again."""
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import CommitFailedException

        self.write(sink, batch(0))
        self.hasten()
        waiting: list[Any] = []

        def commit(*arguments: Any) -> Any:
            if not waiting:
                waiting.append(arguments)
                raise CommitFailedException("under way")
            monkeypatch.setattr(SqlCatalog, "commit_table", stored)
            stored(*waiting.pop())
            return stored(*arguments)

        stored = SqlCatalog.commit_table
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        self.write(sink, batch(1))
        self.check(sink, 0, 1)

    def hasten(self) -> None:
        """Let PyIceberg repeat a commit without pauses."""
        with self.table().transaction() as transaction:
            transaction.set_properties({"commit.retry.min-wait-ms": "1"})

    def append_and_expire(self) -> None:
        """Add a snapshot of another writer, and expire the others."""
        self.table().append(pa.table({"key": ["other"], "value": ["other"]}))
        table = self.table()
        newest = table.metadata.current_snapshot_id
        old = {snapshot.snapshot_id for snapshot in table.metadata.snapshots} - {newest}
        table.maintenance.expire_snapshots().by_ids(list(old)).commit()

    @pytest.mark.parametrize("moment", ["read", "write"])
    def test_a_locked_catalog_is_unavailable(self, sink: IcebergSink, moment: str) -> None:
        self.write(sink, batch(0))
        self.properties["uri"] += "?timeout=0"
        impatient = self.another_sink()
        path = self.properties["uri"].removeprefix("sqlite:///").partition("?")[0]
        with contextlib.closing(sqlite3.connect(path)) as lock:
            lock.execute("begin exclusive")
            with pytest.raises(UnavailableError, match=r"sales\.totals: .*database is locked"):
                if moment == "read":
                    impatient.last_committed(WRITER)
                else:
                    self.write(impatient, batch(1))
        self.write(impatient, batch(1))
        impatient.close()
        self.check(sink, 0, 1)

    @pytest.mark.parametrize(
        ("status", "is_unavailable"),
        [(400, False), (401, False), (403, False), (408, True), (422, False), (429, True)]
        + [(status, True) for status in (500, 502, 503, 504, 520, 599)],
    )
    def test_answers_of_a_rest_catalog_that_may_pass(
        self, sink: IcebergSink, status: int, is_unavailable: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from pyiceberg.catalog.rest.response import _handle_non_200_response
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import RESTError
        from requests import HTTPError, Response

        response = Response()
        response.status_code = status

        def refuse(*arguments: Any) -> None:
            _handle_non_200_response(HTTPError(response=response), {})

        self.write(sink, batch(0))
        with monkeypatch.context() as patch:
            patch.setattr(SqlCatalog, "load_table", refuse)
            with pytest.raises(UnavailableError if is_unavailable else RESTError):
                sink.last_committed(WRITER)
            with pytest.raises(UnavailableError if is_unavailable else RESTError):
                self.write(sink, batch(1))
        self.write(sink, batch(1))
        self.check(sink, 0, 1)

    def test_rows_get_the_types_of_the_table(self, sink: IcebergSink) -> None:
        moment = pa.array([1_700_000_000_000_000], pa.timestamp("us", "Europe/Berlin"))
        rows = pa.table(
            {
                "small": pa.array([1], pa.int16()),
                "at": moment,
                "nested": pa.array(
                    [{"at": 1}], pa.struct([("at", pa.timestamp("us", "Asia/Tokyo"))])
                ),
            },
            schema=None,
        )
        sink.write(batch(0))
        table = self.another_sink("sales.typed")
        with self.catalog() as catalog:
            from pyiceberg.schema import Schema
            from pyiceberg.types import IntegerType, NestedField, StructType, TimestamptzType

            inner = StructType(NestedField(4, "at", TimestamptzType()))
            catalog.create_table(
                "sales.typed",
                Schema(
                    NestedField(1, "small", IntegerType(), required=True),
                    NestedField(2, "at", TimestamptzType()),
                    NestedField(3, "nested", inner),
                ),
            )
            table.write(replace(batch(0), rows=rows))
            read = catalog.load_table("sales.typed").scan().to_arrow()
        assert [1] == read["small"].to_pylist()
        assert moment.cast(pa.timestamp("us", "UTC")).to_pylist() == read["at"].to_pylist()
        with pytest.raises(UsageError, match="also has extra: select only the table's columns"):
            self.write(table, replace(batch(1), rows=pa.table({"extra": [1]})))
        table.close()

    def test_a_name_without_namespace_is_rejected(self) -> None:
        with pytest.raises(UsageError, match=r"'sales\.totals', not 'totals'"):
            IcebergSink("totals")

    def test_a_missing_namespace_is_named(self, sink: IcebergSink) -> None:
        from pyiceberg.exceptions import NoSuchNamespaceError

        with pytest.raises(NoSuchNamespaceError, match="nowhere"):
            self.another_sink("nowhere.totals").write(batch(0))


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    pytest.importorskip("confluent_kafka", reason="Kafka's client: pip install confluent-kafka")
    with kafka_broker() as address:
        yield address


@pytest.mark.campaign
class TestKafka(SinkContract):
    @pytest.fixture
    def sink(self, broker: str) -> Iterator[KafkaSink]:
        self.topic = f"totals-{os.getpid()}-{next(TABLES)}"
        self.config = {"bootstrap.servers": broker}
        make_topic(broker, self.topic)
        with contextlib.closing(KafkaSink(self.topic, self.config, timeout_s=10)) as sink:
            yield sink

    def stored(self, sink: ExactlyOnceSink) -> Sequence[tuple[str, str]]:
        return committed_records(self.config["bootstrap.servers"], self.topic)

    def killed_before_commit(self, sink: ExactlyOnceSink) -> Any:
        return killed_in(kafka)

    def last(self, sink: ExactlyOnceSink, writer: str = WRITER) -> DeliveredBatch | None:
        """Tansu does not store the metadata of offsets, so location and plan are unknown."""
        last = sink.last_committed(writer)
        assert last is None or "" == last.location_id == last.plan
        return None if last is None else replace(last, location_id=LOCATION)

    def test_a_record_names_location_timeline_and_plan(self, sink: ExactlyOnceSink) -> None:
        for timeline, number in ((0, 4), (17, 2), (18, 3)):
            self.write(sink, batch(number, timeline=timeline))
            assert batch(number, timeline=timeline).batch == self.last(sink)

    @pytest.mark.parametrize("number", [2, 3])
    def test_another_history_under_the_same_or_an_earlier_number_is_a_gap(  # type: ignore[override]
        self, sink: ExactlyOnceSink, number: int
    ) -> None:
        self.write(sink, batch(4))
        driver = ExactlyOnce(sink)
        with pytest.raises(CheckpointError, match="batch 4, which the query has not reached"):
            deliver(driver, batch(number))
        self.check(sink, 4)
