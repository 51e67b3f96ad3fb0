"""A micro-batch is written once by any sink that keeps the contract, whatever fails."""

import contextlib
import functools
import pickle
import re
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import statelog as sl
from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import FencedError, UnavailableError, UsageError
from statelog.spark import (
    DatabaseSink,
    ExactlyOnceSink,
    IcebergSink,
    KafkaSink,
    SinkBatch,
    exactly_once,
    idempotent,
)
from statelog.spark.stream.sinks import exactly_once_sink as module
from statelog.spark.stream.sinks.exactly_once_sink import ExactlyOnce
from statelog.store.encryption import EncryptionKeys
from statelog.testing.sink_contract import (
    WRITER,
    Killed,
    SinkContract,
    batch,
    deliver,
    key_and_value,
)


class Target:
    """Rows and records in memory, which all sinks of a test share."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.records: dict[str, str] = {}
        self.lock = threading.Lock()
        self.commit_fault: BaseException | None = None


class MemorySink:
    """
    A sink of a `Target`, whose calls fail as a list says.

    Args:
        target: The target.
        faults: One for each call of `write` or `last_committed`; None for a call that succeeds.
    """

    def __init__(self, target: Target, faults: Iterable[str | None] = ()) -> None:
        self._target = target
        self._faults = iter(faults)
        self.calls: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _another, (id(self._target),)

    def last_committed(self, writer: str) -> DeliveredBatch | None:
        self.calls.append("ask")
        self._fail("before")
        record = self._target.records.get(writer)
        return None if record is None else DeliveredBatch.from_text(record, where="the target")

    def write(self, rows: SinkBatch) -> None:
        self.calls.append(f"write {rows.batch_id}")
        fault = self._fail("before")
        with self._target.lock:
            record = self._target.records.get(rows.writer)
            last = None if record is None else DeliveredBatch.from_text(record, where="the target")
            rows.check_next(last, target="the target")
            staged = [*self._target.rows, *key_and_value(rows)]
            if self._target.commit_fault is not None:
                raise self._target.commit_fault
            self._target.rows, self._target.records[rows.writer] = staged, rows.record
        if fault == "lost answer":
            raise UnavailableError("the answer was lost")
        if fault == "late error":
            raise RuntimeError("the client has a bug")

    def close(self) -> None:
        self.calls.append("close")

    def _fail(self, fault: str) -> str | None:
        planned = next(self._faults, None)
        if planned == fault:
            raise UnavailableError("the target is away")
        return planned


TARGETS: dict[int, Target] = {}


def _another(target: int) -> MemorySink:
    return MemorySink(TARGETS[target])


class TestMemorySink(SinkContract):
    @pytest.fixture
    def sink(self) -> Iterator[MemorySink]:
        target = Target()
        TARGETS[id(target)] = target
        yield MemorySink(target)
        del TARGETS[id(target)]

    def stored(self, sink: ExactlyOnceSink) -> Sequence[tuple[str, str]]:
        assert isinstance(sink, MemorySink)
        return sink._target.rows

    @contextlib.contextmanager
    def killed_before_commit(self, sink: ExactlyOnceSink) -> Iterator[None]:
        assert isinstance(sink, MemorySink)
        sink._target.commit_fault = Killed()
        yield
        sink._target.commit_fault = None


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(module, "pause", pauses.append)
    return pauses


def batch_of(number: int, rows: pa.Table) -> SinkBatch:
    after = batch(number - 1) if number else None
    return replace(batch(number, after=after), rows=rows)


def run(faults: Sequence[str | None], *numbers: int) -> MemorySink:
    sink = MemorySink(Target(), iter(faults))
    function = ExactlyOnce(sink)
    for number in numbers:
        deliver(function, batch(number))
    return sink


def test_the_target_is_asked_once_in_a_run() -> None:
    assert ["ask", "write 0", "write 1", "write 2"] == run([], 0, 1, 2).calls


def test_after_an_error_the_target_is_asked_before_the_next_write(no_pause: list[float]) -> None:
    assert ["ask", "write 0", "ask", "write 0", "write 1"] == run([None, "before"], 0, 1).calls
    assert 1 == len(no_pause)
    assert ["ask", "write 0", "ask", "write 1"] == run([None, "lost answer"], 0, 1).calls
    assert ["ask", "write 0", "ask", "write 1"] == run([None, "late error"], 0, 1).calls


def test_a_target_that_stays_away_ends_the_query_after_five_attempts(no_pause: list[float]) -> None:
    with pytest.raises(UnavailableError, match="the target is away"):
        run(["before"] * 99, 0)
    assert 4 == len(no_pause)
    assert 10 > sum(no_pause) == pytest.approx(sum(sorted(no_pause)))


# To ask Kafka is to take over from the driver that runs.
@pytest.mark.parametrize(
    ("fault", "again"),
    [(ValueError("the target refuses"), ["ask"]), (FencedError("the target refuses"), [])],
)
def test_an_error_that_does_not_pass_is_raised_and_a_fenced_driver_does_not_ask_again(
    fault: Exception, again: list[str], no_pause: list[float]
) -> None:
    target = Target()
    target.commit_fault = fault
    sink = MemorySink(target)
    with pytest.raises(type(fault), match="the target refuses"):
        deliver(ExactlyOnce(sink), batch(0))
    assert (["ask", "write 0", *again], []) == (sink.calls, no_pause)


@pytest.mark.parametrize("record", [batch(3).record, batch(0, location="b").record, None])
def test_a_driver_that_another_one_has_overtaken_is_fenced(record: str | None) -> None:
    target = Target()
    function = ExactlyOnce(MemorySink(target))
    deliver(function, batch(0))
    target.records = {} if record is None else {WRITER: record}
    with pytest.raises(FencedError, match=r"is at batch 1 .*: a second driver is running"):
        deliver(function, batch(1))
    assert list(key_and_value(batch(0))) == target.rows


@pytest.mark.parametrize(("number", "is_warned"), [(5, True), (7, True), (8, False)])
def test_a_rewound_query_warns_of_batches_that_were_given_up(
    number: int, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target()
    target.records[WRITER] = batch(7).record
    deliver(ExactlyOnce(MemorySink(target)), batch(number, timeline=2))
    warning = f"contains batches up to 7 of timeline 0, .* with batch {number}: delete the rows"
    assert is_warned == (re.search(warning, caplog.text) is not None)
    assert batch(number, timeline=2).record == target.records[WRITER]


def test_a_batch_without_rows_is_not_written() -> None:
    sink = MemorySink(Target())
    function = ExactlyOnce(sink)
    deliver(function, replace(batch(0), rows=batch(0).rows.slice(0, 0)))
    assert ["ask"] == sink.calls


def test_close_closes_the_sink_and_forgets_its_answer() -> None:
    target = Target()
    sink = MemorySink(target)
    function = ExactlyOnce(sink)
    deliver(function, batch(0))
    function.close()
    target.records[WRITER] = batch(1).record
    deliver(function, batch(1))
    assert ["ask", "write 0", "close", "ask"] == sink.calls


def test_an_object_that_is_not_a_sink_is_rejected_at_the_call() -> None:
    with pytest.raises(UsageError, match=r"last_committed, write and close, not .*use idempotent"):
        exactly_once(print)  # type: ignore[arg-type]


# --- the arguments of a database sink --------------------------------------------------------------


def database(path: Path, statement: str) -> Callable[..., sqlite3.Connection]:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.close()
    return functools.partial(sqlite3.connect, path, check_same_thread=False)


def select(path: Path, query: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_rows_of_a_key_replace_each_other(tmp_path: Path) -> None:
    path = tmp_path / "d"
    connect = database(
        path, 'create table t ("the key" text, n int, v text, primary key ("the key", n))'
    )
    sink = DatabaseSink(connect, "t", key=["the key", "n"])
    for number, rows in enumerate(
        [[("a", 1, "x"), ("b", 1, "x"), ("a", 1, "y")], [("a", 1, "z"), ("a", 2, "new")]]
    ):
        table = pa.table(dict(zip(("the key", "n", "v"), zip(*rows, strict=True), strict=True)))
        sink.write(batch_of(number, table))
    assert [("a", 1, "z"), ("a", 2, "new"), ("b", 1, "x")] == select(
        path, "select * from t order by 1, 2"
    )
    with pytest.raises(UsageError, match="lack the key columns the key; they have n, v"):
        sink.write(batch_of(2, table.drop(["the key"])))
    assert batch(1).batch == sink.last_committed(WRITER)
    sink.close()
    connect = database(path, "create table keys (v int primary key)")
    keys = DatabaseSink(connect, "main.keys", key=["v"], batches_table="batches_of_keys")
    keys.write(batch_of(0, pa.table({"v": [1, 2, 1]})))
    assert [(1,), (2,)] == select(path, "select * from keys")
    keys.close()


def test_a_connection_in_autocommit_mode_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "d"
    connect = database(path, "create table t (key text, value text)")
    sink = DatabaseSink(functools.partial(connect, isolation_level=None), "t")
    for _ in range(2):
        with pytest.raises(UsageError, match="autocommit mode"):
            sink.last_committed(WRITER)
    assert [] == select(path, "select * from statelog_batches")
    DatabaseSink(connect, "t").write(batch(0))


def test_a_database_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="unable to open"):
        DatabaseSink(functools.partial(sqlite3.connect, tmp_path / "no" / "d"), "t").write(batch(0))


def test_an_error_of_the_rows_is_raised_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "d"
    sink = DatabaseSink(database(path, "create table t (key text check (key < 'x'))"), "t")
    rows = pa.table({"key": ["a", "z"]})
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        sink.write(batch_of(0, rows))
    assert ([], None) == (select(path, "select * from t"), sink.last_committed(WRITER))
    sink.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("totals.db", "t"), "a function that connects"),
        ((sqlite3.connect, "t", "key"), "key must be a list of columns"),
        ((sqlite3.connect, "t", (), "named"), "paramstyle must be one of"),
    ],
)
def test_wrong_arguments_of_a_database_sink(arguments: tuple[Any, ...], text: str) -> None:
    names = ("connect", "table", "key", "paramstyle")
    with pytest.raises(UsageError, match=text):
        DatabaseSink(**dict(zip(names, arguments, strict=False)))


def test_a_driver_with_another_paramstyle_is_named(tmp_path: Path) -> None:
    class Odd:
        def cursor(self) -> "Odd":
            return self

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: None

    with pytest.raises(UsageError, match=r"the driver of .*Odd uses the paramstyle ''"):
        DatabaseSink(Odd, "t").last_committed(WRITER)  # type: ignore[arg-type]


def test_a_driver_that_its_pickle_imports_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DatabaseSink(database(tmp_path / "d", "create table t (key text, value text)"), "t")
    monkeypatch.delitem(sys.modules, "sqlite3")
    sink.write(batch(0))
    sink.close()


def test_the_function_can_be_pickled(tmp_path: Path) -> None:
    path = tmp_path / "d"
    connect = database(path, "create table t (key text, value text)")
    function = exactly_once(DatabaseSink(connect, "t"))
    deliver(function, batch(0))
    copy = pickle.loads(pickle.dumps(function))
    assert copy.has(WRITER, batch(0).batch)
    copy.close()
    function.close()


# --- the arguments of a Kafka sink, without a broker ------------------------------------------------


def test_wrong_settings_of_a_kafka_sink() -> None:
    with pytest.raises(UsageError, match=r"requires the setting 'bootstrap\.servers'"):
        KafkaSink("topic", {})
    with pytest.raises(UsageError, match=r"sets transactional\.id itself: omit it"):
        KafkaSink("topic", {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "mine"})


def test_rows_that_are_no_records_are_rejected_before_the_broker_is_asked() -> None:
    sink = KafkaSink("topic", {"bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.1)
    with pytest.raises(UsageError, match=r"needs a column value, .* but it has the columns key, n"):
        sink.write(batch_of(0, pa.table({"key": ["a"], "n": [1]})))
    with pytest.raises(UsageError, match="the column value for Kafka has the type int64: cast it"):
        sink.write(batch_of(0, pa.table({"value": [1]})))


def test_a_broker_that_does_not_answer_is_unavailable() -> None:
    sink = KafkaSink("topic", {"bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.1)
    with pytest.raises(UnavailableError, match=r"cannot read the last batch of .* topic topic"):
        sink.last_committed(WRITER)
    sink.close()


HIDDEN = "shown-by-mistake"
WRONG = {
    "a connection": lambda: exactly_once(functools.partial(sqlite3.connect, password=HIDDEN)),
    "settings": lambda: exactly_once({"sasl.password": HIDDEN}),
    "a function": lambda: idempotent({"password": HIDDEN}, "location"),
    "a text": lambda: DatabaseSink(f"host=example password={HIDDEN}", "totals"),
    "a secret": lambda: DatabaseSink(HIDDEN, "totals"),
    "a key": lambda: DatabaseSink(sqlite3.connect, "totals", key=HIDDEN),
    "properties": lambda: IcebergSink({"token": HIDDEN}),
    "options": lambda: sl.open("/location", storage_options=f"secret_access_key={HIDDEN}"),
    "a key as an id": lambda: EncryptionKeys({f"/{HIDDEN}": b""}),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_does_not_show_what_may_be_a_password(name):
    with pytest.raises(UsageError) as caught:
        WRONG[name]()
    report = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value.facts)
    assert HIDDEN not in report
