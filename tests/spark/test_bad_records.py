"""A query continues past bad records on Spark: all other keys are exact, and a resend is too."""

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from tests.support.spark.columnar_totals import ColumnarTotals
from tests.support.spark.processors import (
    INPUT,
    TOTALS,
    FrameTotals,
    Totals,
    TotalsModel,
    totals_job,
    totals_of,
)
from tests.support.spark.streams import BatchSource, Job, configured, in_order, run_to_end, wait

import statelog as sl
from statelog.errors import UsageError
from statelog.metrics import Metrics
from statelog.spark import (
    aggregate,
    transform_with_state,
    transform_with_state_in_pandas,
)
from statelog.spark import functions as F

POISON = -1
BATCHES = [[(1, 1), (2, 2), (3, POISON)], [(1, 5), (1, POISON), (3, 1)], [(1, 7), (2, POISON)]]


def without_failed_keys(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    failed = {key for key, amount in rows if amount == POISON}
    return [row for row in rows if row[0] not in failed]


@pytest.mark.parametrize(("delivery", "in_pandas"), [("staged", False), ("direct", True)])
def test_keys_that_fail_are_left_out_and_counted(spark, tmp_path, delivery, in_pandas):
    metrics = Metrics()
    kind = FrameTotals if in_pandas else Totals
    transform = transform_with_state_in_pandas if in_pandas else transform_with_state
    options = {
        "delivery": delivery, "onError": "dead-letter", "metrics": metrics, "tasks": 2,
        "transform": transform,
    }  # fmt: skip
    job = totals_job(spark, tmp_path, kind(POISON), **options)
    job.source.add_all(BATCHES)
    query = job.run()
    processed = [without_failed_keys(rows) for rows in BATCHES]
    assert totals_of(processed) == job.take_in_order()
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
    job.source.add(resent)
    job.run(processor=kind())
    assert totals_of([*processed, resent])[-1:] == job.take_in_order()
    check_totals(job)


def check_totals(job: Job) -> None:
    """Check that the state has all rows of `BATCHES`."""
    model = TotalsModel()
    for rows in BATCHES:
        model.apply(rows)
    with sl.open(str(job.state)) as state:
        for key, (total, count) in model.totals.items():
            assert {"total": total, "rows": count} == state.get("total", key)


def test_skipped_keys_leave_nothing_behind(spark, tmp_path):
    job = totals_job(spark, tmp_path, Totals(POISON))
    job.source.add_all(BATCHES)
    with configured(spark, {"spark.statelog.onError": "skip"}):
        job.run()
    assert [1, 1, 1] == [report.failed_keys for report in job.progress]
    with sl.open(str(job.state)) as state:
        assert 0 == state.dead_letters().num_rows
    job.source.add([(5, POISON), (6, 1)])
    with pytest.raises(StreamingQueryException, match=r"handleInputRows failed for key \(5,\)"):
        job.run()
    writer = job.stream().writeStream.option("checkpointLocation", str(job.query))
    written = writer.option("statelog.onError", "dead-letter").foreachBatch(job.collect)
    wait(written.trigger(availableNow=True).start())
    assert [(6, 1, 1)] == in_order(job.take()[-1])
    with sl.open(str(job.state)) as state:
        assert ["[5]"] == state.dead_letters()["key"].to_pylist()


def test_frozen_keys_wait(spark, tmp_path):
    """Over a restart, which unfreezes nothing."""
    model, frozen, held_back = TotalsModel(), set[int](), []
    options: dict[str, Any] = {"delivery": "direct", "onError": "freeze", "tasks": 2}
    job = totals_job(spark, tmp_path, Totals(POISON), **options)
    for rows in BATCHES:
        frozen |= {key for key, amount in rows if amount == POISON}
        held_back += [row for row in rows if row[0] in frozen]
        job.source.add(rows)
        job.run()
        processed = [row for row in rows if row[0] not in frozen]
        assert [model.apply(processed)] == job.take_in_order()
    assert [(1, 1), (1, 2), (1, 2)] == [
        (report.failed_keys, report.dead_letters) for report in job.progress
    ]
    assert 3 == sl.unfreeze(str(job.state), apply=True).counts.changed
    with sl.open(str(job.state)) as state:
        resent = [tuple(row.values()) for row in state.dead_letter_rows().to_pylist()]
    assert sorted(held_back) == sorted(resent)
    job.source.add(resent)
    job.run(processor=Totals())
    check_totals(job)
    with sl.open(str(job.state)) as state:
        assert 0 == state.table("$frozen").num_rows


def test_rows_are_stored_with_all_columns(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", f"{INPUT}, note string")
    source.add([(1, POISON, "of nobody"), (2, 1, "")])

    def writer(name: str, **settings: Any) -> Any:
        stream = transform_with_state(
            source.frame().groupBy("key"), Totals(POISON), TOTALS,
            stateLocation=str(tmp_path / name / "state"), **settings,
        )  # fmt: skip
        written = stream.writeStream.option("checkpointLocation", str(tmp_path / name / "query"))
        return written.trigger(availableNow=True).format("noop")

    for option, value in (("onError", "freeze"), ("record.share", "1.0")):
        message = f"{option.removesuffix('.share')} records rows with all columns"
        with pytest.raises(UsageError, match=message):
            writer("late").option(f"statelog.{option}", value).start()
    wait(writer("skips").option("statelog.onError", "skip").start())
    wait(writer("code", onError="dead-letter").start())
    all_columns = writer("all", inputColumns="all")
    wait(all_columns.option("statelog.onError", "freeze").start())
    for name in ("code", "all"):
        with sl.open(str(tmp_path / name / "state")) as state:
            assert ["of nobody"] == state.dead_letter_rows()["note"].to_pylist()


def test_processors_of_batches_reject_the_setting(spark, tmp_path):
    processor: Any = ColumnarTotals()
    job = totals_job(spark, tmp_path, processor, onError="skip")
    with pytest.raises(UsageError, match="onError='skip' cannot be used with ColumnarTotals"):
        job.start()
    amount = F.sum("amount").alias("amount")
    totals = aggregate(job.source.frame().groupBy("key"), amount, onError="dead-letter")
    writer = totals.writeStream.option("checkpointLocation", str(tmp_path / "aggregate"))
    with pytest.raises(UsageError, match="onError='dead-letter' cannot be used with aggregate"):
        writer.format("noop").start()


def test_each_operator_of_a_query_has_dead_letters(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", INPUT)
    source.add([(1, 2), (2, 3), (3, POISON), (4, 4)])
    first = transform_with_state(
        source.frame().groupBy("key"), Totals(POISON), TOTALS, stateLocation=str(tmp_path / "state"),
        onError="dead-letter",
    )  # fmt: skip
    totals = first.selectExpr("key", "total as amount").groupBy("key")
    both = transform_with_state(totals, Totals(3), TOTALS)
    (rows,) = run_to_end(both, tmp_path / "query")
    assert [1, 4] == sorted(row.key for row in rows)
    keys = {
        name: sl.open(str(tmp_path / "state"), operator=name).dead_letters()["key"].to_pylist()
        for name in ("transform_with_state", "transform_with_state_2")
    }
    assert {"transform_with_state": ["[3]"], "transform_with_state_2": ["[2]"]} == keys
