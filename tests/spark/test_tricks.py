"""Without Spark's internals a query gives the same rows, and the log says why it does without."""

import logging
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from tests.support.spark.processors import INPUT, TOTALS, Totals, totals_of
from tests.support.spark.streams import BatchSource, Job, in_order, run_to_end

from statelog.extensions.columns.aggregation import pre_aggregation
from statelog.spark import aggregate
from statelog.spark import functions as F
from statelog.spark.jvm import frames, python_job
from statelog.spark.jvm.tricks import Trick

BATCHES = [[(key, 10 * batch + key) for key in range(7)] for batch in range(3)]


@pytest.fixture
def source(spark, tmp_path):
    source = BatchSource(spark.newSession(), tmp_path / "in", INPUT)
    source.add_all(BATCHES)
    return source


def run(source: BatchSource, folder: Path, delivery: str, tasks: int = 2) -> None:
    job = Job(source, folder, ["key"], Totals(), TOTALS)
    job.run(delivery=delivery, tasks=tasks)
    assert totals_of(BATCHES) == job.take_in_order()


def run_aggregate(source: BatchSource, folder: Path) -> None:
    stream = aggregate(
        source.frame().groupBy("key"), F.sum("amount").alias("total"), F.count().alias("n"), tasks=2
    )
    delivered = run_to_end(stream, folder / "query")
    assert totals_of(BATCHES) == [in_order(rows) for rows in delivered]


def refuse_tricks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what the tricks call fail the test."""

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a trick is used")

    monkeypatch.setattr(python_job, "_template", fail)
    monkeypatch.setattr(pre_aggregation, "executed_plan", fail)
    monkeypatch.setattr(frames, "_analyzed_bytes", fail)


@pytest.mark.parametrize("delivery", ["direct", "staged"])
def test_without_all_tricks_the_rows_are_the_same(source, tmp_path, delivery, monkeypatch):
    for trick in Trick:
        source.spark.conf.set(trick.switch, "false")
    refuse_tricks(monkeypatch)
    run(source, tmp_path / "totals", delivery)
    if delivery == "staged":
        run_aggregate(source, tmp_path / "aggregate")


@pytest.mark.parametrize("trick", [Trick.OWN_WORKERS, Trick.KEPT_PLANS])
def test_a_nested_trick_ends_by_itself(source, tmp_path, trick):
    source.spark.conf.set(trick.switch, "false")
    if trick is Trick.KEPT_PLANS:
        run_aggregate(source, tmp_path)
    else:
        run(source, tmp_path, "staged")


def test_a_spark_without_a_part_is_named_once_for_each_query(source, tmp_path, monkeypatch, caplog):
    calls = []

    def missing(*args: object) -> None:
        calls.append(args)
        raise Py4JError("Method mapOutputStatisticsFuture([]) does not exist")

    monkeypatch.setattr(pre_aggregation, "_shuffle_of", missing)
    with caplog.at_level(logging.INFO, "statelog.spark"):
        run_aggregate(source, tmp_path)
    lines = [line.getMessage() for line in caplog.records if "oneShuffle" in line.getMessage()]
    assert 1 == len(lines) == len(calls)
    assert "mapOutputStatisticsFuture" in lines[0]
    assert "is not used" in lines[0]


def test_another_error_is_raised(source, tmp_path, monkeypatch):
    def broken(*args: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(pre_aggregation, "_shuffle_of", broken)
    with pytest.raises(Exception, match="a fault"):
        run_aggregate(source, tmp_path)
