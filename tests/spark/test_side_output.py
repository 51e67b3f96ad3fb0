"""Rows of side outputs on Spark: kept and delivered, each once, also over kills."""

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from tests.support.spark import side_job
from tests.support.spark.processors import INPUT, TOTALS, totals_job
from tests.support.spark.side_job import Sides, expected, run_killed
from tests.support.spark.streams import BatchSource, in_order, wait

import statelog as sl
from statelog.errors import UsageError
from statelog.metrics import Metrics
from statelog.spark import (
    BatchProgress,
    ColumnarProcessor,
    transform_with_state,
    writer_id,
)

BATCHES = [[(1, 7), (2, 2), (3, 14)], [(1, 5), (4, 6)], [(5, 21), (1, 1)]]


class ColumnSides(ColumnarProcessor):
    """The side outputs of `Sides` of columns."""

    def init(self, handle):
        self.seen = handle.getColumnState("seen", "yes boolean")
        self.sevens = handle.sideOutput("sevens", "key long, amount long")
        self.first = handle.sideOutput("first", "key long NOT NULL")

    def process(self, keys, rows, times):
        new = self.seen.get(keys)["yes"].is_null()
        self.first.emit(pa.table({"key": keys["key"]}).filter(new))
        self.seen.put(keys, {"yes": pa.array([True] * len(keys))})
        table = pa.table({"key": rows["key"], "amount": rows["amount"]})
        remainders = [amount % 7 == 0 for amount in rows["amount"].to_pylist()]
        self.sevens.emit(table.filter(pa.array(remainders)))
        yield {"key": keys["key"], "total": [0] * len(keys), "rows": [0] * len(keys)}


def stored(location: str, name: str, count: int) -> list[list[tuple[int, ...]]]:
    """Return the stored rows of a side output, by micro-batch."""
    batches: dict[int, list[tuple[int, ...]]] = {number: [] for number in range(count)}
    with sl.open(location) as state:
        for row in state.side_output(name).to_pylist():
            _, batch_id, *values = row.values()
            batches[batch_id].append(tuple(values))
    return [sorted(rows) for rows in batches.values()]


@pytest.mark.parametrize(("kind", "delivery"), [(Sides, "staged"), (ColumnSides, "direct")])
def test_rows_are_kept_and_delivered_with_their_micro_batch(spark, tmp_path, kind, delivery):
    metrics, progress = Metrics(), list[BatchProgress]()
    job = totals_job(spark, tmp_path, kind(), delivery=delivery, tasks=2, metrics=metrics)
    job.source.add_all(BATCHES)
    stream = job.stream(on_progress=progress.append)
    delivered: dict[str, dict[int, list[tuple[Any, ...]]]] = {"sevens": {}, "first": {}}
    writers = set()

    def sink_of(name: str) -> Any:
        def sink(frame: DataFrame, batch_id: int) -> None:
            writers.add(writer_id(frame).partition("-output-")[2])
            assert batch_id not in delivered[name]
            delivered[name][batch_id] = in_order(frame.collect())

        return sink

    def main(frame: DataFrame, batch_id: int) -> None:
        writers.add(writer_id(frame).partition("-output-")[2])
        frame.collect()

    writer = stream.writeStream.option("checkpointLocation", str(job.query))
    for name in delivered:
        writer = writer.sideOutput(name, sink_of(name))
    wait(writer.foreachBatch(main).trigger(availableNow=True).start())
    for name, batches in expected(BATCHES).items():
        assert batches == stored(str(job.state), name, len(BATCHES))
        assert {batch_id: rows for batch_id, rows in enumerate(batches) if rows} == delivered[name]
    assert {"", "sevens", "first"} == writers
    assert 8 == metrics.value("num_side_output_rows")
    assert [5, 1, 2] == [report.side_output_rows for report in progress]


def test_what_is_wrong_is_said_at_the_start(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add([(1, 1)])
    stream: Any = transform_with_state(source.frame().groupBy("key"), Sides(), TOTALS)
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "query"))
    with pytest.raises(UsageError, match="side output 'nines': its side outputs are sevens, first"):
        writer.sideOutput("nines", print).foreachBatch(print).start()
    with pytest.raises(UsageError, match="two operators of the query declare the side output"):
        transform_with_state(stream.groupBy("key"), Sides(), TOTALS)
    batch = spark.createDataFrame([(1, 1)], INPUT)
    with pytest.raises(UsageError, match="a batch frame does not have"):
        transform_with_state(batch.groupBy("key"), Sides(), TOTALS)


def test_a_sink_that_fails_gets_the_same_rows_again(spark, tmp_path):
    job = totals_job(spark, tmp_path, Sides())
    job.source.add_all(BATCHES)
    delivered: list[tuple[int, list[tuple[Any, ...]]]] = []
    fails = [True]

    def sink(frame: DataFrame, batch_id: int) -> None:
        delivered.append((batch_id, in_order(frame.collect())))
        if batch_id == 2 and fails:
            fails.clear()
            raise OSError("the table is locked")

    def start() -> None:
        writer: Any = job.stream().writeStream.option("checkpointLocation", str(job.query))
        writer = writer.sideOutput("first", sink).foreachBatch(lambda frame, _: frame.collect())
        wait(writer.trigger(availableNow=True).start())

    with pytest.raises(StreamingQueryException, match="the table is locked"):
        start()
    start()
    assert [(0, [(1,), (2,), (3,)]), (1, [(4,)]), (2, [(5,)]), (2, [(5,)])] == delivered


@pytest.mark.timeout(900)
@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_rows_are_exact_after_kills(spark, tmp_path, delivery):
    """Before the commit, after it, and between and after the sinks; rows in answers and in files."""
    rng = random.Random(5)
    source = BatchSource(spark, tmp_path / "in", INPUT)
    batches = [[(rng.randrange(400), rng.randrange(1, 99)) for _ in range(500)] for _ in range(6)]
    source.add_all(batches)
    assert -9 == run_killed(tmp_path, 0, "before-commit:2", delivery)
    assert -9 == run_killed(tmp_path, 1 << 20, "after-commit:1", delivery)
    assert -9 == run_killed(tmp_path, 1 << 20, "after-side-sink:3", delivery)
    assert run_killed(tmp_path, 1 << 20, "before-acknowledge:2", delivery) > 0
    side_job.run(spark, tmp_path, 1 << 20, delivery)
    twice = 0
    for name, rows_of in expected(batches).items():
        assert rows_of == stored(str(tmp_path / "state"), name, len(batches))
        for number, rows in enumerate(rows_of):
            file = tmp_path / "out" / f"{name}-{number}"
            if not rows:
                assert not file.exists()
                continue
            lines = file.read_text().splitlines()
            deliveries = [[tuple(row) for row in json.loads(line)] for line in lines]
            assert [rows] * len(deliveries) == deliveries
            twice += len(deliveries) - 1
    assert twice > 0  # a delivery that a kill interrupted was repeated, with the same rows
