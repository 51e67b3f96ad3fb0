"""Several stateful operators in one query, with one checkpoint; and several inputs of one operator."""

import datetime as dt
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.locations.sequence_entries import committed, objects
from tests.support.spark.chained_changes import BATCHES, BUCKETS, CHANGES, ChainModel, Changes
from tests.support.spark.processors import INPUT, TOTALS, Totals
from tests.support.spark.streams import ON_ROCKSDB, BatchSource, configured, enabled, run_to_end
from tests.support.spark.versions import ROWS, row_operator

from statelog.checkpoint.clean_up import reachable_objects
from statelog.errors import CheckpointError, UsageError
from statelog.spark import BatchProgress, tagged_union, transform_with_state
from statelog.state.reader import StateReader
from statelog.store import PATHS, open_store


class Chain:
    """A query: running totals by key, those of at least 0 counted by bucket."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.source = BatchSource(spark, folder / "in", INPUT)
        self.folder = folder
        self.state = folder / "state"
        self.progress: list[BatchProgress] = []

    def first(self, **settings: Any) -> DataFrame:
        return transform_with_state(
            self.source.frame().groupBy("key"), Totals(), TOTALS, stateLocation=str(self.state),
            on_progress=self.progress.append, **settings,
        )  # fmt: skip

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
        delivered = run_to_end(stream or self.stream(**settings), self.folder / "query")
        return [sorted(rows) for rows in delivered]


@pytest.fixture
def chain(spark, tmp_path):
    return Chain(spark, tmp_path)


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_two_operators_commit_one_object(chain, delivery):
    model = ChainModel()
    chain.source.add_all(BATCHES[:3])
    expected = [model.apply(rows) for rows in BATCHES]
    assert expected[:3] == chain.run(tasks=2, delivery=delivery)
    assert [1, 1, 1] == [report.objects for report in chain.progress]
    assert [4, 2, 1] == [report.rows for report in chain.progress]
    assert {PATHS.metadata(number) for number in committed(chain.state)} == objects(chain.state)
    chain.source.add_all(BATCHES[3:])
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


def test_an_operator_without_rows_is_skipped_and_keeps_its_state(chain):
    model = ChainModel()
    batches = [BATCHES[0], [(5, -9)], [(5, -9)], [(8, -1), (5, -1)], BATCHES[3]]
    chain.source.add_all(batches)
    delivered = chain.run(tasks=1)
    assert [model.apply(rows) for rows in batches] == delivered
    assert [[], [], []] == delivered[1:4]
    ids = committed(chain.state)
    newest = StateReader.open(chain.state, operator="transform_with_state_2").checkpoint
    assert {ids[0], ids[-1]} == {
        handle.checkpoint_id for handle in newest.log if handle.key_group_range.start >= 128
    }
    chain.source.add(BATCHES[4])
    assert [model.apply(BATCHES[4])] == chain.run(tasks=2)


def test_rows_between_operators_that_are_many_use_files_and_leave_none(chain):
    model = ChainModel()
    batches = [[(key, key + batch) for key in range(3000)] for batch in range(2)]
    chain.source.add_all(batches)
    expected = [model.apply(rows) for rows in batches]
    assert expected == chain.run(tasks=2, **{"stream.data-inline-threshold": 10})
    assert min(report.objects for report in chain.progress) > 2
    assert any(path.startswith("output") for path in objects(chain.state)), "of the last operator"
    needed = reachable_objects(open_store(str(chain.state)))
    assert objects(chain.state) == needed


def test_a_failure_of_the_second_operator_commits_nothing_of_the_first(chain):
    chain.source.add_all([[(1, 5)], [(1, 8)]])
    with pytest.raises(StreamingQueryException, match=r"Changes\.handleInputRows failed for key"):
        chain.run(chain.stream(Changes(poison=13), tasks=1))
    assert {1: 5} == {
        key: row["value.total"]
        for key, row in read(chain, "transform_with_state", "total", "key").items()
    }
    assert [[(1, 2, 18)]] == chain.run(tasks=1)


def test_each_operator_may_have_initial_state(chain, spark):
    initial = spark.createDataFrame([(0, 100, 1000), (1, 10, 50)], CHANGES).groupBy("bucket")
    chain.source.add_all([[(1, 5)], [(1, 5), (3, 1)]])
    expected = [[(1, 11, 55)], [(0, 101, 1001), (1, 12, 65)]]
    assert expected == chain.run(chain.stream(initial=initial, tasks=2))


@ROWS
def test_an_enabled_session_chains_sparks_own_calls(spark, tmp_path):
    session = spark.newSession()
    source = BatchSource(session, tmp_path / "in", INPUT)
    source.add_all(BATCHES[:2])
    with enabled(session):
        first = row_operator(source.frame().groupBy("key"))(Totals(), TOTALS, "Update", "None")
        grouped = first.where("total >= 0").withColumn("bucket", F.col("key") % 3).groupBy("bucket")
        second = row_operator(grouped)(Changes(), CHANGES, "Update", "None")
        delivered = run_to_end(second, tmp_path / "query")
    model = ChainModel()
    assert [model.apply(rows) for rows in BATCHES[:2]] == [sorted(rows) for rows in delivered]


EVENTS = "key bigint, at timestamp, amount bigint"
ENDS = "kind string, at timestamp, amount bigint"


class Sums(StatefulProcessor):
    """Adds up the amounts of a key until the watermark passes the last one by a delay."""

    def __init__(self, name: str, delay_ms: int) -> None:
        self.name, self.delay_ms = name, delay_ms

    def init(self, handle):
        self.handle = handle
        self.open = handle.getValueState("open", "last_ms bigint, amount bigint")

    def handleInputRows(self, key, rows, timerValues):
        last, amount = self.open.get() or (0, 0)
        for row in rows:
            at_ms = int(row.at.replace(tzinfo=dt.UTC).timestamp() * 1000)
            last, amount = max(last, at_ms), amount + row.amount
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + self.delay_ms)
        self.open.update((last, amount))
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        _, amount = self.open.get()
        self.open.clear()
        watermark = timerValues.getCurrentWatermarkInMs() + 1
        at = dt.datetime.fromtimestamp(watermark / 1000, dt.UTC)
        yield Row(**{self.name: key[0]}, at=at, amount=amount)


def at(seconds: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def event_chain(operator: Callable[..., Any], source: BatchSource) -> DataFrame:
    events = source.frame().withWatermark("at", "1 second")
    first = operator(events.groupBy("key"))(
        Sums("key", 5000), EVENTS, "Append", "EventTime", eventTimeColumnName="at"
    )
    kinds = first.withColumn("kind", F.when(F.col("key") % 2 == 0, "even").otherwise("odd"))
    return operator(kinds.groupBy("kind"))(
        Sums("kind", 10_000), ENDS, "Append", "EventTime", eventTimeColumnName="at"
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
def test_event_time_is_carried_through_as_spark_does(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", EVENTS)
    source.add_all(EVENT_BATCHES)

    def run(operator: Callable[..., Any], name: str) -> Counter[Row]:
        batches = run_to_end(event_chain(operator, source), tmp_path / name, "append")
        return Counter(row for rows in batches for row in rows)

    with configured(spark, ON_ROCKSDB):
        expected = run(row_operator, "spark")

    def ours(grouped: Any) -> Callable[..., DataFrame]:
        return lambda *args, **named: transform_with_state(grouped, *args, **named)

    assert expected == run(ours, "ours")
    assert {("odd", 7), ("even", 11)} <= {(row.kind, row.amount) for row in expected}


def test_impossible_chains_are_refused_at_the_call(chain, spark):
    first, timed = chain.first(), chain.first(timeMode="ProcessingTime")
    many = chain.first(maxParallelism=16448)

    def chained(stream: DataFrame, **settings: Any) -> DataFrame:
        return transform_with_state(stream.groupBy("key"), Changes(), CHANGES, **settings)

    grouped, no_operator = first.groupBy("key"), "cannot be grouped for a Spark operator"
    for call, message in (
        (lambda: grouped.count(), no_operator),
        (lambda: grouped.agg(F.sum("total")), no_operator),
        (lambda: grouped.applyInPandas(lambda rows: rows, "a int"), no_operator),
        (lambda: grouped.pivot("key"), no_operator),
        (lambda: first.withWatermark("at", "1 second"), "withWatermark cannot follow"),
        (lambda: chained(first, stateLocation="/other"), "is '/other' for this operator but '.*st"),
        (lambda: chained(many), "have 32896 key groups"),
        (lambda: chained(timed, timeMode="EventTime"), "eventtime for this .* but processingtime"),
        (lambda: chained(first, timeMode="EventTime"), "EventTime requires a watermark"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
    with (
        configured(spark, {"spark.statelog.maxParallelism": "64"}),
        pytest.raises(UsageError, match="maxParallelism is 64 for this operator"),
    ):
        chained(first)


def test_the_number_of_operators_is_fixed(chain):
    chain.source.add([(1, 5)])
    chain.run(tasks=1)
    with pytest.raises(CheckpointError, match=r"2 operators \(transform_with_state, "):
        chain.run(chain.first(tasks=1))


ORDERS = "id bigint, at timestamp, amount double, `a.b` string"
PAYMENTS = "id bigint, at timestamp, paid bigint"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Collect(StatefulProcessor):
    """Appends what comes from each input, in the order of event time."""

    def init(self, handle):
        self.seen = handle.getListState("seen", "what string")

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda row: row.at):
            if row.input == "order":
                self.seen.appendValue((f"{row.order['amount']}/{row.order['a.b']}/{row.payment}",))
            else:
                self.seen.appendValue((f"{row.payment['paid']}/{row.order}",))
        yield Row(id=key[0], seen=" ".join(what for (what,) in self.seen.get()))


def test_rows_of_both_inputs_reach_one_key(spark, tmp_path):
    orders = BatchSource(spark, tmp_path / "orders", ORDERS)
    payments = BatchSource(spark, tmp_path / "payments", PAYMENTS)
    orders.add([(1, NOON, 2.5, "x"), (2, NOON, 3.5, None)])
    payments.add([(1, NOON + dt.timedelta(seconds=1), 7)])
    orders.add([])
    # In time: the watermark is the lower one.
    payments.add([(2, NOON - dt.timedelta(minutes=9), 8)])
    inputs = {
        "order": orders.frame().withWatermark("at", "10 minutes"),
        "payment": payments.frame().withWatermark("at", "10 minutes"),
    }
    united = tagged_union(inputs, ["id"], event_time="at")
    assert united.columns == ["input", "id", "at", "order", "payment"]
    frame = transform_with_state(
        united.groupBy("id"),
        Collect(),
        "id bigint, seen string",
        timeMode="EventTime",
        stateLocation=str(tmp_path / "state"),
    )
    delivered = run_to_end(frame, tmp_path / "query")
    assert [sorted(rows) for rows in delivered[:2]] == [
        [Row(id=1, seen="2.5/x/None 7/None"), Row(id=2, seen="3.5/None/None")],
        [Row(id=2, seen="3.5/None/None 8/None")],
    ]


def test_inputs_that_do_not_fit_are_rejected(spark):
    frames = {
        "order": spark.createDataFrame([], ORDERS),
        "payment": spark.createDataFrame([], PAYMENTS),
        "other": spark.createDataFrame([], "id string, n int"),
        "keys": spark.createDataFrame([], "id bigint"),
    }
    for names, keys, message in (
        ([], ["id"], "requires at least one input"),
        (["order"], [], "requires the key columns"),
        (["input"], ["id"], "an input cannot be named 'input'"),
        (["id"], ["id"], "an input cannot be named 'id'"),
        (["order", "payment"], ["id", "amount"], "'payment' does not have the column amount"),
        (
            ["order", "other"],
            ["id"],
            "'id' has different types: bigint in 'order', string in 'other'",
        ),
        (["order", "other"], ["at"], "'other' does not have the column at"),
        (["keys"], ["id"], "'keys' contains only its keys"),
    ):
        inputs = {name: frames.get(name, frames["order"]) for name in names}
        with pytest.raises(UsageError, match=message):
            tagged_union(inputs, keys)
