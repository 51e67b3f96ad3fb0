"""The pandas flavour and initial state against Spark's own, over restarts and a crash."""

import datetime as dt
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from tests.spark.streams import BatchSource, Job, run_on_spark, workers_get_by_value
from tests.spark.versions import needs

from statelog.errors import ProcessorError, UsageError
from statelog.spark import StatefulProcessor, transform_with_state, transform_with_state_in_pandas

workers_get_by_value(__name__)

INPUT = (
    "key string, `order id` bigint, small tinyint, ratio float, flag boolean, at timestamp, "
    "ntz timestamp_ntz, price decimal(10,2), tags array<string>, extra struct<x:int,y:string>, "
    "counts map<string,int>, raw binary, day date"
)
OUTPUT = "key string, n bigint, total double, latest timestamp, seen string, prices decimal(12,2)"
INITIAL = "who string, n bigint, note string"


class Describing(StatefulProcessor):
    """Keeps totals, and tells exactly what it was given."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, total double, latest timestamp")
        self.notes = handle.getListState("notes", "note string, n int")
        self.days = handle.getMapState("days", "day date", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        n, total, _ = self.total.get() or (0, 0.0, None)
        self.total.update((n + initialState["n"].sum(), total, None))
        described = f"{list(initialState.columns)} {list(initialState.index)}"
        self.notes.appendValue(
            (f"{key} {described} {list(initialState['note'])}", len(initialState))
        )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n, total, latest = self.total.get() or (0, 0.0, None)
        seen = [f"{note} {count}" for note, count in self.notes.get()]
        prices = decimal.Decimal(0)
        for frame in rows:
            n += frame["small"].count()
            total += frame["ratio"].sum()
            latest = frame["at"].max()
            prices += frame["price"].sum()
            for day in frame["day"]:
                self.days.updateValue((day,), ((self.days.getValue((day,)) or (0,))[0] + 1,))
            dtypes = {name: str(kind) for name, kind in frame.dtypes.items()}
            cells = [
                [f"{type(c).__name__} {c}" for c in row] for row in frame.to_numpy(dtype=object)
            ]
            seen.append(f"{dtypes} {list(frame.index)} {cells}")
        self.total.update((n, total, latest))
        days = sorted((str(day), count) for (day,), (count,) in self.days.iterator())
        yield pd.DataFrame(
            {
                "seen": [f"{key} {seen} {days}"],
                "key": [key[0]],
                "n": [n],
                "total": [total],
                "latest": [latest],
                "prices": [prices],
            }
        )

    def close(self) -> None:
        pass


def order(key: str, number: int) -> tuple[Any, ...]:
    at = dt.datetime(2024, 7, 1, 12, number, tzinfo=dt.UTC)
    return (
        key,
        number,
        number,
        number / 4,
        None if number == 3 else number % 2 == 0,
        at,
        dt.datetime(2024, 7, 1, 3, number),
        decimal.Decimal(number) / 4,
        ["a", None] if number % 2 else [],
        {"x": number, "y": "z"},
        [("a", number)],
        b"\0raw",
        dt.date(2024, 7, 1 + number % 3),
    )


BATCHES = [
    [order("a", 1), order("b", 2), order("a", 3), order("c", 4), order("a", 5)],
    [order("d", 6), order("b", 7), order("a", 8), order("a", 9)],
]
INITIAL_ROWS = [("a", 10, "one"), ("z", 20, None), ("a", 30, "two"), ("d", 40, "three")]


@needs((4, 2), "frames that are cut by their limit alone")
def test_frames_and_initial_state_beside_spark(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    try:
        source = BatchSource(spark, tmp_path / "input", INPUT)
        initial = spark.createDataFrame(INITIAL_ROWS, INITIAL).groupBy("who")
        options = {"transform": transform_with_state_in_pandas, "initialState": initial}
        job = Job(source, tmp_path, ["key"], Describing(), OUTPUT, options)
        source.add(BATCHES[0])
        job.run()
        source.add(BATCHES[1])
        job.run(tasks=3, delivery="direct")
        theirs = run_on_spark(job, initial=initial)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    ours = job.take()
    assert len(ours) == len(theirs) == 2
    for mine, wanted in zip(ours, theirs, strict=True):
        assert sorted(mine) == sorted(wanted)
    assert job.progress[0].keys == 5  # z has initial state only
    assert {row.key: row.n for row in ours[1]} == {"a": 45, "b": 2, "d": 41}


class Opening(StatefulProcessor):
    """Row flavour: opening balances from initial state, some with a timer."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.balance = handle.getValueState("balance", "balance bigint")
        self.calls = handle.getListState("calls", "call string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        (balance,) = self.balance.get() or (0,)
        self.balance.update((balance + initialState.n,))
        self.calls.appendValue((f"{key} {initialState!r}",))
        if initialState.note == "timer":
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (balance,) = self.balance.get() or (0,)
        balance += sum(row.amount for row in rows)
        if self.fails:
            raise OSError("out of order")
        self.balance.update((balance,))
        yield Row(key=key[0], balance=balance, calls=sorted(call for (call,) in self.calls.get()))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(key=key[0], balance=self.balance.get()[0], calls=["timer"])

    def close(self) -> None:
        pass


ROW_OUTPUT = "key int, balance bigint, calls array<string>"
OPENINGS = [(1, 100, "a"), (3, 7, "timer"), (1, 11, "timer"), (2, 5, None)]


def test_initial_state_of_rows_is_seen_once_over_crash_and_replay(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = BatchSource(spark, tmp_path / "input", "key int, amount bigint")
    openings = spark.createDataFrame(OPENINGS, "id int, n bigint, note string")
    # Computed keys on one side only: both sides have their own layout.
    initial = openings.groupBy((openings.id + 0).alias("k"))
    options = {"initialState": initial, "timeMode": "ProcessingTime"}
    job = Job(source, tmp_path, ["key"], Opening(), ROW_OUTPUT, options)
    source.add([(1, -5), (2, 1), (4, 4), (1, -6)])
    with pytest.raises(Exception, match="out of order"):
        job.run(processor=Opening(fails=True))
    assert not job.take()

    def crash(frame: DataFrame, batch_id: int) -> None:
        job.collect(frame, batch_id)
        raise OSError("the sink is gone")

    with pytest.raises(Exception, match="the sink is gone"):
        job.run(crash)
    job.run()  # the same batch, replayed
    first, replayed = job.take()
    assert sorted(first, key=repr) == sorted(replayed, key=repr)
    calls = ["(1,) Row(id=1, n=100, note='a')", "(1,) Row(id=1, n=11, note='timer')"]
    assert sorted(first, key=repr) == [
        Row(key=1, balance=100, calls=calls),
        Row(key=1, balance=100, calls=["timer"]),
        Row(key=2, balance=6, calls=["(2,) Row(id=2, n=5, note=None)"]),
        Row(key=3, balance=7, calls=["timer"]),
        Row(key=4, balance=4, calls=[]),
    ]
    source.add([(3, 1), (1, 1)])
    job.run(tasks=1)
    ((one, three),) = map(sorted, job.take())
    assert (one.balance, three.balance) == (101, 8)

    theirs = run_on_spark(job, "ProcessingTime", openings.groupBy("id"))
    assert sorted(theirs[0], key=repr) == sorted(first, key=repr)

    frame = spark.createDataFrame([(1, -5), (2, 1), (4, 4), (1, -6)], "key int, amount bigint")
    whole = transform_with_state(
        frame.groupBy("key"), Opening(), ROW_OUTPUT, "Update", "ProcessingTime", initial, tasks=2
    )
    assert sorted(whole.collect(), key=repr) == sorted(first, key=repr)


class Unfit(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield pd.DataFrame({"key": ["x" if key[0] == 2 else key[0]]})

    def close(self) -> None:
        pass


def test_wrong_arguments_and_frames_are_named(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "input", "key int, amount bigint")
    source.add([(1, 1), (2, 1)])
    options = {"transform": transform_with_state_in_pandas}
    job = Job(source, tmp_path, ["key"], Unfit(), "key int", options)
    with pytest.raises(Exception, match="key object") as raised:
        job.run(tasks=1)
    assert ProcessorError.__name__ in str(raised.value)
    with pytest.raises(UsageError, match=r"grouped by \(string\), the stream by \(int\)"):
        job.start(initialState=spark.createDataFrame([("a",)], "k string").groupBy("k"))
    with pytest.raises(UsageError, match="this is a stream"):
        job.start(initialState=source.frame().groupBy("key"))
