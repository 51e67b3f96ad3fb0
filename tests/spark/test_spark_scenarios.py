"""
The scenarios of Spark's own tests of transformWithState, where `enable(spark)` is all that differs.

Each runs the same code twice: in a session as it is, with Spark's operator and RocksDB, and in one
that was enabled.  tests/parity.md says which scenario is covered where.
"""

import datetime as dt
import itertools
from collections.abc import Callable
from contextlib import nullcontext

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, struct, to_json
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark import scenarios
from tests.support.spark.scenarios import INPUT, LARGE
from tests.support.spark.streams import (
    ON_ROCKSDB,
    WITHOUT_NO_DATA,
    BatchSource,
    configured,
    enabled,
    wait,
)
from tests.support.spark.versions import needs, row_operator

from statelog.spark import StatefulStream

INITIAL_FRAMES = needs((4, 1), "frames of initial state with the names of their columns")
NO_LIMIT = needs((4, 2), "frames without a limit beside initial state")


Build = Callable[[SparkSession, BatchSource], DataFrame]


def on_both(
    spark: SparkSession, source: BatchSource, build: Build, **settings: str
) -> list[list[Row]]:
    """Run a query on Spark's operator and enabled; return the rows of each micro-batch, if equal."""
    results = []
    limits = {name.replace("__", "."): value for name, value in settings.items()}
    for ours in (False, True):
        session = spark.newSession()
        with (
            configured(session, ON_ROCKSDB | WITHOUT_NO_DATA | limits),
            enabled(session) if ours else nullcontext(),
        ):
            results.append(run(session, source, build))
    of_spark, of_statelog = results
    assert of_statelog == of_spark
    assert of_spark and all(of_spark)
    return of_statelog


def run(session: SparkSession, source: BatchSource, build: Build) -> list[list[Row]]:
    batches: list[list[Row]] = []

    def take(frame: DataFrame, batch_id: int) -> None:
        batches.append(sorted(frame.collect(), key=repr))

    same_input = BatchSource(session, source.folder, "x int")
    same_input.schema = source.schema
    frame = build(session, same_input)
    if session.conf.get("spark.statelog.baseLocation", None):
        assert isinstance(frame, StatefulStream)
    writer = frame.writeStream.queryName("scenario").outputMode("update").foreachBatch(take)
    wait(writer.trigger(availableNow=True).start())
    return batches


@pytest.mark.parametrize("pandas", [False, pytest.param(True, marks=INITIAL_FRAMES)])
def test_state_of_every_kind_keys_apart_initial_state_and_a_plan_behind_it(spark, tmp_path, pandas):
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add_all(scenarios.EVERYTHING_BATCHES)

    def build(session: SparkSession, source: BatchSource) -> DataFrame:
        frame = scenarios.everything(session, source, pandas)
        return frame.select(
            col("first").alias("key"), to_json(struct("second", "names", "nested")), "text"
        )

    batches = on_both(spark, source, build)
    assert [2, 2] == [len(rows) for rows in batches]
    text = batches[1][0].text
    assert text.startswith("Error checking value state exists 236 [97, 98, 99] [0, 1, 0, 1, 0, 2]")
    assert text.endswith(f" {LARGE + 1} [1, 789] 3 1")


CHUNKS = "first string, n int, frames int"


class Chunks(StatefulProcessor):
    """Counts the frames of each key, and of its initial state."""

    def init(self, handle):
        self.frames = handle.getValueState("frames", "n int")

    def handleInitialState(self, key, initialState, timerValues):
        (n,) = self.frames.get() or (0,)
        self.frames.update((n + len(initialState),))

    def handleInputRows(self, key, rows, timerValues):
        (n,) = self.frames.get() or (0,)
        yield pd.DataFrame({"first": [key[0]], "n": [n], "frames": [sum(1 for _ in rows)]})


@pytest.mark.parametrize(
    ("name", "value", "chunks"),
    [
        ("maxRecordsPerBatch", "1", 3),
        pytest.param("maxRecordsPerBatch", "-1", 1, marks=NO_LIMIT),
        pytest.param("maxBytesPerBatch", "2", 3, marks=needs((4, 2), "a limit of a frame's bytes")),
    ],
)
def test_limits_of_frames(spark, tmp_path, name, value, chunks):
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add([("0", 1, "x"), ("0", 2, "x"), ("0", 3, "x"), ("1", 4, "x")])

    def build(session: SparkSession, source: BatchSource) -> DataFrame:
        initial = session.createDataFrame([("0", 789), ("3", 9)], "first string, begin int")
        return (
            source.frame()
            .groupBy("first")
            .transformWithStateInPandas(
                Chunks(), CHUNKS, "Update", "None", initialState=initial.groupBy("first")
            )
        )

    limits = {f"spark__sql__execution__arrow__{name}": value}
    (rows,) = on_both(spark, source, build, **limits)
    assert [("0", 1, chunks), ("1", 0, 1)] == [tuple(row) for row in rows]


@pytest.mark.parametrize(("delivery", "value"), [("staged", "-1"), ("direct", "0")])
def test_no_limit_of_records_in_every_way_of_delivery(spark, tmp_path, delivery, value):
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", value)
    session.conf.set("spark.statelog.delivery", delivery)
    source = BatchSource(session, tmp_path / "in", INPUT)
    source.add([(str(n), n, "x") for n in range(50)])
    name = f"no_limit_{delivery}_{value.strip('-')}"
    with enabled(session):
        grouped = source.frame().groupBy("first")
        frame = grouped.transformWithStateInPandas(Chunks(), CHUNKS, "Update", "None")
        wait(frame.writeStream.queryName(name).format("memory").trigger(availableNow=True).start())
    assert 50 == session.table(name).count()
    assert value == session.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")


class Earliest(StatefulProcessor):
    """Yields the earliest time it has seen, and the watermark."""

    def init(self, handle):
        self.earliest = handle.getValueState("earliest", "at bigint")

    def handleInputRows(self, key, rows, timerValues):
        times = [int(row.at.timestamp()) for row in rows]
        (before,) = self.earliest.get() or (max(times),)
        earliest = min(before, *times, before)
        self.earliest.update((earliest,))
        yield Row(key=key[0], at=earliest, watermark=timerValues.getCurrentWatermarkInMs())


@pytest.mark.parametrize("time_mode", ["None", "ProcessingTime"])
def test_a_watermark_drops_nothing_outside_of_event_time(spark, tmp_path, time_mode):
    source = BatchSource(spark, tmp_path / "in", "key string, at timestamp")
    for seconds in ([20], [4], [2, 11, 13]):
        moments = [dt.datetime.fromtimestamp(s, dt.UTC) for s in seconds]
        source.add([("a", moment) for moment in moments])

    def build(session: SparkSession, source: BatchSource) -> DataFrame:
        frame = source.frame().withWatermark("at", "10 seconds").groupBy("key")
        output = "key string, at bigint, watermark bigint"
        return row_operator(frame)(Earliest(), output, "Update", time_mode)

    batches = on_both(spark, source, build)
    assert [20, 4, 2] == [row.at for row in itertools.chain(*batches)]


def test_initial_state_with_timers(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add_all(scenarios.TIMER_BATCHES)
    first, second = on_both(spark, source, scenarios.with_timers)
    assert {"0", "0 expired", "1", "3 expired"} == {row["first"] for row in first}
    assert [("0", 1025), ("3", 999)] == [tuple(row) for row in second]


class TextKeys(StatefulProcessor):
    """Uses text where a tuple is the key of a map."""

    def init(self, handle):
        self.entries = handle.getMapState("entries", "name string", "n int")

    def handleInputRows(self, key, rows, timerValues):
        try:
            self.entries.updateValue(key[0], (1,))
            text = str(list(self.entries.iterator()))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        yield Row(text=text)


def test_text_of_one_letter_is_the_key_of_a_map_as_on_spark_and_longer_text_is_refused(
    spark, tmp_path
):
    """Spark takes text for the tuple of its letters: more than one fail the query."""

    def build(session: SparkSession, source: BatchSource) -> DataFrame:
        grouped = source.frame().groupBy("first")
        return row_operator(grouped)(TextKeys(), "text string", "Update", "None")

    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add([("a", 1, "x")])
    assert [[Row(text="[(('a',), (1,))]")]] == on_both(spark, source, build)

    longer = BatchSource(spark, tmp_path / "longer", INPUT)
    longer.add([("ab", 1, "x")])
    session = spark.newSession()
    with enabled(session):
        ((row,),) = run(session, longer, build)
    assert (
        row.text == "UsageError: a map key of state 'entries' takes a tuple of (name), not str 'ab'"
    )
