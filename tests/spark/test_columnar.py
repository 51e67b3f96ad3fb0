"""Columnar processors on Spark: the same state as processors of Rows, whole columns at a time."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql import functions as sf
from tests.spark import processors
from tests.spark.columnar_totals import ColumnarTotals
from tests.spark.processors import INPUT, TOTALS, Totals, TotalsModel
from tests.spark.streams import BatchSource, Job, workers_get_by_value

import statelog as sl
from statelog.errors import CheckpointError, ProcessorError, UsageError
from statelog.spark import (
    ColumnarProcessor,
    Record,
    StatefulProcessor,
    transform_with_state,
    transform_with_state_in_pandas,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

workers_get_by_value(__name__)
workers_get_by_value(processors.__name__)

SNAPSHOTS = {
    "snapshot.min-log-size": 1,
    "snapshot.log-to-snapshot-ratio": 0.01,
    "snapshot.max-log-handles": 3,
}


def rows_of(rng: random.Random) -> list[tuple[int, int]]:
    return [(rng.randrange(50), rng.randrange(-9, 99)) for _ in range(120)]


def in_order(batch: list[Row]) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, batch), key=repr)


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_rows_and_columns_take_turns_over_one_state(
    spark: "SparkSession", tmp_path: Path, delivery: str
) -> None:
    rng = random.Random(7)
    source = BatchSource(spark, tmp_path / "in", INPUT)
    options = {"delivery": delivery, **SNAPSHOTS}
    job = Job(source, tmp_path, ["key"], Totals(), TOTALS, options)
    model = TotalsModel()
    turns = [(ColumnarTotals(), 2), (ColumnarTotals(), 3), (Totals(), 2), (ColumnarTotals(), 1)]
    for processor, tasks in turns:
        expected = []
        for _ in range(3):
            rows = rows_of(rng)
            source.add(rows)
            expected.append(model.apply(rows))
        job.run(processor=processor, tasks=tasks)
        assert [in_order(batch) for batch in job.take()] == expected
    rows = sl.open(str(job.state)).table("total").to_pylist()
    found = {row["key.key"]: (row["value.total"], row["value.rows"]) for row in rows}
    assert found == dict(model.totals)


class Narrow(ColumnarProcessor):
    """Counts rows in an int."""

    def init(self, handle: Any) -> None:
        self.total = handle.getColumnState("total", "rows int")

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
        held = self.total.get(keys)["rows"].fill_null(0).to_numpy() + keys.counts.astype(np.int32)
        self.total.put(keys, {"rows": held})
        yield {"key": keys["key"], "total": held.astype(np.int64), "rows": held.astype(np.int64)}


@pytest.mark.parametrize("policy", [SNAPSHOTS, {}], ids=["snapshots", "log"])
def test_a_field_is_widened_and_one_is_added(
    spark: "SparkSession", tmp_path: Path, policy: dict[str, Any]
) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    options = {**policy}
    job = Job(source, tmp_path, ["key"], Narrow(), TOTALS, options)
    for batch in ([(1, 5), (2, 7), (1, 1)], [(1, 1)], [(3, 1)]):
        source.add(batch)
    job.run()
    job.take()
    source.add([(1, 10), (2, 20), (4, 40)])
    job.run(processor=ColumnarTotals(), tasks=1)
    assert [in_order(batch) for batch in job.take()] == [[(1, 10, 4), (2, 20, 2), (4, 40, 1)]]


class Windows(StatefulProcessor):
    """Counts the events of each key up to a timer 10 s after the first of them."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        held = self.count.get()
        times = [int(row.at.timestamp() * 1000) for row in rows]
        if held is None:
            self.handle.registerTimer(min(times) + 10_000)
        self.count.update(((held or (0,))[0] + len(times),))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key[0], until=expiredTimerInfo.getExpiryTimeInMs(), n=self.count.get()[0])
        self.count.clear()


class ColumnarWindows(ColumnarProcessor):
    """The same in columns."""

    def init(self, handle: Any) -> None:
        self.timers = handle.timers
        self.count = handle.getColumnState("count", "n bigint")

    def process(self, keys: Any, rows: Any, times: Any) -> None:
        at = rows["at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
        new = ~self.count.exists(keys)
        ends = np.minimum.reduceat(at, keys.starts) + 10_000
        self.timers.register(keys.take(new), ends[new])
        held = self.count.get(keys)["n"].fill_null(0).to_numpy()
        self.count.put(keys, {"n": held + keys.counts})

    def expired(self, keys: Any, expiry_ms: Any, times: Any) -> Iterator[Any]:
        yield {"key": keys["key"], "until": expiry_ms, "n": self.count.get(keys)["n"]}
        self.count.clear(keys)


def test_timers_fire_as_for_single_keys(spark: "SparkSession", tmp_path: Path) -> None:
    rng = random.Random(11)
    source = BatchSource(spark, tmp_path / "in", "key bigint, seconds bigint")
    for batch in range(8):
        source.add([(rng.randrange(9), batch * 7 + rng.randrange(9)) for _ in range(20)])

    def stream(frame: Any) -> Any:
        return frame.withColumn("at", sf.timestamp_seconds("seconds")).withWatermark(
            "at", "3 seconds"
        )

    delivered = []
    for name, processor in (("rows", Windows()), ("columns", ColumnarWindows())):
        job = Job(source, tmp_path / name, ["key"], processor, "key bigint, until bigint, n bigint")
        source_frame = source.frame
        source.frame = lambda made=source_frame: stream(made())  # type: ignore[method-assign]
        try:
            job.run(timeMode="EventTime", **SNAPSHOTS)
        finally:
            source.frame = source_frame  # type: ignore[method-assign]
        delivered.append([in_order(batch) for batch in job.take()])
    assert delivered[0] == delivered[1]
    assert sum(map(len, delivered[0])) > 10


def test_a_batch_frame_and_initial_state(spark: "SparkSession", tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 5), (2, 7), (1, 1)], INPUT)
    out = transform_with_state(frame.groupBy("key"), ColumnarTotals(), TOTALS)
    assert in_order(out.collect()) == [(1, 6, 2), (2, 7, 1)]
    before = spark.createDataFrame([(1, 100), (3, 300)], "key bigint, total bigint")
    source = BatchSource(spark, tmp_path / "in", INPUT)
    job = Job(source, tmp_path, ["key"], ColumnarTotals(), TOTALS)
    source.add([(1, 5), (2, 7)])
    job.run(initialState=before.groupBy("key"))
    source.add([(3, 1)])
    job.run()
    assert [in_order(batch) for batch in job.take()] == [[(1, 105, 1), (2, 7, 1)], [(3, 301, 1)]]


def test_input_beyond_the_budget_comes_in_parts(spark: "SparkSession", tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", "key bigint, amount bigint, text string")
    rows = [(at % 3000, at, "x" * 600) for at in range(60_000)]
    source.add(rows)
    source.add([(at, 1, "y") for at in range(4000)])
    job = Job(source, tmp_path, ["key"], ColumnarTotals(), TOTALS)
    job.run(memoryBudget="64m", tasks=1)
    first, second = job.take()
    assert {row.key: row.rows for row in first} == dict.fromkeys(range(3000), 20)
    assert len(first) == 3000
    assert {row.key: row.rows for row in second} == {k: 21 if k < 3000 else 1 for k in range(4000)}


class Wrong(ColumnarTotals):
    """Does one thing wrong."""

    def __init__(self, what: str) -> None:
        self.what = what

    def init(self, handle: Any) -> None:
        super().init(handle)
        if self.what == "list":
            handle.getListState("list", "n bigint")

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
        match self.what:
            case "raises":
                raise ArithmeticError("no such sum")
            case "rows":
                self.total.put(
                    keys, {"total": [1] * (len(keys) + 1), "rows": [1] * (len(keys) + 1)}
                )
            case "field":
                self.total.put(keys, {"total": [1] * len(keys)})
            case "type":
                self.total.put(keys, {"total": ["x"] * len(keys), "rows": [1] * len(keys)})
            case "output":
                yield {"key": keys["key"]}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raises", "Wrong.process failed for 2 keys of the key groups .*no such sum"),
        ("rows", "3 rows were given for 2 keys"),
        ("field", "state 'total' has the columns total, rows; the table given has total"),
        ("type", "field 'total' takes int64, not string"),
        ("output", "in batch 0: the output has the columns key, total, rows"),
    ],
)
def test_a_wrong_processor_is_an_error(
    spark: "SparkSession", tmp_path: Path, what: str, message: str
) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add([(1, 5), (2, 7)])
    job = Job(source, tmp_path, ["key"], Wrong(what), TOTALS)
    with pytest.raises(StreamingQueryException, match=message):
        job.run(tasks=1)
    job.run(processor=ColumnarTotals())
    assert [in_order(batch) for batch in job.take()] == [[(1, 5, 1), (2, 7, 1)]]


class Listing(StatefulProcessor):
    """Keeps a list."""

    def init(self, handle: Any) -> None:
        self.all = handle.getListState("all", "amount bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.all.appendList([(row.amount,) for row in rows])
        yield Row(key=key[0], total=0, rows=0)


def test_what_columns_cannot_do_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add([(1, 5)])
    grouped = source.frame().groupBy("key")
    with pytest.raises(UsageError, match="give it to transform_with_state"):
        transform_with_state_in_pandas(grouped, ColumnarTotals(), TOTALS)  # type: ignore[arg-type]
    with pytest.raises(ProcessorError, match="use getColumnState"):
        transform_with_state(grouped, Wrong("list"), TOTALS)
    job = Job(source, tmp_path, ["key"], Listing(), TOTALS)
    job.run()
    source.add([(1, 5)])
    with pytest.raises(CheckpointError, match="does not declare: 'all'"):
        job.run(processor=ColumnarTotals())
    other = Job(source, tmp_path / "other", ["key"], ColumnarTotals(), TOTALS)
    with pytest.raises(UsageError, match="record has no effect"):
        other.run(record=Record(share=0.5))
