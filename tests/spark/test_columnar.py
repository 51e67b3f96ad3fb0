"""Columnar processors on Spark: the same state as processors of Rows, whole columns at a time."""

import random
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from tests.support.spark.columnar_totals import ColumnarTotals
from tests.support.spark.processors import INPUT, TOTALS, Totals, TotalsModel, totals_job
from tests.support.spark.streams import FREQUENT_SNAPSHOTS, in_order

import statelog as sl
from statelog.errors import CheckpointError, ProcessorError, UsageError
from statelog.spark import (
    Record,
    StatefulProcessor,
    transform_with_state,
    transform_with_state_in_pandas,
)


def rows_of(rng: random.Random) -> list[tuple[int, int]]:
    return [(rng.randrange(50), rng.randrange(-9, 99)) for _ in range(120)]


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_rows_and_columns_share_state(spark, tmp_path, delivery):
    rng = random.Random(7)
    job = totals_job(spark, tmp_path, delivery=delivery, **FREQUENT_SNAPSHOTS)
    model = TotalsModel()
    turns = [(ColumnarTotals(), 2), (ColumnarTotals(), 3), (Totals(), 2), (ColumnarTotals(), 1)]
    for processor, tasks in turns:
        expected = []
        for _ in range(3):
            rows = rows_of(rng)
            job.source.add(rows)
            expected.append(model.apply(rows))
        job.run(processor=processor, tasks=tasks)
        assert job.take_in_order() == expected
    rows = sl.open(str(job.state)).table("total").to_pylist()
    totals = {row["key.key"]: (row["value.total"], row["value.rows"]) for row in rows}
    assert totals == dict(model.totals)


def test_a_batch_frame_and_initial_state(spark, tmp_path):
    frame = spark.createDataFrame([(1, 5), (2, 7), (1, 1)], INPUT)
    out = transform_with_state(frame.groupBy("key"), ColumnarTotals(), TOTALS)
    assert in_order(out.collect()) == [(1, 6, 2), (2, 7, 1)]
    before = spark.createDataFrame([(1, 100), (3, 300)], "key bigint, total bigint")
    processor: Any = ColumnarTotals()
    job = totals_job(spark, tmp_path, processor)
    job.source.add([(1, 5), (2, 7)])
    job.run(initialState=before.groupBy("key"))
    job.source.add([(3, 1)])
    job.run()
    assert job.take_in_order() == [[(1, 105, 1), (2, 7, 1)], [(3, 301, 1)]]


class Raising(ColumnarTotals):
    def process(self, keys, rows, times):
        raise ArithmeticError("no such sum")


class WithList(ColumnarTotals):
    def init(self, handle):
        handle.getListState("list", "n bigint")


def test_a_batch_whose_processor_raised_is_repeated(job):
    job.source.add([(1, 5), (2, 7)])
    message = "Raising.process failed for 2 keys of the key groups .*no such sum"
    with pytest.raises(StreamingQueryException, match=message):
        job.run(processor=Raising(), tasks=1)
    job.run(processor=ColumnarTotals())
    assert job.take_in_order() == [[(1, 5, 1), (2, 7, 1)]]


class Listing(StatefulProcessor):
    def init(self, handle):
        self.all = handle.getListState("all", "amount bigint")

    def handleInputRows(self, key, rows, timerValues):
        self.all.appendList([(row.amount,) for row in rows])
        yield Row(key=key[0], total=0, rows=0)


def test_what_columns_cannot_do_is_refused(job, tmp_path):
    job.source.add([(1, 5)])
    grouped = job.source.frame().groupBy("key")
    with pytest.raises(UsageError, match="pass it to transform_with_state"):
        transform_with_state_in_pandas(grouped, ColumnarTotals(), TOTALS)  # type: ignore[arg-type]
    with pytest.raises(ProcessorError, match="use getColumnState"):
        transform_with_state(grouped, WithList(), TOTALS)
    job.run(processor=Listing())
    job.source.add([(1, 5)])
    with pytest.raises(CheckpointError, match="does not declare: 'all'"):
        job.run(processor=ColumnarTotals())
    other = {
        "stateLocation": str(tmp_path / "other"),
        "checkpointLocation": str(tmp_path / "query-2"),
    }
    with pytest.raises(UsageError, match="record has no effect"):
        job.run(processor=ColumnarTotals(), record=Record(share=0.5), **other)
