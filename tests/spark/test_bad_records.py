"""A query continues past bad records on Spark: all other keys are exact, and a resend is too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.spark import processors
from tests.spark.checkpoint_files import in_order
from tests.spark.processors import INPUT, TOTALS, Totals, TotalsModel
from tests.spark.streams import BatchSource, Job, wait, workers_get_by_value

import statelog as sl
from statelog.errors import UsageError
from statelog.metrics import Metrics
from statelog.spark import (
    ColumnarProcessor,
    aggregate,
    transform_with_state,
    transform_with_state_in_pandas,
)
from statelog.spark import functions as F

workers_get_by_value(__name__)
workers_get_by_value(processors.__name__)

POISON = -1
BATCHES = [[(1, 1), (2, 2), (3, POISON)], [(1, 5), (1, POISON), (3, 1)], [(1, 7), (2, POISON)]]


class FrameTotals(Totals):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        frames = (Row(amount=int(amount)) for frame in rows for amount in frame["amount"])
        for row in super().handleInputRows(key, frames, timerValues):
            yield pd.DataFrame([row.asDict()])


def left(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    failed = {key for key, amount in rows if amount == POISON}
    return [row for row in rows if row[0] not in failed]


@pytest.mark.parametrize(("delivery", "in_pandas"), [("staged", False), ("direct", True)])
def test_keys_that_fail_are_left_out_and_counted(
    spark: SparkSession, tmp_path: Path, delivery: str, in_pandas: bool
) -> None:
    metrics, model = Metrics(), TotalsModel()
    kind = FrameTotals if in_pandas else Totals
    transform = transform_with_state_in_pandas if in_pandas else transform_with_state
    options = {
        "delivery": delivery, "onError": "dead-letter", "metrics": metrics, "tasks": 2,
        "transform": transform,
    }  # fmt: skip
    source = BatchSource(spark, tmp_path / "in", INPUT)
    job = Job(source, tmp_path, ["key"], kind(POISON), TOTALS, options)
    for rows in BATCHES:
        source.add(rows)
    query = job.start()
    wait(query)
    assert [model.apply(left(rows)) for rows in BATCHES] == [in_order(rows) for rows in job.take()]
    assert [(1, 1), (1, 1), (1, 1)] == [
        (report.failed_keys, report.dead_letters) for report in job.progress
    ]
    assert (3, 3) == (metrics.value("num_failed_keys"), metrics.value("num_dead_letters"))
    last = query.lastProgress
    assert last is not None
    assert "1" == last["sources"][-1]["metrics"].get("failedKeys", "1")
    with sl.open(str(job.state)) as state:
        letters = state.dead_letters().to_pylist()
        assert ["[3]", "[1]", "[2]"] == [letter["key"] for letter in letters]
        assert {"ArithmeticError"} == {letter["error"] for letter in letters}
        assert {"cannot take -1"} == {letter["message"] for letter in letters}
        assert "handleInputRows" in letters[0]["traceback"]
        assert '[{"key":1,"amount":5},{"key":1,"amount":-1}]' == letters[1]["rows"]
        resent = [tuple(row.values()) for row in state.dead_letter_rows().to_pylist()]
    source.add(resent)
    job.run(processor=kind())
    for rows in [resent]:
        assert [model.apply(rows)] == [in_order(rows) for rows in job.take()]
    whole = TotalsModel()
    for rows in BATCHES:
        whole.apply(rows)
    with sl.open(str(job.state)) as state:
        for key, (total, count) in whole.totals.items():
            assert {"total": total, "rows": count} == state.get("total", key)


def test_skipped_keys_leave_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    for rows in BATCHES:
        source.add(rows)
    job = Job(source, tmp_path, ["key"], Totals(POISON), TOTALS)
    spark.conf.set("spark.statelog.onError", "skip")
    try:
        job.run()
    finally:
        spark.conf.unset("spark.statelog.onError")
    assert [1, 1, 1] == [report.failed_keys for report in job.progress]
    with sl.open(str(job.state)) as state:
        assert 0 == state.dead_letters().num_rows
    source.add([(5, POISON), (6, 1)])
    with pytest.raises(StreamingQueryException, match=r"handleInputRows failed for key \(5,\)"):
        job.run()
    stream = transform_with_state(
        source.frame().groupBy("key"), Totals(POISON), TOTALS, stateLocation=str(job.state)
    )
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "query"))
    written = writer.option("statelog.onError", "dead-letter").foreachBatch(job.collect)
    wait(written.trigger(availableNow=True).start())
    assert [(6, 1, 1)] == in_order(job.take()[-1])
    with sl.open(str(job.state)) as state:
        assert ["[5]"] == state.dead_letters()["key"].to_pylist()


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_frozen_keys_wait(spark: SparkSession, tmp_path: Path, delivery: str) -> None:
    """Over a restart, which unfreezes nothing."""
    model, frozen, held = TotalsModel(), set[int](), []
    source = BatchSource(spark, tmp_path / "in", INPUT)
    options = {"delivery": delivery, "onError": "freeze", "tasks": 2}
    job = Job(source, tmp_path, ["key"], Totals(POISON), TOTALS, options)
    for rows in BATCHES:
        frozen |= {key for key, amount in rows if amount == POISON}
        held += [row for row in rows if row[0] in frozen]
        source.add(rows)
        job.run()
        taken = [row for row in rows if row[0] not in frozen]
        assert [model.apply(taken)] == [in_order(each) for each in job.take()]
    assert [(1, 1), (1, 2), (1, 2)] == [
        (report.failed_keys, report.dead_letters) for report in job.progress
    ]
    assert 3 == sl.unfreeze(str(job.state), apply=True).counts.changed
    with sl.open(str(job.state)) as state:
        resent = [tuple(row.values()) for row in state.dead_letter_rows().to_pylist()]
    assert sorted(held) == sorted(resent)
    source.add(resent)
    job.run(processor=Totals())
    whole = TotalsModel()
    for rows in BATCHES:
        whole.apply(rows)
    with sl.open(str(job.state)) as state:
        assert 0 == state.table("$frozen").num_rows
        for key, (total, count) in whole.totals.items():
            assert {"total": total, "rows": count} == state.get("total", key)


def test_rows_are_stored_with_all_columns(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", f"{INPUT}, note string")
    source.add([(1, POISON, "of nobody"), (2, 1, "")])

    def writer(name: str, **settings: Any) -> Any:
        stream = transform_with_state(
            source.frame().groupBy("key"), Totals(POISON), TOTALS,
            stateLocation=str(tmp_path / name / "state"), **settings,
        )  # fmt: skip
        written = stream.writeStream.option("checkpointLocation", str(tmp_path / name / "query"))
        return written.trigger(availableNow=True).format("noop")

    for option, value in (
        ("onError", "dead-letter"),
        ("onError", "freeze"),
        ("record.share", "1.0"),
    ):
        with pytest.raises(
            UsageError, match=f"{option.removesuffix('.share')} records rows with all columns"
        ):
            writer("late").option(f"statelog.{option}", value).start()
    wait(writer("skips").option("statelog.onError", "skip").start())
    wait(writer("code", onError="dead-letter").start())
    all_columns = writer("all", inputColumns="all")
    wait(all_columns.option("statelog.onError", "freeze").start())
    for name in ("code", "all"):
        with sl.open(str(tmp_path / name / "state")) as state:
            assert ["of nobody"] == state.dead_letter_rows()["note"].to_pylist()


def test_processors_of_batches_reject_the_setting(spark: SparkSession, tmp_path: Path) -> None:
    class Columns(ColumnarProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getColumnState("total", "total bigint")

        def process(self, keys: Any, rows: Any, times: Any) -> Iterator[pa.Table]:
            yield from ()

    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add([(1, 1)])
    job = Job(source, tmp_path, ["key"], Columns(), "key bigint", {"onError": "skip"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="onError='skip' cannot be used with Columns"):
        job.run()
    totals = aggregate(
        source.frame().groupBy("key"), F.sum("amount").alias("amount"), onError="dead-letter",
        stateLocation=str(tmp_path / "other"),
    )  # fmt: skip
    writer = totals.writeStream.option("checkpointLocation", str(tmp_path / "aggregate"))
    with pytest.raises(UsageError, match="onError='dead-letter' cannot be used with aggregate"):
        writer.format("noop").start()


class Second(StatefulProcessor):
    """Counts the totals of a key; an odd total is poison."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (n,) = self.count.get() or (0,)
            self.count.update((n + 1,))
            if row.total % 2:
                raise ValueError(f"{row.total} is odd")
        yield Row(key=key[0], total=self.count.get()[0], rows=0)


def test_each_operator_of_a_query_has_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add([(1, 2), (2, 3), (3, POISON), (4, 4)])
    first = transform_with_state(
        source.frame().groupBy("key"), Totals(POISON), TOTALS, stateLocation=str(tmp_path / "state"),
        onError="dead-letter",
    )  # fmt: skip
    both = transform_with_state(first.groupBy("key"), Second(), TOTALS)
    seen: list[Any] = []
    writer = both.writeStream.option("checkpointLocation", str(tmp_path / "query"))
    wait(
        writer.foreachBatch(lambda frame, _: seen.extend(frame.collect()))
        .trigger(availableNow=True)
        .start()
    )
    assert [1, 4] == sorted(row.key for row in seen)
    found = {
        name: sl.open(str(tmp_path / "state"), operator=name).dead_letters()["key"].to_pylist()
        for name in ("transform_with_state", "transform_with_state_2")
    }
    assert {"transform_with_state": ["[3]"], "transform_with_state_2": ["[2]"]} == found
