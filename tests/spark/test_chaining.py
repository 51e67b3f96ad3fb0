"""Several stateful operators in one query: one checkpoint, one object, the same rows as apart."""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.spark import processors
from tests.spark.chained_changes import BATCHES, BUCKETS, CHANGES, ChainModel, Changes
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import ROCKSDB, BatchSource, wait, workers_get_by_value
from tests.spark.versions import ROWS, row_operator
from tests.support.locations.sequence_entries import committed, objects

from statelog.checkpoint.clean_up import reachable_objects
from statelog.errors import CheckpointError, UsageError
from statelog.spark import BatchProgress, disable, enable, transform_with_state
from statelog.state.reader import StateReader
from statelog.store import PATHS, open_store

workers_get_by_value(__name__)
workers_get_by_value(processors.__name__)


class Chain:
    """A query: running totals by key, those of at least 0 counted by bucket."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.source = BatchSource(spark, folder / "in", INPUT)
        self.folder = folder
        self.state = folder / "state"
        self.delivered: list[list[Row]] = []
        self.progress: list[BatchProgress] = []

    def first(self, **settings: Any) -> DataFrame:
        settings = {
            "stateLocation": str(self.state),
            "on_progress": self.progress.append,
            **settings,
        }
        return transform_with_state(
            self.source.frame().groupBy("key"), Totals(), TOTALS, **settings
        )

    def stream(
        self, second: StatefulProcessor | None = None, initial: Any = None, **settings: Any
    ) -> DataFrame:
        first = self.first(**settings)
        steps = first.where(first.total >= 0).withColumn("bucket", F.col("key") % BUCKETS)
        return transform_with_state(
            steps.groupBy("bucket"), second or Changes(), CHANGES, initialState=initial
        )

    def run(self, stream: DataFrame | None = None, **settings: Any) -> list[list[Row]]:
        """Run over all batches there are; return the rows delivered, batch by batch."""
        self.delivered = []
        writer = (stream or self.stream(**settings)).writeStream
        writer = writer.option("checkpointLocation", str(self.folder / "query"))
        writer = writer.foreachBatch(lambda rows, _: self.delivered.append(rows.collect()))
        wait(writer.trigger(availableNow=True).start())
        return [sorted(rows) for rows in self.delivered]


@pytest.fixture
def chain(spark: SparkSession, tmp_path: Path) -> Chain:
    return Chain(spark, tmp_path)


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_two_operators_commit_one_object(chain: Chain, delivery: str) -> None:
    model = ChainModel()
    for rows in BATCHES[:3]:
        chain.source.add(rows)
    expected = [model.apply(rows) for rows in BATCHES]
    assert expected[:3] == chain.run(tasks=2, delivery=delivery)
    assert [1, 1, 1] == [report.objects for report in chain.progress]
    assert [4, 2, 1] == [report.rows for report in chain.progress]
    assert {PATHS.metadata(one) for one in committed(chain.state)} == objects(chain.state)
    for rows in BATCHES[3:]:
        chain.source.add(rows)
    # Another run, with another number of tasks, restores both operators.
    assert expected[3:] == chain.run(tasks=3, delivery=delivery)
    assert [1] * 5 == [report.objects for report in chain.progress]
    seen = read(chain, "transform_with_state_2", "seen", "bucket")
    assert model.seen == {
        bucket: (row["value.changes"], row["value.sum"]) for bucket, row in seen.items()
    }
    totals = read(chain, "transform_with_state", "total", "key")
    assert dict(model.totals.totals) == {
        key: (row["value.total"], row["value.rows"]) for key, row in totals.items()
    }


def read(chain: Chain, operator: str, variable: str, key: str) -> dict[Any, dict[str, Any]]:
    with StateReader.open(chain.state, operator=operator) as reader:
        rows = reader.table(variable).to_pylist()
    return {row[f"key.{key}"]: row for row in rows}


def test_an_operator_without_rows_is_skipped_and_keeps_its_state(chain: Chain) -> None:
    model = ChainModel()
    batches = [BATCHES[0], [(5, -9)], [(5, -9)], [(8, -1), (5, -1)], BATCHES[3]]
    for rows in batches:
        chain.source.add(rows)
    assert [model.apply(rows) for rows in batches] == chain.run(tasks=1)
    assert [[], [], []] == [[*rows] for rows in chain.delivered[1:4]]
    ids = committed(chain.state)
    newest = StateReader.open(chain.state, operator="transform_with_state_2").checkpoint
    assert {ids[0], ids[-1]} == {
        one.checkpoint_id for one in newest.log if one.key_group_range.start >= 128
    }
    chain.source.add(BATCHES[4])
    assert [model.apply(BATCHES[4])] == chain.run(tasks=2)


def test_rows_between_operators_that_are_many_use_files_and_leave_none(chain: Chain) -> None:
    model = ChainModel()
    batches = [[(key, key + batch) for key in range(3000)] for batch in range(2)]
    for rows in batches:
        chain.source.add(rows)
    expected = [model.apply(rows) for rows in batches]
    assert expected == chain.run(tasks=2, **{"stream.data-inline-threshold": 10})
    assert min(report.objects for report in chain.progress) > 2
    assert any(path.startswith("output") for path in objects(chain.state)), "of the last operator"
    needed = reachable_objects(open_store(str(chain.state)))
    assert objects(chain.state) == needed


def test_a_failure_of_the_second_operator_commits_nothing_of_the_first(chain: Chain) -> None:
    chain.source.add([(1, 5)])
    chain.source.add([(1, 8)])
    with pytest.raises(
        StreamingQueryException, match=r"Changes\.handleInputRows failed for key \(1,"
    ):
        chain.run(chain.stream(Changes(poison=13), tasks=1))
    assert {1: 5} == {
        key: row["value.total"]
        for key, row in read(chain, "transform_with_state", "total", "key").items()
    }
    assert [[(1, 2, 18)]] == chain.run(tasks=1)


def test_each_operator_may_have_initial_state(chain: Chain, spark: SparkSession) -> None:
    initial = spark.createDataFrame([(0, 100, 1000), (1, 10, 50)], CHANGES).groupBy("bucket")
    chain.source.add([(1, 5)])
    chain.source.add([(1, 5), (3, 1)])
    expected = [[(1, 11, 55)], [(0, 101, 1001), (1, 12, 65)]]
    assert expected == chain.run(chain.stream(initial=initial, tasks=2))


@ROWS
def test_an_enabled_session_chains_sparks_own_calls(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    source = BatchSource(session, tmp_path / "in", INPUT)
    for rows in BATCHES[:2]:
        source.add(rows)
    enable(session)
    session.conf.set("spark.statelog.baseLocation", "checkpoint")
    try:
        first = row_operator(source.frame().groupBy("key"))(Totals(), TOTALS, "Update", "None")
        grouped = first.where("total >= 0").withColumn("bucket", F.col("key") % 3).groupBy("bucket")
        second = row_operator(grouped)(Changes(), CHANGES, "Update", "None")
        rows: list[list[Row]] = []
        writer = second.writeStream.option("checkpointLocation", str(tmp_path / "query"))
        writer = writer.foreachBatch(lambda batch, _: rows.append(sorted(batch.collect())))
        wait(writer.trigger(availableNow=True).start())
    finally:
        disable(session)
    model = ChainModel()
    assert [model.apply(each) for each in BATCHES[:2]] == rows


EVENTS = "key bigint, at timestamp, amount bigint"
CLOSED = "key bigint, at timestamp, amount bigint"
ENDS = "kind string, at timestamp, amount bigint"


class Window(StatefulProcessor):
    """Adds up the amounts of a key until the watermark passes the last one by 5 s."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.open = handle.getValueState("open", "last_ms bigint, amount bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        last, amount = self.open.get() or (0, 0)
        for row in rows:
            at_ms = int(row.at.replace(tzinfo=dt.UTC).timestamp() * 1000)
            last, amount = max(last, at_ms), amount + row.amount
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + 5000)
        self.open.update((last, amount))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        _, amount = self.open.get()
        self.open.clear()
        watermark = timerValues.getCurrentWatermarkInMs() + 1
        at = dt.datetime.fromtimestamp(watermark / 1000, dt.UTC)
        yield Row(key=key[0], at=at, amount=amount)


class Ends(StatefulProcessor):
    """Adds up closed windows by kind; tells them 10 s after the last."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.sum = handle.getValueState("sum", "at_ms bigint, amount bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        last, amount = self.sum.get() or (0, 0)
        for row in rows:
            at_ms = int(row.at.replace(tzinfo=dt.UTC).timestamp() * 1000)
            last, amount = max(last, at_ms), amount + row.amount
        self.handle.registerTimer(last + 10_000)
        self.sum.update((last, amount))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        watermark = timerValues.getCurrentWatermarkInMs() + 1
        at = dt.datetime.fromtimestamp(watermark / 1000, dt.UTC)
        yield Row(kind=key[0], at=at, amount=self.sum.get()[1])


def at(seconds: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def event_chain(operator: Callable[..., Any], source: BatchSource) -> DataFrame:
    events = source.frame().withWatermark("at", "1 second")
    first = operator(events.groupBy("key"))(
        Window(), CLOSED, "Append", "EventTime", eventTimeColumnName="at"
    )
    kinds = first.withColumn("kind", F.when(F.col("key") % 2 == 0, "even").otherwise("odd"))
    return operator(kinds.groupBy("kind"))(
        Ends(), ENDS, "Append", "EventTime", eventTimeColumnName="at"
    )


EVENT_BATCHES = [
    [(1, at(0), 5), (2, at(1), 7)],
    [(3, at(4), 1), (1, at(5), 1)],
    [(4, at(12), 2)],
    [(4, at(13), 2), (1, at(2), 1000)],  # the last one is late
    [(6, at(25), 1)],
    [(6, at(50), 1), (7, at(52), 4)],
    [(8, at(90), 1)],
]


@ROWS
def test_event_time_is_carried_through_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", EVENTS)
    for rows in EVENT_BATCHES:
        source.add(rows)

    def run(operator: Callable[..., Any], name: str) -> Counter[Row]:
        rows: Counter[Row] = Counter()
        writer = event_chain(operator, source).writeStream.outputMode("append")
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        writer = writer.foreachBatch(lambda batch, _: rows.update(batch.collect()))
        wait(writer.trigger(availableNow=True).start())
        return rows

    provider = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(provider, ROCKSDB)
    try:
        expected = run(row_operator, "spark")
    finally:
        spark.conf.unset(provider)

    def ours(grouped: Any) -> Callable[..., DataFrame]:
        return lambda *args, **named: transform_with_state(grouped, *args, **named)

    assert expected == run(ours, "ours")
    assert 3 == len(expected)


def test_sparks_own_operators_may_come_before(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", EVENTS)
    batches = [
        [(1, at(0), 5), (1, at(0), 5), (2, at(1), 7)],
        [(1, at(0), 5), (1, at(3), 1)],
        [(2, at(20), 2)],
        [(2, at(40), 2)],
    ]
    for rows in batches[:2]:
        source.add(rows)
    events = source.frame().withWatermark("at", "1 second").dropDuplicates(["key", "at"])
    windows = events.groupBy(F.window("at", "10 seconds"), "key").agg(
        F.sum("amount").cast("bigint").alias("amount")
    )
    found: list[Row] = []

    def run() -> None:
        stream = transform_with_state(
            windows.select("key", "amount").groupBy("key"), Totals(), TOTALS, tasks=2
        )
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "query"))
        writer = writer.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        wait(writer.trigger(availableNow=True).start())

    run()
    for rows in batches[2:]:
        source.add(rows)
    run()
    # The window of the first ten seconds closed once: 5 and 1 of key 1, 7 of key 2, no duplicate.
    assert {(1, 6, 1), (2, 7, 1)} <= set(map(tuple, found))
    assert 1 == sum(row.key == 1 for row in found)


def test_impossible_chains_are_refused_at_the_call(chain: Chain) -> None:
    first = chain.first()
    for call in (
        "count()",
        "agg(F.sum('total'))",
        "applyInPandas(lambda rows: rows, 'a int')",
        "pivot('key')",
    ):
        with pytest.raises(UsageError, match="cannot be grouped for a Spark operator"):
            eval(f"first.groupBy('key').{call}", {"first": first, "F": F})
    with pytest.raises(UsageError, match="withWatermark cannot follow"):
        first.withWatermark("at", "1 second")
    with pytest.raises(
        UsageError, match=r"stateLocation is '/other' for this operator but '.*state' for"
    ):
        transform_with_state(first.groupBy("key"), Changes(), CHANGES, stateLocation="/other")
    with pytest.raises(UsageError, match="maxParallelism is 64 here"):
        chain.source.spark.conf.set("spark.statelog.maxParallelism", "64")
        try:
            transform_with_state(first.groupBy("key"), Changes(), CHANGES)
        finally:
            chain.source.spark.conf.unset("spark.statelog.maxParallelism")
    with pytest.raises(UsageError, match="have 32896 key groups"):
        many = chain.first(maxParallelism=16448)
        transform_with_state(many.groupBy("key"), Changes(), CHANGES)
    timed = chain.first(timeMode="ProcessingTime")
    with pytest.raises(
        UsageError, match="timeMode is eventtime for this operator but processingtime for"
    ):
        transform_with_state(timed.groupBy("key"), Changes(), CHANGES, timeMode="EventTime")
    with pytest.raises(UsageError, match="EventTime requires a watermark"):
        transform_with_state(first.groupBy("key"), Changes(), CHANGES, timeMode="EventTime")


def test_the_number_of_operators_is_fixed(chain: Chain) -> None:
    chain.source.add([(1, 5)])
    chain.run(tasks=1)
    with pytest.raises(CheckpointError, match=r"2 operators \(transform_with_state, "):
        chain.run(chain.first(tasks=1))
